"""Ray's core ends a process, with exit code 1, that asks it anything once it has begun to shut down.

Our threads run until the very end, so they ask it through here: `ray.shutdown` waits for what is being asked, and then
nothing is asked any more. An `ObjectRef` that is freed asks it, too, and one in a cycle is freed by whichever thread
allocates something when it is time to collect garbage: that has to wait until the core is gone.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# The most that `ray.shutdown` waits for us. What is asked takes milliseconds, and seconds on a machine that has no time
# for it; giving up sooner ended programs that had gone well with exit code 1.
SHUTDOWN_SECONDS = 20.0

_MARK = "__devkit_waits__"


class _Core:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_open = True
        self.before_end: Callable[[], object] | None = None


_core = _Core()


def _reset() -> None:
    """A forked child has none of its parent's threads, and a lock of ours or of Ray's core may be held by one of them.

    Nothing is asked of the core until the child calls `ray.init` itself.
    """
    _core.lock = threading.RLock()
    _core.before_end = None
    _core.is_open = False


os.register_at_fork(after_in_child=_reset)


@contextmanager
def asking() -> Iterator[bool]:
    """Whether Ray's core may be asked, for as long as the block lasts; it should be short.

    >>> with asking() as allowed:
    ...     allowed
    True
    """
    with _core.lock:
        yield _core.is_open


def at_end(call: Callable[[], object]) -> None:
    """Calls this before Ray ends in this process, while everything of it is still there. It must not raise."""
    _core.before_end = call


def _collect_no_garbage() -> None:
    """Until `ray.shutdown` lets go of the tables of the cluster, which it does when it has let go of the core."""
    tables = _tables()
    if tables is None or not gc.isenabled() or "disconnect" in vars(tables):
        return

    def disconnect() -> None:
        _collect_again()
        tables.disconnect()

    gc.disable()
    tables.disconnect = disconnect


def _collect_again() -> None:
    if (tables := _tables()) is not None and vars(tables).pop("disconnect", None) is not None:
        gc.enable()


def _tables() -> Any:
    return getattr(sys.modules.get("ray._private.state"), "state", None)


def watch(module: Any) -> None:
    """From now on, and again after each `ray.init`. `module` is `ray._private.worker`."""
    _core.is_open = True
    _collect_again()  # an end that did not come to its own
    original = getattr(module, "disconnect", None)
    if original is None or hasattr(original, _MARK):  # a child without Ray, or here before
        return

    def disconnect(*arguments: Any, **options: Any) -> Any:
        if _core.before_end is not None and _core.is_open:
            _core.before_end()
        lock = _core.lock
        held = lock.acquire(timeout=SHUTDOWN_SECONDS)
        _core.is_open = False
        if held:
            lock.release()
        _collect_no_garbage()
        return original(*arguments, **options)

    setattr(disconnect, _MARK, True)
    module.disconnect = disconnect
