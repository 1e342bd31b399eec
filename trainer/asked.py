"""Phases asked of the ranks: one by itself, or several side by side where they have ranks of their own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trainer.interfaces import Args, Calls, Clock, SideBySide

T = TypeVar("T")

# What the driver does about a phase: it yields its name and its arguments, is sent the answers by rank, and returns
# the result.
Talk = Generator[tuple[str, Args], list[Any], T]


@dataclass(frozen=True)
class Asked(Generic[T]):
    """A phase that has not begun. Until it does, nothing is split or copied for it."""

    calls: Calls
    ranks: tuple[int, ...]  # those that it keeps busy
    talk: Callable[[], Talk[T]]

    def now(self) -> T:
        return _spoken(self.calls, self.talk())


def together(calls: Calls, asked: Mapping[str, Asked[Any]], clock: Clock) -> dict[str, Any]:
    """The results of phases that need nothing of one another, each timed under its name.

    Phases of the same ranks run one after the other, in their order: of a rank that is stopped in one, in a debugger
    for example, the others wait where they have ended it, and not in a collective of the next one with its time limit.
    Teams run side by side. Raises what a rank raised.
    """
    results: dict[str, Any] = {}

    def in_turn(names: Iterable[str]) -> Talk[None]:
        for name in names:
            with clock(name):
                results[name] = yield from asked[name].talk()

    apart = isinstance(calls, SideBySide)
    teams: dict[tuple[int, ...], list[str]] = {}
    for name, each in asked.items():
        teams.setdefault(each.ranks if apart else (), []).append(name)
    talks = [in_turn(names) for names in teams.values()]
    try:
        if isinstance(calls, SideBySide) and len(talks) > 1:
            _side_by_side(calls, talks)
        else:
            for talk in talks:
                _spoken(calls, talk)
    finally:  # after a failure the clocks are left now, and not when somebody drops the error
        for talk in talks:
            talk.close()
    return results


def _spoken(calls: Calls, talk: Talk[T]) -> T:
    answers: list[Any] | None = None  # what a generator that begins is sent
    while True:
        try:
            phase, args = talk.send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            result: T = end.value
            return result
        answers = calls.all(phase, args)


def _side_by_side(calls: SideBySide, talks: Iterable[Talk[None]]) -> None:
    under_way = {calls.begin(*next(talk)): talk for talk in talks}
    while under_way:
        done, answers = calls.first(list(under_way))
        talk = under_way.pop(done)
        with suppress(StopIteration):
            under_way[calls.begin(*talk.send(answers))] = talk
