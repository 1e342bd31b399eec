"""What an error is about that another version of a package may be behind: an object that came from another process and
cannot be made here, a class that has not what is asked of it, a module that is not there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, FunctionType, ModuleType
from typing import Any

from .lineage import chain_of, places_of

MOST = 40  # modules
NAMED = re.compile(
    r"No module named '([\w.]+)'|<module '([\w.]+)'|cannot import name '\w+' from (?:[a-z ]*)'([\w.]+)'"
    r"|module '([\w.]+)' has no attribute"
)
# What a TypeError is about: Config.__init__() got an unexpected ..., 'Config' object is not ..., abstract class Config
SUBJECTS = re.compile(r"([A-Za-z_][\w.]*)\(\)|'([A-Za-z_][\w.]*)'|class ([A-Za-z_]\w*)")
# Functions that Python, cloudpickle and Ray call while they make an object of what was pickled.
UNPICKLING = frozenset(
    {
        *("__setstate__", "__newobj__", "__newobj_ex__", "_reconstructor", "_reconstruct", "subimport"),
        *("_make_skeleton_class", "_make_skeleton_enum", "_make_function", "_class_setstate", "_function_setstate"),
    }
)
_RAYS = os.path.join("ray", "_private", "serialization.py")
_RAYS_CODE = os.path.join("ray", "_private", "function_manager.py")  # functions and actor classes come in there
_SAID = (AttributeError, TypeError, ImportError)
_ANOTHERS = "RayTaskError"


@dataclass(frozen=True)
class Arrival:
    """The modules that an error may be about, and whether it came while something was unpickled."""

    modules: tuple[str, ...] = ()
    unpickled: bool = False


def arrival_of(error: BaseException) -> Arrival:
    """Of an exception and of what led to it; nothing, where a version is no likely reason."""
    found: dict[str, None] = {}
    unpickled = False
    for each in errors_of(error):
        frames = [frame for frame, _ in places_of(each.__traceback__)]
        inside = _inside(frames)
        arrived = bool(inside) or _is_told(each, frames)
        unpickled = unpickled or arrived
        if arrived or isinstance(each, _SAID):
            found |= dict.fromkeys(_modules(each, inside, frames[:1]))
    return Arrival(tuple(name for name in found if name)[:MOST], unpickled)


def errors_of(error: BaseException) -> Iterator[BaseException]:
    """Those of this process; Ray keeps what an object could not be unpickled for in an error of its own."""
    for _, each in chain_of(error):
        if _ANOTHERS not in (kind.__name__ for kind in type(each).__mro__):
            yield each
            kept = getattr(each, "__dict__", {}).get("client_exc")
            if isinstance(kept, BaseException):
                yield from (inner for _, inner in chain_of(kept))


def _inside(frames: list[FrameType]) -> list[FrameType]:
    """The frames, innermost first, from the outermost one that unpickles."""
    marks = [index for index, each in enumerate(frames) if _unpickles(each)]
    return frames[: marks[-1] + 1] if marks else []


def _unpickles(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_name in UNPICKLING:
        return True
    name, file = code.co_name.lstrip("_"), code.co_filename
    return name.startswith("deserialize") and file.endswith(_RAYS)


def _is_told(error: BaseException, frames: list[FrameType]) -> bool:
    """Whether the words alone say so: those of `pickle`, whose own code is C; and Ray's, of a function or an actor's
    class that it could not unpickle, raised where that is called.
    """
    if any("Can't get attribute" in text for text in _texts(error)):
        return True
    return type(error) is RuntimeError and bool(frames) and frames[0].f_code.co_filename.endswith(_RAYS_CODE)


def _texts(error: BaseException) -> list[str]:
    return [each for each in error.args[:1] if type(each) is str]


def _modules(error: BaseException, inside: list[FrameType], innermost: list[FrameType]) -> Iterator[str]:
    for text in _texts(error):
        yield from (name for groups in NAMED.findall(text) for name in groups)
        for frame in innermost if isinstance(error, TypeError) else ():
            yield from _named_in(text, frame)
    if isinstance(error, ImportError):
        yield error.name or ""
    if isinstance(error, AttributeError) and error.name is not None:  # pickle's own says neither
        yield from _of_value(error.obj)
    yield from (str(frame.f_globals.get("__name__", "")) for frame in inside or innermost)
    for frame in inside:
        if frame.f_code.co_varnames[:1] == ("self",):
            yield from _of_value(frame.f_locals.get("self"))


def _of_value(value: Any) -> Iterator[str]:
    """The modules of its class and of what that is made of; of a class or a module its own."""
    if issubclass(type(value), ModuleType):
        yield str(vars(value).get("__name__", ""))
        return
    kind = value if issubclass(type(value), type) else type(value)
    yield from map(_home, type.__dict__["__mro__"].__get__(kind))


def _named_in(text: str, frame: FrameType) -> Iterator[str]:
    """The modules of the classes and functions that a message names, as far as the frame has them."""
    words = {word for groups in SUBJECTS.findall(text) for name in groups for word in name.split(".") if word}
    known = {name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}
    for name, value in {**known, **frame.f_locals}.items():
        inner = vars(value) if issubclass(type(value), ModuleType) else {name: value}
        yield from (_home(inner[each]) for each in sorted(words & inner.keys()))
        if type(value).__name__ in words:
            yield from _of_value(value)


def _home(value: Any) -> str:
    """Where a class or a function is from."""
    if issubclass(type(value), type):
        return str(type.__getattribute__(value, "__module__"))
    return str(value.__module__) if type(value) is FunctionType else ""
