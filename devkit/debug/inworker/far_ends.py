"""Who has the other end of a pipe that a thread of this process waits on, whoever that is: a program without devkit,
or one whose own parent has ended, keeps a pipe open for as long as it lives. Linux only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from . import connected, kernel_view
from .ports import command

MOST = 3  # processes of one pipe
SECONDS = 0.3  # to look for them
_OTHER = {"r": "w", "w": "r"}

Document = dict[str, Any]


def of(wait: Document | None) -> Document | None:
    """What a thread waits in, as `kernel_view.thread` has it, with "far": [{"pid", "command", "orphan"}] of its pipes.

    A pipe of which this process has both ends is left out: it keeps that open itself. `orphan`: its parent has ended,
    so that whoever started it cannot end it any more.

    >>> of(None), of({"call": "futex"})
    (None, {'call': 'futex'})
    """
    inodes = (wait or {}).get("pipes") or ()
    own = connected.of_process()["pipes"] if inodes else {}
    wanted = {f"pipe:[{inode}]": _OTHER[own[inode]] for inode in inodes if own.get(inode) in _OTHER}
    found = list(_holders(wanted)) if wanted else []
    return {**wait, "far": found} if wait is not None and found else wait


def _holders(wanted: dict[str, str]) -> Iterator[Document]:
    end, count = time.monotonic() + SECONDS, 0
    for pid in sorted(int(each) for each in os.listdir("/proc") if each.isdigit()):
        if time.monotonic() > end or count == MOST:
            return
        if pid != os.getpid() and not kernel_view.is_rays(str(pid)) and _has(pid, wanted):
            count += 1
            yield {"pid": pid, "command": command(pid), "orphan": _is_orphan(pid)}


def _has(pid: int, wanted: dict[str, str]) -> bool:
    for number in connected.descriptors(pid):
        name = connected.link(pid, number)
        if name in wanted and wanted[name] in connected.mode(pid, number):
            return True
    return False


def _is_orphan(pid: int) -> bool:
    """An orphan goes to init, or to the raylet, which itself starts nothing but workers."""
    lines = kernel_view.text(f"/proc/{pid}/status").splitlines()
    parent = next((line.split()[1] for line in lines if line.startswith("PPid:")), "")
    is_worker = kernel_view.text(f"/proc/{pid}/cmdline").startswith("ray::")
    return parent == "1" or (kernel_view.is_rays(parent) and not is_worker)


__all__ = ["of"]
