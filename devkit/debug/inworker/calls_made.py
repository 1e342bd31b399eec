"""Which calls of actors and tasks this process has made of late, and where: Ray tells of them late, or not at all.

Of each no more is kept than names and numbers, so that nothing lives longer by it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .imports import on_import
from .passing import unframed
from .sources import is_users
from .stacks import OURS

MOST = 2000  # calls that are kept, the last ones
TASK_BYTES = 24  # of an object's id, which begins with that of its task
_MARK = "__devkit_calls__"
# What lies between a call and who makes it, in Ray's folder; other files of Ray's make calls of their own.
_PLUMBING = ("actor.py", "remote_function.py", "_private", os.path.join("util", "tracing"))


class Called(NamedTuple):
    """One call."""

    name: str  # "Saver.save"; of a task, its function's
    time: float  # on the clock that never goes back
    code: CodeType  # from where
    line: int
    by: bytes  # the task that made it; empty in a driver
    attempt: int
    descriptor: Any  # Ray's, of the method or function


Asked = Callable[[Any, Called, Any, Any], None]  # the reference, the call, its arguments and those by name
Passed = Callable[[list[Any]], None]

_made: dict[bytes, Called] = {}  # by the id of its task
_listeners: list[tuple[Asked, Passed]] = []  # at most one
_plumbing: tuple[str, ...] = ()
_rays = ""


def watch(*, driver: bool) -> None:
    """Notes each call from now on; in a worker with the task that makes it."""
    by = _nobody if driver else _current
    on_import("ray.actor", lambda module: _watch_actors(module, by))
    on_import("ray.remote_function", lambda module: _watch_tasks(module, by))


def _watch_actors(module: Any, by: Callable[[], tuple[bytes, int]]) -> None:
    original = getattr(module.ActorHandle, "_actor_method_call", None)
    if original is None or hasattr(original, _MARK):
        return
    _learn_folders(module)

    def call(self: Any, method_name: str, *arguments: Any, **options: Any) -> Any:
        try:
            references = original(self, method_name, *arguments, **options)
        except BaseException as error:
            unframed(error)
            raise
        try:
            descriptor = self._ray_function_descriptor[method_name]
            made = _note(references, f"{descriptor.class_name.rpartition('.')[2]}.{method_name}", descriptor, by)
            if _listeners:
                _tell(references, made, arguments, options)
        except Exception:  # noqa: BLE001 - of another language, or another Ray's: the call is made all the same
            pass
        return references

    setattr(call, _MARK, True)
    module.ActorHandle._actor_method_call = call


def _watch_tasks(module: Any, by: Callable[[], tuple[bytes, int]]) -> None:
    original = getattr(module.RemoteFunction, "_remote", None)
    if original is None or hasattr(original, _MARK):
        return
    _learn_folders(module)

    def remote(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            references = original(self, *arguments, **options)
        except BaseException as error:
            unframed(error)
            raise
        try:
            name = str(self._function_name).rpartition(".")[2]
            made = _note(references, name, self._function_descriptor, by)
            if _listeners:
                _tell(references, made, arguments, options)
        except Exception:  # noqa: BLE001 - as above
            pass
        return references

    setattr(remote, _MARK, True)
    module.RemoteFunction._remote = remote


def _learn_folders(module: Any) -> None:
    global _plumbing, _rays
    _rays = os.path.dirname(module.__file__) + os.sep
    _plumbing = (*(_rays + each for each in _PLUMBING), OURS)


def listen(asked: Asked, passed: Passed) -> None:
    """Tells of each call that the program makes, and of what is passed to any."""
    _listeners[:] = [(asked, passed)]


def _tell(references: Any, made: Called | None, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """`arguments` and `options` are those of Ray's functions, which take the program's own as a list and a dict."""
    given: Any = arguments[0] if arguments else options.get("args")
    named: Any = arguments[1] if len(arguments) > 1 else options.get("kwargs")
    tell_passed(given, named)
    for asked, _ in _listeners:
        if made is not None and type(references) is not list and not hasattr(references, "_generator_ref"):
            asked(references, made, given or (), named or {})


def tell_passed(arguments: Any, named: Any) -> None:
    """What the program gives to a call, or to an actor that it makes."""
    for _, passed in _listeners:
        passed([*(arguments or ()), *(named or {}).values()])


def _note(references: Any, name: str, descriptor: Any, by: Callable[[], tuple[bytes, int]]) -> Called | None:
    first = references[0] if type(references) is list else references
    first = getattr(first, "_generator_ref", first)
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_plumbing):
        frame = frame.f_back
    if first is None or frame is None or frame.f_code.co_filename.startswith(_rays):
        return None  # without a result, or Ray's own
    if len(_made) >= MOST:
        _made.pop(next(iter(_made)), None)
    made = Called(name, time.monotonic(), frame.f_code, frame.f_lineno or 0, *by(), descriptor)
    _made[first.binary()[:TASK_BYTES]] = made
    return made


def _nobody() -> tuple[bytes, int]:
    return b"", 0


def _current() -> tuple[bytes, int]:
    core: Any = sys.modules["ray._private.worker"].global_worker.core_worker
    return core.get_current_task_id().binary(), int(core.get_current_task_attempt_number())


def of_task(task_id: bytes) -> Called | None:
    """The call by which a task of this id was made."""
    return _made.get(task_id)


def every() -> list[Called]:
    """The last ones, the oldest first."""
    return list(_made.values())


def by_task(task_id: bytes, attempt: int) -> list[Called]:
    """Those that a try of a task has made, the oldest first, as far as they are kept."""
    return [each for each in list(_made.values()) if each.by == task_id and each.attempt == attempt]


def at_least(count: int) -> str:
    """What is said before a number of calls: of so many some may be kept no more.

    >>> at_least(3), at_least(MOST)
    ('', 'at least ')
    """
    return "at least " if count >= MOST // 2 else ""


def place(call: Called) -> str:
    """`a.py:3 in main`, where that is the program's own."""
    code = call.code
    own = is_users(code.co_filename)
    return f"{os.path.basename(code.co_filename)}:{call.line} in {code.co_qualname}" if own else ""


__all__ = ["Called", "at_least", "by_task", "every", "listen", "of_task", "place", "tell_passed", "watch"]
