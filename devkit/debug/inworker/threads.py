"""The debugger's own threads in somebody else's process: daemons whose troubles end with a line in its error log.

What fails in one of them is no crash of the program, and no business of the hooks that the program has set; nor do its
tracer and profiler see them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from . import quiet
from .words import Complaints

PREFIX = "devkit-"  # all of their names begin with it

_complaints = Complaints()


def start(run: Callable[[], object], name: str) -> threading.Thread:
    """Raises RuntimeError when the system gives no more threads."""
    assert name.startswith(PREFIX), name
    thread = quiet.Thread(lambda: _guarded(run, name), name)
    thread.start()
    return thread


def is_ours(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.name.startswith(PREFIX)


def _guarded(run: Callable[[], object], name: str) -> None:
    try:
        run()
    except Exception as error:  # noqa: BLE001 - it would reach the program's `threading.excepthook`; it is told
        _complaints.tell(f"the thread {name} ended", error)
