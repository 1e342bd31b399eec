"""While somebody debugs, waiting is no error: time-outs that would kill a run beside a stopped rank become a day.

They are raised when a process group is made, not at the stop: an operation under way keeps the limit it began with.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from .imports import on_import

DAY = timedelta(days=1)
# Meeting the others is different: a peer that died before it came is noticed by this time-out alone.
MEETING = timedelta(hours=1)

SECONDS = str(int(DAY.total_seconds()))
ENVIRONMENT = {
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": SECONDS,  # else the monitor aborts the process: 8 minutes
    "RAY_CGRAPH_get_timeout": SECONDS,  # compiled graphs of Ray, which vLLM uses: 300 s
    "RAY_CGRAPH_submit_timeout": SECONDS,
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": SECONDS,
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": SECONDS,
    "VLLM_RPC_TIMEOUT": SECONDS + "000",  # milliseconds
}

# Every way to make a group ends in one of the first three: `init_process_group`, `new_group`, device meshes, and what
# sglang, vLLM and verl copied from torch to have several default groups.
_RAISED = ("_new_process_group_helper", "_store_based_barrier", "split_group", "monitored_barrier", "_set_pg_timeout")

_MARK = "__devkit_raised__"
_TRAIN_LIMIT = "_worker_health_check_timeout_s"


def install() -> None:
    """Before torch.distributed is imported, or after; a process group that exists already keeps its limit."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    on_import("torch.distributed.distributed_c10d", _raise_in_torch)
    on_import("sglang.srt.server_args", _raise_in_sglang)
    on_import("ray.train.v2._internal.execution.worker_group.worker_group", _raise_in_train)


def _raise_in_torch(module: Any) -> None:
    for name in _RAISED:
        _wrap(module, name, DAY)
    _wrap(module, "rendezvous", MEETING)


def _raise_in_train(module: Any) -> None:
    """Beside a stopped thread others answer the controller, but not on a busy machine, or while Python's lock is held.

    A worker that has died is found out without this limit: asking it fails.
    """
    group = module.WorkerGroup
    original = group.__init__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        limit = getattr(self, _TRAIN_LIMIT, None)
        if isinstance(limit, float):  # else another Ray
            setattr(self, _TRAIN_LIMIT, max(limit, DAY.total_seconds()))

    setattr(init, _MARK, True)
    group.__init__ = init


def _wrap(module: Any, name: str, least: timedelta) -> None:
    original = getattr(module, name, None)
    if original is None or hasattr(original, _MARK):  # another torch, or here before
        return
    wrapper = _with_time(original, least)
    setattr(wrapper, _MARK, True)
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
    import inspect

    parameters = list(inspect.signature(original).parameters)
    position = parameters.index("timeout") if "timeout" in parameters else len(parameters)

    @functools.wraps(original)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        if position < len(arguments):
            arguments = (*arguments[:position], longer(arguments[position], least), *arguments[position + 1 :])
        else:
            named["timeout"] = longer(named.get("timeout"), least)
        _raise_in_options(parameters, arguments, named, least)
        return original(*arguments, **named)

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


def _raise_in_sglang(module: Any) -> None:
    """Its scheduler kills the engine when a forward pass takes longer than this."""
    arguments = module.ServerArgs
    original = arguments.__post_init__

    @functools.wraps(original)
    def wrapper(self: Any) -> None:
        original(self)
        if getattr(self, "watchdog_timeout", None) is not None:
            self.watchdog_timeout = longer(self.watchdog_timeout, DAY)

    arguments.__post_init__ = wrapper
