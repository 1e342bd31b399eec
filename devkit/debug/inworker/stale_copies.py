"""What a dataset is set to in vain: workers of a `DataLoader` have copies of it, from when they started.

With `persistent_workers` each worker is started once, with the dataset as it is then. What the program assigns to it
later, a harder level, say, reaches no worker, and nothing says so. Nor does what it assigns between `iter(loader)` and
the first batch, as `load_state_dict` of a run that is resumed.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from .imports import on_import
from .insides import attributes
from .line_warnings import once
from .passing import unframed
from .plain_data import Parts, differing, parts, shown
from .stacks import users_lines

DEPTH = 3  # datasets in datasets
SHOWN = 2  # attributes
_MARK = "__devkit_stale__"
_ENTRIES = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__")  # by which a worker runs it

_made: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # by loader: where
_sent: weakref.WeakKeyDictionary[Any, Parts] = weakref.WeakKeyDictionary()  # by iterator whose workers live on
_fresh: weakref.WeakKeyDictionary[Any, tuple[Parts, str]] = weakref.WeakKeyDictionary()  # by one without a batch yet


class _Use(NamedTuple):
    """Which attributes the code of a class takes, and which it sets itself: those are each worker's own.

    `sets`: by methods that only the program calls.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    sets: frozenset[str]


def watch() -> None:
    """Warns at the beginning of an epoch of what its workers do not know."""
    on_import("torch.utils.data.dataloader", _watch)


def _watch(module: Any) -> None:
    for kind, name, after in (
        (module.DataLoader, "__init__", lambda loader, _: _made.__setitem__(loader, _site())),
        (module._MultiProcessingDataLoaderIter, "_reset", _resets),
    ):
        original = getattr(kind, name)
        if not hasattr(original, _MARK):
            setattr(kind, name, _followed(original, after))
    first = module._MultiProcessingDataLoaderIter._next_data
    if not hasattr(first, _MARK):
        module._MultiProcessingDataLoaderIter._next_data = _begun(first)


def _followed(original: Any, after: Any) -> Any:
    @functools.wraps(original)
    def calls(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            result = original(self, *arguments, **options)
        except BaseException as error:
            unframed(error)
            raise
        with suppress(Exception):  # another torch's, or one of somebody's own make: it goes on all the same
            after(self, arguments[0] if arguments else options.get("loader"))
        return result

    setattr(calls, _MARK, True)
    return calls


def _begun(original: Any) -> Any:
    @functools.wraps(original)
    def gives(self: Any) -> Any:
        if self in _fresh:
            with suppress(Exception):  # as above
                _begins(self)
        try:
            return original(self)
        except BaseException as error:
            unframed(error)
            raise

    setattr(gives, _MARK, True)
    return gives


def _site() -> str:
    at = next(users_lines(sys._getframe(1)), None)
    return f"{os.path.basename(at['file'])}:{at['line']}" if at else ""


def _resets(iterator: Any, loader: Any) -> None:
    """At the first epoch its workers have just started."""
    now = _parts(loader.dataset, loader.collate_fn) if loader.persistent_workers else {}
    if iterator not in _sent:
        _fresh[iterator] = _parts(loader.dataset, loader.collate_fn, also_set=True), _made.get(loader, "")
        if loader.persistent_workers:
            _sent[iterator] = now
        return
    _tell(_sent[iterator], now, _made.get(loader, ""), "they live on (persistent_workers), and keep what it was then")


def _begins(iterator: Any) -> None:
    """Its first batch is asked for."""
    was, made = _fresh.pop(iterator)
    now = _parts(iterator._dataset, iterator._collate_fn, also_set=True)
    _tell(was, now, made, "they have copies, with what it was then")


def _tell(before: Parts, now: Parts, made: str, why: str) -> None:
    for way, was, text in differing(before, now)[:SHOWN]:
        loader = f"this DataLoader{f', which was made at {made},' if made else ''}"
        said = f"{way} is {shown(text)} here, and was {shown(was)} when the workers of {loader} started: {why}"
        once(f"stale {way}", said, 2)


def _parts(dataset: Any, collate: Any, also_set: bool = False) -> Parts:
    """`also_set`: with what a worker counts up itself, from where the program has set it."""
    found: Parts = {}
    for name, whole in (("dataset", dataset), ("collate_fn", collate)):
        for way, value in _settings(whole, name, DEPTH, also_set):
            found |= {f"{way}{rest}": text for rest, text in parts(value, way.rpartition(".")[2]).items()}
    return found


def _settings(value: Any, way: str, depth: int, also_set: bool) -> Iterator[tuple[str, Any]]:
    """The attributes that the workers take of it, also of what it keeps."""
    kind: Any = type(value)
    if not depth or not isinstance(kind, type) or kind is FunctionType:
        return
    use = _use(kind)
    for name, each in attributes(value):
        if name in use.reads and (name not in use.writes or (also_set and name in use.sets)):
            yield f"{way}.{name}", each
            if any(hasattr(type(each), entry) for entry in _ENTRIES) and type(each).__module__ != "builtins":
                yield from _settings(each, f"{way}.{name}", depth - 1, also_set)


@functools.lru_cache(maxsize=100)
def _use(kind: type) -> _Use:
    """Of the functions by which a worker runs it, and of those that they call by `self`."""
    reads: set[str] = set()
    writes: set[str] = set()
    waiting, seen = [*_ENTRIES], set(_ENTRIES)
    while waiting:
        for code in _codes(kind, waiting.pop()):
            for instruction in dis.get_instructions(code):
                name = str(instruction.argval)
                if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
                    writes.add(name)
                elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                    reads.add(name)
                    if name not in seen:
                        seen.add(name)
                        waiting.append(name)
    others = {name for each in kind.__mro__ for name in vars(each)} - seen - {"__init__"}
    sets = {
        str(instruction.argval)
        for name in others
        for code in _codes(kind, name)
        for instruction in dis.get_instructions(code)
        if instruction.opname == "STORE_ATTR"
    }
    return _Use(frozenset(reads), frozenset(writes), frozenset(sets) if writes else frozenset())


def _codes(kind: type, name: str) -> Iterator[CodeType]:
    """Of a method or a property of this class, with what is defined in it."""
    found = next((each.__dict__[name] for each in kind.__mro__ if name in each.__dict__), None)
    function = getattr(found, "fget", None) or getattr(found, "__func__", None) or found
    codes = [function.__code__] if isinstance(function, FunctionType) else []
    while codes:
        code = codes.pop()
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        yield code


__all__ = ["watch"]
