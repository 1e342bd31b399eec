"""The CPU time that a process may use, where somebody has set a limit (`resource.RLIMIT_CPU`).

It counts for all that the process does, not for what it was set around, and the kernel ends whoever reaches it without
a word.
"""

from __future__ import annotations

import signal
import time
from typing import Any

AHEAD = 2.0  # seconds of CPU time: what may be used between a look and the end, beside what the clock says
CORES = 4  # that it may have used meanwhile

Document = dict[str, Any]


def pending() -> Document | None:
    """{"used", "limit"}, in seconds, of this process; None where it has no limit.

    Who handles SIGXCPU, which comes at the soft limit, goes on to the hard one.
    """
    try:
        import resource

        handled = signal.getsignal(signal.SIGXCPU) is not signal.SIG_DFL
        limit = resource.getrlimit(resource.RLIMIT_CPU)[1 if handled else 0]
    except (ImportError, OSError):
        return None
    return None if limit == resource.RLIM_INFINITY else {"used": round(time.process_time(), 1), "limit": limit}


def sentence(seen: Document | None, died: float) -> str:
    """Why a process died, as its last look shows that it was near its limit; else empty.

    >>> look = {"time": 99.0, "cpu": {"used": 7.1, "limit": 8}}
    >>> sentence(look, 100.0)
    'probably by the kernel, at the 8 s of CPU time that RLIMIT_CPU gives it: it had used 7.1 s 1.0 s before'
    >>> sentence({"time": 99.0, "cpu": {"used": 2.0, "limit": 60}}, 100.0), sentence({}, 100.0)
    ('', '')
    """
    known = (seen or {}).get("cpu")
    if not known or seen is None:
        return ""
    ago = max(0.0, died - float(seen["time"]))
    if known["used"] + ago * CORES + AHEAD < known["limit"]:
        return ""
    used = f"it had used {known['used']:g} s {ago:.1f} s before"
    return f"probably by the kernel, at the {known['limit']:g} s of CPU time that RLIMIT_CPU gives it: {used}"


__all__ = ["pending", "sentence"]
