"""Functions of libraries in whose place ours are are sent as before: by their names.

A function is pickled by its name if it is what its module has under that. Where another one has its place, it would be
sent by value, with all globals that it uses. Ray's own can't be: `from ray import get_actor`, used in a function that
goes to a worker, would end the program with "cannot pickle '_thread._local' object".
"""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import Any

from .imports import on_import
from .stacks import OURS

_MARK = "__devkit_by_reference__"
_PICKLERS = ("ray.cloudpickle.cloudpickle", "cloudpickle.cloudpickle")


def watch() -> None:
    """Looks at each function that is pickled."""
    for each in _PICKLERS:
        on_import(each, lambda module: _watch(module.Pickler))


def _watch(kind: Any) -> None:
    original = getattr(kind, "_function_reduce", None)
    if original is None or hasattr(original, _MARK):  # another version's, or here before
        return

    @functools.wraps(original)
    def _function_reduce(self: Any, function: Any) -> Any:
        place = _place(function)
        return original(self, function) if place is None else (getattr, place)

    setattr(_function_reduce, _MARK, True)
    kind._function_reduce = _function_reduce


def _place(function: Any) -> tuple[Any, str] | None:
    """The module, and the name there, of a function that is ours, or in whose place ours is; None of any other.

    A package may have what one of its modules has, in a form of its own.
    """
    name, home = function.__qualname__, str(function.__module__)
    for path in dict.fromkeys((home, home.partition(".")[0])):
        module = sys.modules.get(path)
        there = getattr(module, "__dict__", {}).get(name)
        if there is function and (path == home or not _is_ours(there)):
            return None  # that is how Python itself finds it, or none of our business
        if _is_ours(there) and _below(there) is _below(function):
            return module, name
    return None


def _is_ours(function: Any) -> bool:
    """By its text: marks are copied by whoever wraps it once more."""
    return type(function) is FunctionType and function.__code__.co_filename.startswith(OURS)


def _below(function: Any) -> Any:
    """The library's function that ours call."""
    while _is_ours(function) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


__all__ = ["watch"]
