"""Globals that a task or an actor changes in its worker, and that the driver reads then: it has them unchanged.

COUNTS = {}

@ray.remote
def count(row):
    COUNTS[row] = 1  # of the worker

ray.get([count.remote(row) for row in range(64)])
print(len(COUNTS))  # 0

A worker tells which of the globals that were empty or 0 are not any more. The driver says so, when it ends, of those
that its own code reads behind such a call, never changes, and still has empty or 0.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from . import calls_made, executed, hits, noticeboard
from .changed_globals import NUMBERS, Changed, changes_of, fingerprint, value_in
from .executed import Function
from .passing import unframed
from .sources import is_users
from .words import warn

KIND = "global"  # of notes
MOST = 16  # globals of one function
LINES = 5


# ---- in a worker


class _State:
    def __init__(self) -> None:
        self.soon = noticeboard.Soon(self.tell, "devkit-globals")
        self.blank: set[str] = set()  # globals that were empty or 0 at first
        self.counts: dict[str, float] = {}
        self.news: dict[str, tuple[Changed, str, float, tuple[str, ...]]] = {}

    def look(self, watched: list[Changed], call: str, used: tuple[str, ...]) -> None:
        for each in watched:
            count = fingerprint(each.value)
            if count and count != self.counts.get(each.key):
                self.counts[each.key] = count
                self.news[each.key] = (each, call, count, used)
                self.soon.wake()

    def tell(self) -> bool:
        try:
            while self.news:
                key, news = self.news.popitem()
                noticeboard.put(KIND, f"{os.getpid()}-{socket.gethostname()}-{key}", _note(*news))
        except Exception:  # noqa: BLE001 - a GCS that is gone, or another Ray's: then nobody hears of it
            return False
        return True


def _note(each: Changed, call: str, count: float, used: tuple[str, ...]) -> noticeboard.Document:
    own = {"module": each.module, "owner": each.owner, "name": each.name, "who": each.who, "at": each.at}
    entries = 0 if type(each.value) in NUMBERS else len(each.value)
    return {**own, "count": count, "entries": entries, "call": call, "used": used}


def watch() -> None:
    """In a worker: looks after each call of a function that changes globals which were empty or 0 before the first."""
    state = _State()
    executed.watch(KIND, lambda function, name, kinds: covered(function, name, kinds, state))


def covered(function: Any, name: str, kinds: list[type], state: _State) -> Function:
    """A task's function, or what Ray has around a method of one of these classes, with a look behind each call; itself
    where it changes nothing.
    """
    method = getattr(function, "method", None)
    functions = [inspect.unwrap(function)] if method is None else [method, *_beside(method, str(function.name), kinds)]
    changed, used = changes_of(functions)
    state.blank |= {each.key for each in changed if fingerprint(each.value) == 0.0}
    watched = [each for each in changed if each.key in state.blank][:MOST]
    if not watched or inspect.isgeneratorfunction(method or function):
        return function  # type: ignore[no-any-return]
    task = name.rpartition(".")[2]

    @functools.wraps(function)  # with what Ray asks of it: `name` and `method`
    def calls(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except BaseException as error:
            unframed(error)
            raise
        finally:
            with suppress(Exception):  # a container that another thread changes, or no thread is to be had
                call = task if method is None else f"{type(arguments[0]).__name__}.{function.name}"
                state.look(watched, call, used)

    return hits.calls_the_programs(calls)  # type: ignore[no-any-return]


def _beside(method: Any, name: str, kinds: list[type]) -> Iterator[Any]:
    """The other methods of the class that has this one: it may call them."""
    first = inspect.unwrap(method)
    for kind in kinds:
        if inspect.unwrap(getattr(kind, name, None)) is first:  # type: ignore[arg-type]
            for each in kind.__mro__:
                yield from vars(each).values()


# ---- in the driver


def tell() -> None:
    """At the driver's end: warns of what it has read in vain."""
    with suppress(Exception):  # a GCS that is gone: the program ends all the same
        if noticeboard.is_connected() and (notes := noticeboard.every(KIND)):
            for each in lost(notes)[:LINES]:
                warn(*each)
            noticeboard.forget(KIND)


def lost(notes: list[noticeboard.Document]) -> list[tuple[str, int, str]]:
    """(file, line, sentence) of each global that workers have changed, and that the driver reads unchanged."""
    most: dict[str, noticeboard.Document] = {}
    for note in sorted(notes, key=lambda each: -abs(each["count"])):
        most.setdefault(f"{note['module']}.{note['owner']}.{note['name']}", note)
    found = []
    for note in most.values():
        module = sys.modules.get(note["module"])
        value = value_in(vars(module), note["owner"], note["name"]) if module else None
        if fingerprint(value) == 0.0 and (place := _read_at(note, _file_of(module, note))):
            found.append((*place, _sentence(note, value)))
    return found


def _file_of(module: Any, note: noticeboard.Document) -> str:
    """Of the program itself, the file in which its function is: when that has run, Python takes `__file__` away."""
    return str(getattr(module, "__file__", "") or (note["at"][0] if note["module"] == "__main__" else ""))


def _read_at(note: noticeboard.Document, file: str) -> tuple[str, int] | None:
    from .expressions import tree_of
    from .read_behind import Wanted, is_changed, line_of

    name = f"{note['owner']}.{note['name']}" if note["owner"] else note["name"]
    wanted = Wanted(note["module"], file, name, note["used"])
    _, home = tree_of(file)
    if home is None or is_changed(home, file, wanted):
        return None
    for call in calls_made.every():
        source = call.code.co_filename
        if call.by or call.name != note["call"] or not is_users(source):
            continue
        _, tree = tree_of(source)
        if tree is not None and (line := line_of(tree, call.code, call.line, wanted)):
            return source, line
    return None


def _sentence(note: noticeboard.Document, value: Any) -> str:
    name = f"{note['owner']}.{note['name']}" if note["owner"] else note["name"]
    count, entries = f"{note['count']:.12g}", note["entries"]  # when that was told, which may not be the last
    if type(value) in NUMBERS:
        here, there = "is 0", f"it was {count}"
    elif len(value) == 0:
        here, there = "is empty", f"it had {entries} {'entry' if entries == 1 else 'entries'}"
    else:
        here, there = "has nothing in its entries", f"{count} of {entries} had something"
    file, line = note["at"]
    at = f"{os.path.basename(file)}:{line}"
    return (
        f"{name} {here} here, as it was at first: {note['who']} changes it at {at} in a worker, which has its own; "
        f"there {there}"
    )


__all__ = ["lost", "tell", "watch"]
