"""What a process offers to its neighbours for the time when a call into C holds Python's lock: see `dumping.py`.

A file without a name, which the kernel shows to processes of the same user. How it is called says who offers it, which
of our threads waits when the lock is held, and at which signal Python writes all stacks into it; 0 for none.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

NAME = re.compile(r"/memfd:devkit-stacks-(?P<signal>\d+)-(?P<pid>\d+)-(?P<thread>\d+) \(deleted\)")
TOP, BOTTOM = 55, 40  # signals that come into question: between those that libc and other runtimes have for themselves

_file = -1
_signal = 0
_pid = 0  # a forked child has all of this from its parent


def offer(at_a_signal: bool) -> None:
    """Once in each process, by the thread that hears what is asked. Without a signal it can only be looked at."""
    global _file, _signal, _pid
    if _pid == os.getpid() or not sys.platform.startswith("linux"):
        return
    withdraw()
    number = (_signal or free()) if at_a_signal else 0
    _pid, _file = os.getpid(), os.memfd_create(f"devkit-stacks-{number}-{os.getpid()}-{threading.get_native_id()}")
    if number:
        import faulthandler
        import fcntl

        fcntl.fcntl(_file, fcntl.F_SETFL, fcntl.fcntl(_file, fcntl.F_GETFL) | os.O_APPEND)
        faulthandler.register(number, file=_file, all_threads=True, chain=False)
        _signal = number


def look_again() -> None:
    """Withdraws what is offered if the program has taken our signal meanwhile."""
    if _file >= 0 and _signal and signal.getsignal(_signal) != signal.SIG_DFL:
        withdraw()


def withdraw() -> None:
    """Nobody sends the signal from now on. Its handler stays: what stands there may be the program's by now."""
    global _file
    number, _file = _file, -1
    with suppress(OSError):
        if number >= 0 and NAME.fullmatch(os.readlink(f"/proc/self/fd/{number}")):  # else the program has closed it
            os.close(number)


def inherited() -> tuple[int, int]:
    """The signal and the file that forked children have of this process; the signal is 0 where there is none."""
    return (_signal, _file) if _pid == os.getpid() and _file >= 0 else (0, -1)


def free(*, lowest: bool = False) -> int:
    """A signal that this process neither catches, ignores nor blocks, from the top or from the bottom; 0: none is."""
    taken = signals("self", "SigCgt") | signals("self", "SigIgn") | signals("self", "SigBlk")
    numbers = range(BOTTOM + 1, TOP + 1)
    free = (each for each in (numbers if lowest else reversed(numbers)) if each not in taken)
    return next((each for each in free if signal.SIGRTMIN < each < signal.SIGRTMAX), 0)


def signals(pid: int | str, mask: str) -> set[int]:
    """What a process does with signals, as the kernel has it; nothing of one that is not to be seen."""
    found = re.search(rf"^{mask}:\s*([0-9a-f]+)", status(pid), re.MULTILINE)
    bits = int(found[1], 16) if found else 0
    return {number for number in range(1, bits.bit_length() + 1) if bits >> (number - 1) & 1}


def status(process: int | str) -> str:
    try:
        return Path(f"/proc/{process}/status").read_text(errors="replace")
    except OSError:
        return ""
