"""Numbers of threads, frames, variables and breakpoints of many workers, as numbers of one session and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devkit.debug.protocols import Document

# Which fields hold numbers of which kind, wherever they stand.
FIELDS = {
    "threadId": "thread",
    "frameId": "frame",
    "variablesReference": "variable",
    "sourceReference": "source",
    "targetId": "target",
}
# The kind of the `id` of what stands in these lists or fields.
OWN_IDS = {"stackFrames": "frame", "threads": "thread", "breakpoints": "breakpoint", "breakpoint": "breakpoint",
           "targets": "target"}  # fmt: skip
LISTS = {"hitBreakpointIds": "breakpoint"}


class UnknownId(LookupError):
    """A number that this session never gave."""


class Ids:
    """Gives each number of each member a number of its own.

    >>> ids = Ids()
    >>> ids.outward({"threadId": 1}, "a"), ids.outward({"threadId": 1}, "b"), ids.outward({"threadId": 1}, "a")
    ({'threadId': 1}, {'threadId': 2}, {'threadId': 1})
    >>> ids.inward({"threadId": 2})
    ('b', {'threadId': 1})
    """

    def __init__(self) -> None:
        self._outer: dict[tuple[str, str, int], int] = {}
        self._inner: dict[tuple[str, int], tuple[str, int]] = {}
        self._counts: dict[str, int] = {}

    def give(self, kind: str, member: str, inner: int) -> int:
        """The session's number for a member's; 0 stays 0, which means none."""
        if inner <= 0:
            return inner
        name = (kind, member, inner)
        if name not in self._outer:
            self._counts[kind] = number = self._counts.get(kind, 0) + 1
            self._outer[name] = number
            self._inner[kind, number] = (member, inner)
        return self._outer[name]

    def member_of(self, kind: str, outer: int) -> tuple[str, int]:
        """Whose number it is, and which. Raises UnknownId."""
        try:
            return self._inner[kind, outer]
        except KeyError:
            raise UnknownId(f"no {kind} {outer} is known") from None

    def outward(self, body: Any, member: str, within: str = "") -> Any:
        """What a member said, in the session's numbers."""
        if isinstance(body, list):
            return [self.outward(each, member, within) for each in body]
        if not isinstance(body, dict):
            return body
        changed: Document = {}
        for name, value in body.items():
            kind = FIELDS.get(name) or (OWN_IDS.get(within) if name == "id" else None)
            if kind and isinstance(value, int):
                changed[name] = self.give(kind, member, value)
            elif name in LISTS and isinstance(value, list):
                changed[name] = [self.give(LISTS[name], member, each) for each in value]
            else:
                changed[name] = self.outward(value, member, name)
        return changed

    def inward(self, arguments: Mapping[str, Any]) -> tuple[str | None, Document]:
        """Who is meant by a request, and its arguments in that member's numbers. Raises UnknownId."""
        changed, member = dict(arguments), None
        for name, value in arguments.items():
            if name in FIELDS and isinstance(value, int) and value > 0:
                member, changed[name] = self.member_of(FIELDS[name], value)
            elif name == "source" and isinstance(value, Mapping):
                owner, changed[name] = self.inward(value)
                member = member or owner
        return member, changed
