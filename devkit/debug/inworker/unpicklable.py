"""Why something cannot be pickled: the way from what was to be sent to the part of it that cannot.

Looks at what objects keep, and runs none of the program's code. Where a class says itself how it is pickled, what it
keeps is not what is sent, and the way ends there.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from .insides import as_items, as_mapping, attributes, type_name

MOST = 20_000  # parts that are looked at
SECONDS = 0.2
ITEMS = 200  # of one container
_SAID = re.compile(r"cannot pickle '(?:[\w.]+\.)?(\w+)' object")
_HELPERS = ("dumps", "dump")


def way_of(error: BaseException) -> str:
    """`score -> reward -> vocabulary.normal.guard, of type RLock`.

    Empty where the error is another one, or nothing was found.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        found = _SAID.search(str(error)) if type(error) is TypeError else None
        sent = _sent(error)
        if found is not None and sent is not None:
            return way(sent[0], found[1])
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return ""


def _sent(error: BaseException) -> tuple[Any] | None:
    """What was to be pickled, as the outermost pickler's frame has it."""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_name in _HELPERS and "pickle" in code.co_filename and "obj" in code.co_varnames:
            return (traceback.tb_frame.f_locals.get("obj"),)
        traceback = traceback.tb_next
    return None


def way(value: Any, kind: str) -> str:
    """The shortest one to a part whose type has that name."""
    end = time.monotonic() + SECONDS
    waiting = deque([(value, _called(value))])
    seen = {id(value)}
    kept = [value]  # what is made here must not give its number to another
    while waiting and len(seen) < MOST and time.monotonic() < end:
        part, path = waiting.popleft()
        if _name(type(part)) == kind:
            return f"{path}, of type {kind}"
        for step, inner in _parts(part):
            if id(inner) not in seen:
                seen.add(id(inner))
                kept.append(inner)
                waiting.append((inner, path + step))
    return ""


def _called(value: Any) -> str:
    if isinstance(value, FunctionType | type):
        return str(value.__qualname__.rpartition(".")[2])
    return f"a {_name(type(value))}"


def _name(kind: type) -> str:
    return type_name(kind).rpartition(".")[2]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What is pickled with it, and how that is reached."""
    kind = type(value)
    if kind is FunctionType:
        yield from _of_function(value)
    elif kind is MethodType:
        yield from ((" -> self", value.__self__), ("", value.__func__))
    elif issubclass(kind, type):
        if _is_sent_whole(value.__module__):
            yield from ((f".{name}", each) for name, each in dict(type.__getattribute__(value, "__dict__")).items())
    elif (mapping := as_mapping(value)) is not None:
        pairs = _first(dict.items(mapping))
        yield from ((f"[{key!r}]" if type(key) in (str, int) else "[...]", each) for key, each in pairs)
    elif (items := as_items(value, ITEMS)) is not None:
        yield from ((f"[{index}]", each) for index, each in enumerate(items))
    elif not issubclass(kind, ModuleType) and not _says_itself(kind):
        yield from ((f".{name}", each) for name, each in attributes(value))
        yield "", kind


def _first(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    for count, pair in enumerate(pairs):
        if count >= ITEMS:
            return
        yield pair


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Of one that is sent whole, because nobody could import it: closure, defaults, and the globals that it names."""
    if not _is_sent_whole(function.__module__) and "<locals>" not in function.__qualname__:
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f" -> {name}", cell.cell_contents
        except ValueError:  # not set yet
            continue
    known = function.__globals__
    yield from ((f" -> {name}", known[name]) for name in _names(function.__code__) if name in known)
    yield from (("(default)", each) for each in function.__defaults__ or ())


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _is_sent_whole(module: Any) -> bool:
    return module == "__main__" or module not in sys.modules


def _says_itself(kind: type) -> bool:
    """Whether a class has a say in how it is pickled."""
    own: Any = object
    return any(
        getattr(kind, name, None) is not getattr(own, name, None)
        for name in ("__getstate__", "__reduce__", "__reduce_ex__")
    )
