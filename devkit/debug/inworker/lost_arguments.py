"""Arguments that a task or a method changes in place and does not return: the driver's own objects stay what they were.

@ray.remote
def fill(buffer):
    buffer.extend(range(64))  # the worker's copy

buffer = []
ray.get(fill.remote(buffer))
print(len(buffer))  # 0

A worker tells what was empty and is not after a call, and of models whose parameters a call has changed. The driver
says so, when it ends, where its own code reads what it has passed, and nothing else in it can have changed that.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

from . import calls_made, executed, hits, noticeboard
from .changed_globals import CONTAINERS, name_of
from .executed import Function
from .passing import unframed
from .sources import is_users
from .stacks import OURS
from .words import warn

KIND = "argument"  # of notes
MOST = 20  # arguments that are told of, and that are looked at for one call
MOST_ITEMS = 100  # that are looked at of what a call gets or returns
LINES = 5
CONTAINER, TENSOR, MODULE = "container", "tensor", "module"
_PLAIN = (str, int, float, bool, type(None), bytes)
_BLANK = (int, float, bool, type(None), *CONTAINERS)
_NUMBERS = (int, float, bool, type(None))


class _Before(NamedTuple):
    """An argument before a call."""

    place: int | str  # position, or name
    value: Any
    kind: str
    state: Any  # of a model, the versions of its parameters; of a tensor, its version; of a container, its length


# ---- in a worker


class _State:
    def __init__(self) -> None:
        self.soon = noticeboard.Soon(self.tell, "devkit-arguments")
        self.told: set[str] = set()
        self.news: list[tuple[str, noticeboard.Document]] = []

    def tell(self) -> bool:
        try:
            while self.news:
                key, note = self.news.pop()
                noticeboard.put(KIND, f"{os.getpid()}-{socket.gethostname()}-{key}", note)
        except Exception:  # noqa: BLE001 - a GCS that is gone, or another Ray's: then nobody hears of it
            return False
        return True


def watch() -> None:
    """In a worker: looks at what each call of the program's functions changes of its arguments."""
    state = _State()
    executed.watch(KIND, lambda function, name, _kinds: covered(function, name, state))


def covered(function: Any, name: str, state: _State) -> Function:
    """A task's function, or what Ray has around a method, with a look at its arguments before and after each call;
    itself where that is no plain function of the program's.
    """
    method = getattr(function, "method", None)
    inner = inspect.unwrap(method or function)
    code = getattr(inner, "__code__", None)
    is_plain = not (inspect.isgeneratorfunction(inner) or inspect.iscoroutinefunction(inner))
    if code is None or not is_plain or inspect.isasyncgenfunction(inner) or not is_users(code.co_filename):
        return function  # type: ignore[no-any-return]
    is_static = method is not None and code.co_varnames[:1] != ("self",)
    if (
        is_static
        or code.co_filename.startswith(OURS)
        or code.co_argcount + code.co_kwonlyargcount <= (method is not None)
    ):
        return function  # type: ignore[no-any-return]
    own, task = int(method is not None), name.rpartition(".")[2]

    @functools.wraps(function)  # with what Ray asks of it: `name` and `method`
    def calls(*arguments: Any, **named: Any) -> Any:
        before = _look(arguments[own:], named)
        try:
            result = function(*arguments, **named)
        except BaseException as error:
            unframed(error)
            raise
        if before:
            with suppress(Exception):  # objects of somebody's own make
                call = f"{type(arguments[0]).__name__}.{function.name}" if own else task
                _compare(before, result, call, inner, own, state)
        return result

    return hits.calls_the_programs(calls)  # type: ignore[no-any-return]


def _look(arguments: tuple[Any, ...], named: dict[str, Any]) -> list[_Before]:
    """On the way of each call: no more than the types of its arguments, where nothing can be changed."""
    found: list[_Before] = []
    try:
        given: Iterable[tuple[int | str, Any]] = enumerate(arguments[:MOST])
        for place, value in chain(given, named.items()) if named else given:
            kind = type(value)
            if kind in _PLAIN:
                continue
            if kind in CONTAINERS:
                if _is_blank(value):
                    found.append(_Before(place, value, CONTAINER, len(value)))
            elif torch := sys.modules.get("torch"):
                _look_at_torchs(torch, place, value, found)
    except Exception:  # noqa: BLE001 - objects of somebody's own make, or torch's without a version
        return []
    return found


def _look_at_torchs(torch: Any, place: int | str, value: Any, found: list[_Before]) -> None:
    if type(value) is torch.Tensor:
        if not value.is_inference():
            found.append(_Before(place, value, TENSOR, value._version))
    elif issubclass(type(value), torch.nn.Module):
        own = torch.nn.Module.named_parameters(value)  # and not by a method of the program's
        found.append(_Before(place, value, MODULE, [(each, each._version) for _, each in own]))


