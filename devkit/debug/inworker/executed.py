"""What Ray executes for a call in this worker: a function of ours may run in place of each, around it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import noticeboard
from .imports import on_import

_COVERS = "__devkit_covers__"

Function = Callable[..., Any]
Cover = Callable[[Function, str, list[type]], Function]


def watch(name: str, cover: Cover) -> None:
    """In a worker: asks once for each task's function, and what Ray has around each method, what to run in its place.

    `cover` is given that, Ray's name for it, and the actor classes of the worker. Once by one name.
    """
    if noticeboard.is_connected():
        on_import("ray._private.function_manager", lambda module: _watch(module.FunctionActorManager, name, cover))


def _watch(manager: Any, name: str, cover: Cover) -> None:
    original = getattr(manager, "get_execution_info", None)
    if original is None:
        return
    covers: dict[str, Cover] | None = getattr(original, _COVERS, None)
    if covers is None:
        covers = {}
        manager.get_execution_info = _covering(original, covers)
    covers.setdefault(name, cover)


def _covering(original: Function, covers: dict[str, Cover]) -> Function:
    """As `get_execution_info`, with what runs in the place of each function."""
    known: dict[int, tuple[Function, Function]] = {}  # by id: a function, and what runs in its place

    @functools.wraps(original)
    def get_execution_info(self: Any, *arguments: Any, **options: Any) -> Any:
        info = original(self, *arguments, **options)
        with suppress(Exception):  # another Ray's
            own = info.function
            if id(own) not in known:
                kinds = list(getattr(self, "_loaded_actor_classes", {}).values())
                known[id(own)] = (own, _covered(own, str(info.function_name), kinds, covers))
            covered = known[id(own)][1]
            return info if covered is own else info._replace(function=covered)
        return info

    setattr(get_execution_info, _COVERS, covers)
    return get_execution_info


def _covered(function: Function, name: str, kinds: list[type], covers: dict[str, Cover]) -> Function:
    for cover in list(covers.values()):
        with suppress(Exception):  # code of somebody's own make: it runs all the same
            function = cover(function, name, kinds)
    return function


__all__ = ["Cover", "Function", "watch"]
