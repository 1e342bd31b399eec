"""Which methods of this process's actor have been called: what they set is gone where Ray makes another of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .passing import unframed

KEPT = 20

_called: list[str] = []


def noting(executor: Callable[..., Any], name: str, on_new: Callable[[], object]) -> Callable[..., Any]:
    """As Ray's function around a method, which notes that it was called, once. `on_new` is called then."""

    @functools.wraps(executor)  # with what Ray asks of it: `name` and `method`
    def method(*arguments: Any, **named: Any) -> Any:
        if name not in _called and len(_called) < KEPT:
            _called.append(name)
            on_new()
        try:
            return executor(*arguments, **named)
        except BaseException as error:
            unframed(error)
            raise

    return method


def called() -> list[str]:
    """The methods that were called in this process's actor, in the order of their first calls."""
    return list(_called)


__all__ = ["called", "noting"]