def _is_blank(value: Any) -> bool:
    """Whether nothing is in a container but zeros, None and empty ones: mostly its first item tells. No code runs."""
    for each in islice(value.values() if isinstance(value, dict) else value, MOST_ITEMS):
        if type(each) not in _BLANK or each:
            return False
    return len(value) <= MOST_ITEMS


def _compare(before: list[_Before], result: Any, call: str, inner: Any, own: int, state: _State) -> None:
    for each in before:
        changed = _changed(each)
        if not changed or not _is_nothing_of(result, each.kind):
            continue
        names = inner.__code__.co_varnames[own : inner.__code__.co_argcount]
        name = each.place if isinstance(each.place, str) else names[each.place] if each.place < len(names) else ""
        position = names.index(name) if name in names else -1
        if name and (key := f"{call}-{name}") not in state.told and len(state.told) < MOST:
            state.told.add(key)
            at = (inner.__code__.co_filename, inner.__code__.co_firstlineno)
            note = {"call": call, "name": name, "position": position, "kind": each.kind, "changed": changed}
            of = each.state if each.kind == CONTAINER else len(each.state) if each.kind == MODULE else 0
            returns = "None" if result is None else "nothing of it"
            state.news.append((key, {**note, "of": of, "returns": returns, "who": name_of(inner.__code__), "at": at}))
            state.soon.wake()


def _changed(each: _Before) -> int:
    """How many entries it has got, or how many of its entries or parameters have changed."""
    if each.kind == CONTAINER:
        if not each.state:
            return len(each.value)
        items = islice(each.value.values() if isinstance(each.value, dict) else each.value, MOST_ITEMS)
        return sum(bool(type(one) not in _BLANK or one) for one in items)
    if each.kind == TENSOR:
        return int(each.value._version > each.state)
    return sum(one._version > version for one, version in each.state)


def _is_nothing_of(result: Any, kind: str) -> bool:
    """Whether a call returns nothing by which the driver may get its argument: a text may be a checkpoint's path."""
    return result is None or (kind == MODULE and all(type(each) in _NUMBERS for each in _items(result)))


def _items(result: Any) -> Iterator[Any]:
    """What is in a result; at last `...` where it is too much to look at."""
    waiting, count = [result], 0
    while waiting:
        each = waiting.pop()
        count += 1
        if count > MOST_ITEMS:
            yield ...
            return
        if type(each) in (list, tuple):
            waiting += each
        elif type(each) is dict:
            waiting += each.values()
        else:
            yield each


# ---- in the driver


def tell() -> None:
    """At the driver's end: warns of what it has read in vain."""
    with suppress(Exception):  # a GCS that is gone: the program ends all the same
        if noticeboard.is_connected() and (notes := noticeboard.every(KIND)):
            for each in lost(notes)[:LINES]:
                warn(*each)
            noticeboard.forget(KIND)


def lost(notes: list[noticeboard.Document]) -> list[tuple[str, int, str]]:
    """(file, line, sentence) of each variable that the driver reads behind the call that was to change it."""
    from .expressions import tree_of
    from .passed_names import Passed, read_later

    found: dict[tuple[str, int], str] = {}
    for note in notes:
        for call in calls_made.every():
            source = call.code.co_filename
            if call.by or not _is_of(call, note) or not is_users(source):
                continue
            _, tree = tree_of(source)
            passed = Passed(note["kind"], note["position"], note["name"])
            if tree is not None and (read := read_later(tree, call.code, call.line, call.name, passed)):
                passed_at = f"{os.path.basename(source)}:{call.line}"
                found.setdefault((source, read.line), _sentence(note, read.variable, passed_at))
                break
    return [(*place, text) for place, text in found.items()]


def _is_of(call: calls_made.Called, note: noticeboard.Document) -> bool:
    """Whether a call is of the function that a worker tells of, and not of another file's with the same name."""
    module, file = getattr(call.descriptor, "module_name", None), os.path.basename(note["at"][0])
    is_there = module is None or module.rpartition(".")[2] == inspect.getmodulename(file) or file == "__init__.py"
    return call.name == note["call"] and is_there


def _sentence(note: noticeboard.Document, variable: str, passed_at: str) -> str:
    file, line = note["at"]
    who = f"{note['who']} of {os.path.basename(file)}:{line}"
    change, now = "its argument", "is as it was"
    if note["kind"] == MODULE:
        change = f"{note['changed']} of {note['of']} parameters of its argument"
    elif note["kind"] == CONTAINER and note["of"]:
        change = f"{note['changed']} of {note['of']} entries of its argument"
    elif note["kind"] == CONTAINER:
        many = "1 entry" if note["changed"] == 1 else f"{note['changed']} entries"
        change, now = f"(to {many}) its argument", "is still empty"
    return (
        f"{variable} {now} here: {who}, to which it was passed at {passed_at}, changes {change} {note['name']!r} in a "
        f"worker, which has a copy, and returns {note['returns']}"
    )


__all__ = ["CONTAINER", "MODULE", "TENSOR", "covered", "lost", "tell", "watch"]
