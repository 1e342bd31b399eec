"""A word at the start of each call of an actor, while somebody wants one.

The threads of an actor with `max_concurrency` are made by Ray's core: Python learns of them when a call begins, and
forgets what was set in them when it ends. So whoever traces threads has to be told at each call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .passing import unframed

MARK = "__devkit_enters__"
_Executor = Callable[..., Any]

_wanted: list[Callable[[], object]] = []  # at most one


def want(call: Callable[[], object]) -> None:
    """From now on, in the thread of each call before it begins; those of actors that are there already included."""
    _wanted[:] = [call]
    look()


def forget() -> None:
    _wanted.clear()


def look() -> None:
    """Covers what Ray has got to know since."""
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    known = getattr(getattr(worker, "function_actor_manager", None), "_function_execution_info", {})
    for name, info in list(known.items()) if _wanted else ():
        if getattr(info.function, "method", None) is not None and not hasattr(info.function, MARK):
            known[name] = info._replace(function=_telling(info.function))


def covered(executor: _Executor) -> _Executor:
    """What Ray is to call in place of this, for a method that it learns of now."""
    return _telling(executor) if _wanted else executor


def _telling(executor: _Executor) -> _Executor:
    @functools.wraps(executor)  # with what Ray asks of it: `name` and `method`
    def entering(*arguments: Any, **named: Any) -> Any:
        for call in _wanted:
            call()
        try:
            return executor(*arguments, **named)
        except BaseException as error:
            unframed(error)
            raise

    setattr(entering, MARK, True)
    return entering


__all__ = ["covered", "forget", "look", "want"]
