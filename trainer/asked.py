"""Phases asked of the ranks: one by itself, or several side by side where they have ranks of their own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from trainer.interfaces import Clock

T = TypeVar("T")
Args = Sequence[tuple[Any, ...] | None]  # of a phase, by rank of the run; a rank with None is left out

Talk = Generator[Args, list[Any], T]
"""A phase as the driver speaks it: gives the arguments, is sent the answers by rank, returns what they come to."""


class Calls(Protocol):
    """One phase on all ranks at once."""

    world_size: int

    def all(self, phase: str, args: Args) -> list[Any]:
        """`phase(*args[rank])` on each rank; gives the answers by rank. Raises what a rank raised.

        A rank whose arguments are None is left out, and answers None.
        """
        ...


@runtime_checkable
class SideBySide(Calls, Protocol):
    """`Calls` of which several can be under way at a time: those of ranks in processes of their own."""

    def begin(self, phase: str, args: Args) -> Any:
        """`all` without the wait; what it gives is for `first`."""
        ...

    def first(self, begun: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The first of several that is done, and its answers by rank. Raises what a rank raised in any of them."""
        ...


@dataclass(frozen=True)
class Asked(Generic[T]):
    """A phase that has not begun. Until it does, nothing is split or copied for it."""

    calls: Calls
    phase: str
    ranks: tuple[int, ...]  # those that it keeps busy
    talk: Callable[[], Talk[T]]

    def now(self) -> T:
        talk = self.talk()
        return ended(talk, self.calls.all(self.phase, next(talk)))


def ended(talk: Talk[T], answers: list[Any]) -> T:
    """What a phase's answers come to."""
    try:
        talk.send(answers)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a phase gives arguments once")


def together(calls: Calls, asked: Mapping[str, Asked[Any]], clock: Clock) -> dict[str, Any]:
    """The results of phases that need nothing of one another, each timed under its name.

    Phases of the same ranks run one after the other, in their order; a rank that is stopped in one of them, in a
    debugger for example, finds the others where it left them. Teams run side by side. Raises what a rank raised.
    """
    teams: dict[tuple[int, ...], list[str]] = {}
    for name, each in asked.items():
        teams.setdefault(each.ranks, []).append(name)
    if len(teams) > 1 and isinstance(calls, SideBySide):
        return _side_by_side(calls, asked, list(teams.values()), clock)
    results = {}
    for name, each in asked.items():
        with clock(name):
            results[name] = each.now()
    return results


def _side_by_side(
    calls: SideBySide, asked: Mapping[str, Asked[Any]], queues: Sequence[list[str]], clock: Clock
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    under_way: dict[str, tuple[Any, Talk[Any], ExitStack]] = {}

    def begin(name: str) -> None:
        timed, talk = ExitStack(), asked[name].talk()
        timed.enter_context(clock(name))
        under_way[name] = calls.begin(asked[name].phase, next(talk)), talk, timed

    for queue in queues:
        begin(queue[0])
    while under_way:
        done, answers = calls.first([begun for begun, _, _ in under_way.values()])
        name = next(name for name, (begun, _, _) in under_way.items() if begun is done)
        _, talk, timed = under_way.pop(name)
        timed.close()
        queue = next(queue for queue in queues if name in queue)
        if (after := queue.index(name) + 1) < len(queue):
            begin(queue[after])
        results[name] = ended(talk, answers)
    return results
