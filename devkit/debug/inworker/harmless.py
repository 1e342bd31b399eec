"""What Python calls while the program's code runs: what it raises would take the place of the program's exception.

At the very limit of recursion it is not even entered, and nothing can be done: what Python raises then is a
RecursionError as well, without the words of the program's own ("while pickling an object").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .hits import is_all_ours
from .passing import unframed
from .words import say


def harmless(look: Callable[..., Any]) -> Callable[..., Any]:
    """`look`, which raises nothing of its own. What a handler of a signal raises meanwhile is the program's."""

    def looks(*given: Any) -> Any:
        try:
            return look(*given)
        except RecursionError:  # the program has left no room for it
            return None
        except Exception as problem:  # keeps the program's own on its way
            if not is_all_ours(problem.__traceback__):
                unframed(problem)
                raise
            say(f"an exception of the program could not be looked at: {problem!r}")
            return None

    return looks


__all__ = ["harmless"]
