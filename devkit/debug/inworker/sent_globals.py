"""Globals that went to the workers with a task or an actor's class, and that the driver has changed since.

Ray sends the function once, at its first call, with the globals of the main program that it uses as they are then. What
the driver assigns to them later reaches no worker, and nothing says so: the run goes well, with wrong numbers.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from .changed_globals import changes_of
from .expressions import VALUE, short
from .insides import type_name
from .passing import unframed
from .redaction import REDACTED, redact, scrub_start
from .stacks import users_lines

MAIN = "__main__"
MOST = 200  # globals that are kept
MOST_FUNCTIONS = 200  # that are looked at for one that is sent
LINES = 5
_MARK = "__devkit_sent__"
_READS = ("LOAD_GLOBAL", "LOAD_NAME")
_PLAIN = (str, int, float, bool, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset)
LONGEST = 10_000  # characters of a text that is compared
ITEMS = 16  # of a container that is compared


class _Sent(NamedTuple):
    name: str  # of the global
    of: str  # the task or class that was sent
    text: str  # what the global was then
    at: tuple[str, int]  # the line by which that was called first


_sent: dict[str, _Sent] = {}


def watch() -> None:
    """Notes what goes along with each function and class that Ray sends from this process."""
    module: Any = sys.modules.get("ray._private.function_manager")
    manager = getattr(module, "FunctionActorManager", None)
    for name in ("export", "export_actor_class"):
        original = getattr(manager, name, None)
        if original is not None and not hasattr(original, _MARK):
            setattr(manager, name, _noting(original))


def _noting(original: Any) -> Any:
    def export(self: Any, sent: Any, *arguments: Any, **options: Any) -> Any:
        with suppress(Exception):  # another Ray's, or an object of somebody's own make: it is sent all the same
            _note(sent)
        try:
            return original(self, sent, *arguments, **options)
        except BaseException as error:
            unframed(error)
            raise

    setattr(export, _MARK, True)
    return export


def _note(sent: Any) -> None:
    first = getattr(sent, "_function", sent)
    site = next(users_lines(sys._getframe(2)), None)
    if site is None:
        return
    of = str(getattr(first, "__name__", type_name(type(first))))
    for name, value in taken_along(first):
        text = _text(value)
        if text is not None and len(_sent) < MOST:
            _sent.setdefault(f"{of} {name}", _Sent(name, of, text, (site["file"], site["line"])))


def taken_along(first: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of the main program's globals that a function or class reads, also through what it calls; without
    those that these fill themselves, as a cache of their own: each process has its own of that.
    """
    waiting, seen = [first], {id(first)}
    found: dict[str, Any] = {}
    functions: list[FunctionType] = []
    own = vars(sys.modules[MAIN])
    while waiting and len(seen) < MOST_FUNCTIONS:
        each = waiting.pop()
        for function in _functions(each):
            functions.append(function)
            for name in sorted(_read(function.__code__)):
                if name not in own or name in found:
                    continue
                value = found[name] = own[name]
                if _is_mains(value) and id(value) not in seen:
                    seen.add(id(value))
                    waiting.append(value)
    filled = {each.name for each in changes_of(functions)[0] if not each.owner}
    yield from (
        (name, value)
        for name, value in found.items()
        if not isinstance(value, FunctionType | type) and name not in filled
    )


def _is_mains(value: Any) -> bool:
    return isinstance(value, FunctionType | type) and value.__module__ == MAIN


def _functions(value: Any) -> Iterator[FunctionType]:
    """A function of the main program as it was written; of a class, its methods."""
    for each in vars(value).values() if isinstance(value, type) else [value]:
        function = getattr(each, "__func__", each)
        for _ in range(5):  # Ray wraps methods
            function = getattr(function, "__wrapped__", function)
        if isinstance(function, FunctionType) and function.__module__ == MAIN:
            yield function
    if isinstance(value, type):
        for base in value.__mro__[1:]:
            if base.__module__ == MAIN:
                yield from _functions(base)
                break


def _read(code: CodeType) -> set[str]:
    """The globals that a function reads and never sets: what it sets itself is its worker's own."""
    read, written = set(), set()
    codes = [code]
    while codes:
        each = codes.pop()
        codes += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
        for instruction in dis.get_instructions(each):
            if instruction.opname in _READS:
                read.add(str(instruction.argval))
            elif instruction.opname == "STORE_GLOBAL":
                written.add(str(instruction.argval))
    return read - written


def _text(value: Any) -> str | None:
    """Plain data, whole; None for anything else."""
    if type(value) in _CONTAINERS:
        items = [*value, *value.values()] if type(value) is dict else [*value]
        if len(value) > ITEMS or any(type(each) not in _PLAIN for each in items):
            return None
        return repr(sorted(value, key=repr)) if isinstance(value, set | frozenset) else repr(value)
    if type(value) is str and len(value) > LONGEST:
        return None
    return repr(value) if type(value) in _PLAIN else None


def changed() -> list[tuple[str, int, str]]:
    """(file, line, sentence) for each that is another now."""
    own = vars(sys.modules[MAIN])
    found = []
    for each in list(_sent.values()):
        now = _text(own[each.name]) if each.name in own else None
        if now is not None and now != each.text:
            text = (
                f"{each.name} is {_shown(each.name, now)} in the driver, and was {_shown(each.name, each.text)} when "
            )
            text += f"{each.of} was sent to the workers here: they keep what it was then"
            found.append((*each.at, text))
    return found[:LINES]


def _shown(name: str, text: str) -> str:
    return REDACTED if redact(name, text) is not text else short(scrub_start(text, VALUE, code=True), VALUE)


__all__ = ["changed", "taken_along", "watch"]
