"""Which threads a process has whose forks would lack them: a fork has the thread that forked, and no other.

What waits for one of the others waits for ever: a pool of OpenMP's that a product of matrices has begun, a loop of
asyncio in the background. Standard library only.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

# Libraries that begin threads when they are imported or first used, and begin none where they may have one. So a file
# that multiplies matrices while it is loaded has no pool yet; and environments, of which there are many, share cores.
ONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
_MISSED_BY_NOBODY = ("tqdm_monitor", "fsspecIO")  # the latter is begun anew by a fork that needs it
_DEBUGGER = "devkit."  # whose threads begin anew in a fork, too


def missed() -> str:
    """What of this process a fork would wait for in vain, in words; empty where nothing is known of."""
    others = {ident: frame for ident, frame in sys._current_frames().items() if ident != threading.main_thread().ident}
    names = {each.ident: each.name for each in threading.enumerate()}
    found = [names.get(ident, "nameless") for ident, frame in others.items() if not _is_debuggers(frame)]
    if named := [name for name in found if name not in _MISSED_BY_NOBODY]:
        return f"a thread of its own ({', '.join(named[:3])})"
    native = _threads() - 1 - len(others)
    if native <= 0:
        return ""
    if (torch := sys.modules.get("torch")) is not None and _has_pool(torch):
        return "torch's threads"
    return "" if native <= _of_arrow() else f"{native} threads of its libraries"


def _is_debuggers(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_DEBUGGER):
            return True
        frame = frame.f_back
    return False


def _threads() -> int:
    """Of this process. Where /proc is not, those that Python knows."""
    with suppress(OSError):
        return len(os.listdir("/proc/self/task"))
    return threading.active_count()


def _has_pool(torch: Any) -> bool:
    with suppress(Exception):  # half an import, another's module of that name
        return bool(torch.get_num_threads() > 1 or torch.cuda.is_initialized())
    return False


def _of_arrow() -> int:
    """pyarrow's own, which it makes anew in a fork: of its two pools, and of its allocator."""
    with suppress(Exception):  # not there, or half an import
        arrow = sys.modules["pyarrow"]
        return int(arrow.cpu_count()) + int(arrow.io_thread_count()) + 1
    return 0
