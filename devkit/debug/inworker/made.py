"""With which arguments this process's actor was made, and which call it is at: of neither does Ray keep anything."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import called_methods, entering
from .imports import on_import
from .passing import unframed

EXECUTOR = "actor_method_executor"  # Ray's function around each call of an actor's method
BUDGET = 0.005  # seconds for the values of one call

Document = dict[str, Any]
Call = tuple[Any, str, tuple[Any, ...], dict[str, Any]]  # function, its name, and what it is called with

_MARK = "__devkit_made__"


def watch(
    on_making: Callable[[Call], object], on_made: Callable[[], object], on_new: Callable[[], object] = lambda: None
) -> None:
    """Calls back before the actor of this worker is made, and when it is, and at the first call of each method. The
    arguments must not be kept for long.
    """
    name = "ray._private.function_manager"
    on_import(name, lambda module: _watch(module.FunctionActorManager, on_making, on_made, on_new))


def _watch(
    manager: Any,
    on_making: Callable[[Call], object],
    on_made: Callable[[], object],
    on_new: Callable[[], object],
) -> None:
    original = getattr(manager, "_make_actor_method_executor", None)
    if original is None or hasattr(original, _MARK):
        return

    def make(self: Any, method_name: str, method: Any) -> Any:
        executor = original(self, method_name, method)
        if method_name != "__init__":
            covered = entering.covered(executor)
            return covered if method_name.startswith("__") else called_methods.noting(covered, method_name, on_new)

        @functools.wraps(
            executor
        )  # with what Ray asks of it, `name` and `method`; and it counts as a function of Ray's
        def making(__ray_actor: Any, *arguments: Any, **named: Any) -> Any:
            on_making((method, type(__ray_actor).__name__, (None, *arguments), named))
            try:
                result = executor(__ray_actor, *arguments, **named)
            except BaseException as error:
                unframed(error)
                raise
            on_made()  # only now it may know its rank
            return result

        return making

    setattr(make, _MARK, True)
    manager._make_actor_method_executor = make


def current_call(frame: FrameType | None) -> Document | None:
    """The actor's method that runs in a stack, by Ray's own frame around it: to look into the program's would keep what
    it holds alive.
    """
    while frame is not None:
        if frame.f_code.co_name == EXECUTOR:
            inside = frame.f_locals
            arguments, named = inside.get("args", ()), inside.get("kwargs", {})
            # The actor itself is in no list of its arguments.
            return told((inside.get("method"), str(inside.get("method_name") or ""), (None, *arguments), named))
        frame = frame.f_back
    return None


def told(call: Call) -> Document:
    """{"name", "arguments": {name: value as JSON}}, of which no more is kept than is shown; secrets are hidden."""
    from .affordable import Showing
    from .values import SMALL

    function, name, arguments, named = call
    showing = Showing(BUDGET)
    pairs = _bound(function, arguments, named)
    return {"name": name, "arguments": {key: showing.of(key, value, SMALL) for key, value in pairs[: SMALL.items]}}


def _bound(function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[tuple[str, Any]]:
    """Each by the name that the function has for it; by its number where that is not known."""
    try:
        bound = inspect.signature(function).bind(*arguments, **named).arguments
    except (TypeError, ValueError):
        return [*((str(at), each) for at, each in enumerate(arguments) if at), *named.items()]
    return list(bound.items())[1:]
