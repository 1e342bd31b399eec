"""The breakpoints that clients of the debug adapter protocol set.

Two clients that set the same one share it: it is armed once, and until the last of them has gone.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from .dap_paths import PathMappings
from .records import Breakpoint
from .values import error_line

Document = dict[str, Any]


class Arms(Protocol):
    """What arms breakpoints in this process. It never raises; `state` has `places` and `note`."""

    def add(self, point: Breakpoint) -> object: ...
    def remove(self, name: str) -> object: ...
    def state(self, name: str) -> Any: ...


_lock = threading.Lock()
_holders: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()


class DapBreakpoints:
    """Those of one client."""

    def __init__(self, arming: Arms | None) -> None:
        self._arming = arming
        self._groups: dict[str, dict[int, str]] = {}  # by file: the client's number and our id of each
        self._next = 1
        self._told: dict[int, bool] = {}

    def set_lines(self, arguments: Document, paths: PathMappings) -> list[Document]:
        """Replaces the breakpoints of one file."""
        path = str(arguments.get("source", {}).get("path") or "")
        here = paths.to_here(path)
        wanted = [_line_breakpoint(each, path, here) for each in arguments.get("breakpoints") or []]
        return self._replace(path, wanted, [int(each["line"]) for each in arguments.get("breakpoints") or []])

    def set_functions(self, arguments: Document) -> list[Document]:
        wanted = [_function_breakpoint(each) for each in arguments.get("breakpoints") or []]
        return self._replace("", wanted, [0] * len(wanted))

    def _replace(self, group: str, wanted: list[Breakpoint], lines: list[int]) -> list[Document]:
        before = self._groups.get(group, {})
        now: dict[int, str] = {}
        for point in wanted:
            # One that stays keeps its number: the client knows it by that.
            number = next((key for key, name in before.items() if name == point.id and key not in now), 0)
            if not number:
                number, self._next = self._next, self._next + 1
                self._hold(point)
            now[number] = point.id
        self._groups[group] = now
        for number, name in before.items():
            if number not in now:
                self._let_go(name)
        return [self._state(number, name, line) for (number, name), line in zip(now.items(), lines, strict=True)]

    def changed(self) -> list[Document]:
        """Those that are armed now and weren't when the client was last told, or the other way round."""
        found = []
        for group in self._groups.values():
            for number, name in group.items():
                before = self._told.get(number)
                state = self._state(number, name, 0)
                if state["verified"] != before:
                    found.append(state)
        return found

    def numbers_of(self, name: str) -> list[int]:
        """The client's numbers of a breakpoint that was hit."""
        return [number for group in self._groups.values() for number, each in group.items() if each == name]

    def clear(self) -> None:
        """The client went: nobody waits for these any more."""
        groups, self._groups = self._groups, {}
        for group in groups.values():
            for name in group.values():
                self._let_go(name)

    def _state(self, number: int, name: str, line: int) -> Document:
        document: Document = {"id": number, "verified": False}
        if line:
            document["line"] = line
        if self._arming is None:
            return document | {"message": "this process can't arm breakpoints"}
        try:
            state = self._arming.state(name)
        except Exception as error:  # noqa: BLE001 - keeps the other breakpoints; the client is told of this one
            return document | {"message": error_line(error)}
        self._told[number] = document["verified"] = state.places > 0
        if state.note:
            document["message"] = state.note
        return document

    def _hold(self, point: Breakpoint) -> None:
        if self._arming is not None and self._count(point.id, 1) == 1:
            self._arming.add(point)

    def _let_go(self, name: str) -> None:
        if self._arming is not None and self._count(name, -1) == 0:
            self._arming.remove(name)

    def _count(self, name: str, more: int) -> int:
        with _lock:
            holders = _holders.setdefault(self._arming, {})
            holders[name] = holders.get(name, 0) + more
            return holders[name] if holders[name] > 0 else holders.pop(name)


def hits_of(each: Document) -> str:
    """A client's hit count as ours.

    >>> hits_of({"hitCondition": "== 3"}), hits_of({"hitCondition": ">= 3"}), hits_of({})
    ('3', '>=3', '')
    """
    return str(each.get("hitCondition") or "").replace(" ", "").replace("==", "")


def log_of(each: Document) -> str:
    """A client's log message as ours: there a text without braces is just that; here it is an expression.

    >>> log_of({"logMessage": "step {step}"}), log_of({"logMessage": "here"})
    ('step {step}', "'here'")
    """
    log = str(each.get("logMessage") or "")
    return repr(log) if log and "{" not in log else log


def _line_breakpoint(each: Document, path: str, here: str) -> Breakpoint:
    paths = (here,) if here == path else (here, path)
    return _with_id(
        each, lambda name, more: Breakpoint(name, f"{here}:{each['line']}", paths, int(each["line"]), **more)
    )


def _function_breakpoint(each: Document) -> Breakpoint:
    module, qualname = _split(str(each.get("name", "")))
    return _with_id(
        each, lambda name, more: Breakpoint(name, f"{module}:{qualname}", module=module, qualname=qualname, **more)
    )


def _split(name: str) -> tuple[str, str]:
    """Module and function of `package.module:Class.method`, also of `package.module.Class.method`."""
    if ":" in name:
        module, _, qualname = name.partition(":")
        return module, qualname
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        if ".".join(parts[:count]) in sys.modules:
            return ".".join(parts[:count]), ".".join(parts[count:])
    return "__main__", name


def _with_id(each: Document, make: Callable[[str, Document], Breakpoint]) -> Breakpoint:
    """Equal breakpoints have an equal id, whoever sets them."""
    more = {"condition": each.get("condition") or "", "hits": hits_of(each), "log": log_of(each)}
    point = make("", more)
    digest = hashlib.blake2b(repr(point).encode(), digest_size=5).hexdigest()
    return make(f"dap-{digest}", more)
