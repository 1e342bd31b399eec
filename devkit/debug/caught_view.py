"""What the program raises and catches itself, in lines: equal ones of all ranks together, the most frequent first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from devkit.debug.crash_table import clip
from devkit.debug.inworker import swallowing
from devkit.debug.naming import Who, count, name_members, short_path

MOST = 5  # lines
MANY = 10  # times that a run has swallowed something, to be told when it has ended
MESSAGE = 60  # characters of an exception's message
CAUGHT, KEPT = "caught by the program", "kept by tasks or Futures of the program"


class Row(NamedTuple):
    """One kind of exception from one line, caught at one other."""

    times: int
    said: str
    at: str
    by: str
    members: tuple[Who, ...]
    is_partial: bool = False  # whether a process may have caught more than it has told of

    @property
    def what(self) -> str:
        return f"{self.times} x {self.said} at {self.at}"

    @property
    def where(self) -> str:
        return f"{self.how} · {name_members(self.members)}" if self.how else name_members(self.members)

    @property
    def how(self) -> str:
        """By whom it was caught or is kept; empty: caught where it was raised."""
        if swallowing.OF_TASKS in self.by:
            return "kept by asyncio tasks" if self.times > 1 else "kept by its asyncio task"
        if self.is_kept:  # for who asks for the result, if anybody does
            return "kept by Futures" if self.times > 1 else "kept by its Future"
        return f"caught at {self.by}" if self.by != self.at else ""

    @property
    def is_kept(self) -> bool:
        """Whether no handler has caught it: a Future has it, or a task of asyncio."""
        return any(file in self.by for file in swallowing.KEEPERS)


def rows(workers: Iterable[Mapping[str, Any]], cwd: str | None = None) -> list[Row]:
    """Of what `ps` has of the processes."""
    found: dict[tuple[str, str, str], list[tuple[Who, Mapping[str, Any], bool]]] = {}
    for worker in workers:
        for each in worker.get("caught", ()):
            key = str(each["kind"]), _place(each["at"], cwd), _place(each["by"], cwd)
            who = Who.of({**worker, "id": f"pid {worker['pid']}"})
            found.setdefault(key, []).append((who, each, bool(worker.get("partial"))))
    every = [_row(*key, members) for key, members in found.items()]
    return sorted(every, key=lambda row: -row.times)


def swallowed(workers: Iterable[Mapping[str, Any]], cwd: str | None = None) -> list[Row]:
    """What was caught many times, by a handler of whatever comes: nobody may have thought of that very error.

    A handler that names it is a way of working, as is waiting for what has not come yet.
    """
    kept = [
        {**worker, "caught": [each for each in worker["caught"] if _is_swallowed(each)]}
        for worker in workers
        if worker.get("caught")
    ]
    return [row for row in rows(kept, cwd) if row.times >= MANY]


def _is_swallowed(caught: Mapping[str, Any]) -> bool:
    return caught.get("how") in (swallowing.ANY, swallowing.KEPT) and caught["kind"] not in swallowing.USUAL


def parted(found: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Those that were caught, and those that no handler has caught, each with what to say of all of them."""
    every = list(found)
    for head, is_kept in ((CAUGHT, False), (KEPT, True)):
        if part := [row for row in every if row.is_kept is is_kept]:
            yield head, part


def swallowed_heading(found: Iterable[Row]) -> str:
    """What a run that has ended says of all of these."""
    kept = {row.is_kept for row in found}
    if kept == {True}:
        return "tasks or Futures of the program kept these:"
    return f"the program caught these itself{', or tasks or Futures of it kept them' * (True in kept)}:"


def swallowed_line(row: Row) -> str:
    """What a row says of a program that has ended.

    >>> swallowed_line(Row(384, "TypeError: no", "a.py:3", "a.py:9", (Who("Reward", 1, "pid 7"),)))
    '384 x TypeError: no, raised at a.py:3 and caught at a.py:9, which goes on (Reward rank 1)'

    >>> swallowed_line(Row(16, "TypeError: no", "a.py:3", "a.py:3", (Who("Reward", 1, "pid 7"),), is_partial=True))
    'at least 16 x TypeError: no, raised at a.py:3 and caught there, which goes on (Reward rank 1)'
    """
    rest = "" if row.is_kept else ", which goes on"  # whether somebody has asked for it is not known
    how = f" and {row.how or 'caught there'}{rest}"
    named = name_members(row.members)
    role = f"{row.members[0].role} " if named.startswith("rank") else ""  # of them all
    times = f"at least {row.times}" if row.is_partial else row.times
    return f"{times} x {row.said}, raised at {row.at}{how} ({role}{named})"


def _row(kind: str, at: str, by: str, members: list[tuple[Who, Mapping[str, Any], bool]]) -> Row:
    texts = [" ".join(str(each["text"]).split()) for _, each, _ in members]
    varies = len(set(texts)) > 1 and not texts[-1].endswith(swallowing.LAST)
    text = clip(texts[-1], MESSAGE) + swallowing.LAST * varies
    times = sum(int(each["count"]) for _, each, _ in members)
    said, who = f"{kind}: {text}" if text else kind, tuple(dict.fromkeys(each for each, *_ in members))
    return Row(times, said, at, by, who, is_partial=any(partial for *_, partial in members))


def _place(frame: Mapping[str, Any], cwd: str | None) -> str:
    return f"{short_path(str(frame['file']), cwd)}:{frame['line']}"


def lines(found: list[Row], width: int | None) -> Iterator[str]:
    """Each in one line where that is wide enough, else in two."""
    for row in found[:MOST]:
        one = f"{row.what}, {row.where}"
        if width is None or len(one) <= width:
            yield one
        else:
            yield clip(row.what, width)
            yield clip(f"  {row.where}", width)
    if len(found) > MOST:
        yield f"and {count(len(found) - MOST, 'other line')}: devkit ps --json"
