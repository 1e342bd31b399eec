"""Processes of environments end with who has begun them, whatever they are at: the kernel sees to it.

Reading the end of a line takes a process that runs Python; one that hangs in a step, in C, or in its file does not
read. Standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket

_SET_DEATH_SIGNAL = 1  # of prctl


def with_parent(parent: int) -> None:
    """This process at the end of `parent`'s thread that began it. Its own children are not meant."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # Linux
        prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(0)


def group_with(line: socket.socket) -> None:
    """This process's group, when the last process leaves that has the other end of `line`; nothing is sent over it.

    Not the parent's death signal: that comes with the thread that began this process, and threads may end earlier.
    """
    if hasattr(fcntl, "F_SETSIG"):  # Linux
        fcntl.fcntl(line, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([line], [], [], 0)[0]:  # it has left before that
        os.killpg(0, signal.SIGKILL)
