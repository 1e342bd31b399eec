"""Process groups of torch.distributed live a day, and meet for an hour, whoever made them.

Raised when a process group is made, not at the stop: an operation under way keeps the limit it began with.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from .lifting import MARK
from .passing import unframed

DAY = timedelta(days=1)
# Meeting the others is different: a peer that died before it came is noticed by this time-out alone.
MEETING = timedelta(hours=1)

# Every way to make a group ends in one of the first three: `init_process_group`, `new_group`, device meshes, and what
# sglang, vLLM and verl copied from torch to have several default groups.
_RAISED = ("_new_process_group_helper", "_store_based_barrier", "split_group", "monitored_barrier", "_set_pg_timeout")


def lift(module: Any) -> None:
    """`module` is torch.distributed.distributed_c10d; a group that exists already keeps its limit."""
    for name in _RAISED:
        _wrap(module, name, DAY)
    _wrap(module, "rendezvous", MEETING)


def _wrap(module: Any, name: str, least: timedelta) -> None:
    original = getattr(module, name, None)
    if original is None or hasattr(original, MARK):  # another torch, or here before
        return
    wrapper = _with_time(original, least)
    setattr(wrapper, MARK, True)
    for holder in [module, *_holders(name, original)]:
        setattr(holder, name, wrapper)


def _holders(name: str, original: Any) -> list[Any]:
    """The modules that copied the function before we came."""
    return [
        module
        for path, module in list(sys.modules.items())
        if path.startswith("torch.distributed") and vars(module).get(name) is original
    ]


def _with_time(original: Callable[..., Any], least: timedelta) -> Callable[..., Any]:
    parameters = list(inspect.signature(original).parameters)
    position = parameters.index("timeout") if "timeout" in parameters else len(parameters)

    @functools.wraps(original)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        if position < len(arguments):
            arguments = (*arguments[:position], longer(arguments[position], least), *arguments[position + 1 :])
        else:
            named["timeout"] = longer(named.get("timeout"), least)
        _raise_in_options(parameters, arguments, named, least)
        try:
            return original(*arguments, **named)
        except BaseException as error:
            unframed(error)
            raise

    return wrapper


def _raise_in_options(
    parameters: list[str], arguments: tuple[Any, ...], named: dict[str, Any], least: timedelta
) -> None:
    """The two other places that hold a limit: the store, where ranks exchange NCCL's id, and the backend's options."""
    given = {**dict(zip(parameters, arguments, strict=False)), **named}
    store = given.get("store")
    if store is not None and hasattr(store, "set_timeout") and type(store).__name__ != "Store":  # an empty stand-in
        store.set_timeout(max(store.timeout, least))
    for name in ("backend_options", "pg_options"):
        options: Any = given.get(name)
        if hasattr(options, "_timeout"):
            options._timeout = longer(options._timeout, least)


def longer(timeout: Any, least: timedelta) -> Any:
    """
    >>> longer(timedelta(seconds=4), DAY) == longer(None, DAY) == DAY
    True
    >>> longer(timedelta(days=3), DAY).days
    3
    >>> longer(2.5, DAY)
    86400.0
    """
    if timeout is None:
        return least
    if isinstance(timeout, timedelta):
        return max(timeout, least)
    return max(timeout, least.total_seconds()) if isinstance(timeout, (int, float)) else timeout
