"""What the program raises and catches itself, in lines: equal ones of all ranks together, the most frequent first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from devkit.debug.crash_table import clip
from devkit.debug.naming import Who, count, name_members, short_path

MOST = 5  # lines
_KEEPERS = ("concurrent/futures/thread.py", "concurrent/futures/process.py")
MESSAGE = 60  # characters of an exception's message


class Row(NamedTuple):
    """One kind of exception from one line, caught at one other."""

    times: int
    said: str
    at: str
    by: str
    members: tuple[Who, ...]

    @property
    def what(self) -> str:
        return f"{self.times} x {self.said} at {self.at}"

    @property
    def where(self) -> str:
        kept = any(file in self.by for file in _KEEPERS)  # for who asks for the result, if anybody does
        how = f"kept in its future by {self.by}" if kept else f"caught at {self.by}"
        caught = f"{how} · " if self.by != self.at else ""
        return f"{caught}{name_members(self.members)}"


def rows(workers: Iterable[Mapping[str, Any]], cwd: str | None = None) -> list[Row]:
    """Of what `ps` has of the processes."""
    found: dict[tuple[str, str, str], list[tuple[Who, Mapping[str, Any]]]] = {}
    for worker in workers:
        for each in worker.get("caught", ()):
            key = str(each["kind"]), _place(each["at"], cwd), _place(each["by"], cwd)
            found.setdefault(key, []).append((Who.of({**worker, "id": f"pid {worker['pid']}"}), each))
    every = [_row(*key, members) for key, members in found.items()]
    return sorted(every, key=lambda row: -row.times)


def _row(kind: str, at: str, by: str, members: list[tuple[Who, Mapping[str, Any]]]) -> Row:
    text = clip(" ".join(str(members[-1][1]["text"]).split()), MESSAGE)
    times = sum(int(each["count"]) for _, each in members)
    return Row(times, f"{kind}: {text}" if text else kind, at, by, tuple(who for who, _ in members))


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
