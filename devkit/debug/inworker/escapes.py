"""What an error has come past, and why: a handler that does not take its kind; an event loop that runs already."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterable, Iterator
from typing import Any

from .expressions import look, tree_of, tries_of
from .insides import type_name
from .lineage import Place
from .sources import is_users
from .waits import is_async_actor

_RUNS_ALREADY = ("cannot be called from a running event loop", "This event loop is already running")
_NAMED = 2  # methods


def said(error: BaseException, places: Iterable[Place]) -> Iterator[str]:
    places = [each for each in places if is_users(each[0].f_code.co_filename)]
    if not isinstance(error, Exception):
        yield from _handlers(error, places)
    elif type(error) is RuntimeError and any(text in str(error) for text in _RUNS_ALREADY):
        yield from _loop(places)


# ---- a handler


def _handlers(error: BaseException, places: Iterable[Place]) -> Iterator[str]:
    """The innermost `except Exception` around a line that it went through."""
    names = {each.__name__ for each in type(error).__mro__}
    for frame, line in places:
        _, tree = tree_of(frame.f_code.co_filename)
        first = frame.f_code.co_firstlineno  # what is around the function was left before it was called
        around = [each for each in tries_of(tree) if each.lineno >= first and _holds(each, line)] if tree else []
        for tried in sorted(around, key=lambda each: -each.lineno):
            kinds = [(handler, set(_kinds(handler))) for handler in tried.handlers]
            if any(not found or found & names for _, found in kinds):
                return  # a handler takes it, and may have raised it again
            lets = next((handler for handler, found in kinds if "Exception" in found), None)
            if lets is not None:
                at = f"{os.path.basename(frame.f_code.co_filename)}:{lets.lineno}"
                yield f"{type_name(type(error))} is no Exception: the `except Exception` at {at} lets it pass"
                return


def _holds(tried: ast.Try | ast.TryStar, line: int) -> bool:
    return tried.body[0].lineno <= line <= (tried.body[-1].end_lineno or 0)


def _kinds(handler: ast.ExceptHandler) -> Iterator[str]:
    """The last parts of their names; none of a bare `except`, which takes everything."""
    listed = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    for each in listed:
        if isinstance(each, ast.Name | ast.Attribute):
            yield each.id if isinstance(each, ast.Name) else each.attr
        elif each is not None:
            yield "BaseException"  # whatever it is: it may take this one


# ---- a loop


def _loop(places: list[Place]) -> Iterator[str]:
    """Of a plain method of an async actor, which Ray runs in the actor's event loop, since another method is async."""
    frame = places[-1][0] if places else None  # of the method that was called
    if frame is None or frame.f_code.co_flags & inspect.CO_COROUTINE or not is_async_actor():
        return
    owner: Any = look(ast.Name("self", ast.Load()), frame)
    methods = [name for name, each in _methods(type(owner)) if _is_async(each)]
    method = dict(_methods(type(owner))).get(frame.f_code.co_name)
    if not methods or getattr(method, "__code__", None) is not frame.f_code:
        return
    name = frame.f_code.co_name
    named = ", ".join(methods[:_NAMED]) + (", ..." if len(methods) > _NAMED else "")
    yield (
        f"Ray runs every method of an actor that has an async one ({named}), {name} as well, in an event loop: make "
        f"{name} async and await there, or leave no method of the actor's class async"
    )


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for each in kind.__mro__:
        for name, value in vars(each).items():
            if name not in seen:
                seen.add(name)
                yield name, inspect.unwrap(value) if callable(value) else value


def _is_async(value: Any) -> bool:
    return inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)


__all__ = ["said"]
