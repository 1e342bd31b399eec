"""The Python stacks of a process that holds Python's lock, where there is no py-spy: Python's own dump, at a signal.

A worker whose C call keeps the lock runs no Python, so none of ours. What Python itself has for crashes needs no lock:
`faulthandler` writes all stacks when a signal comes. It goes into a file without a name that the worker holds open; the
kernel shows a neighbour of the same user how that file is called, which says who offers it and at which signal.

In somebody else's program this is done with care: the signal is one that nobody has a use for, no handler of the
program's is replaced, a call of the system goes on after it wherever the kernel can do that, and it is sent only while
one of our threads is seen to wait for the lock: what holds it is in C, and changes none of the frames.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .lastwords import dumped
from .offering import NAME, signals, status
from .stacks import NoPySpyError, PySpyError, Thread, program_part, py_spy

ASK_SECONDS = 3.0  # for a dump, from the look at the process to its last line
LOOK_SECONDS = 0.02
STILL_LOOKS = 3  # looks at which the file has not grown: the dump is whole
WAKES = 5  # who waits for Python's lock wakes up 200 times a second, and asks for it again
WAKES_SECONDS = 1.5  # on a machine that is busy it may get its core much later than it wakes
MOST = 1 << 22  # bytes of a dump: a hundred threads of a hundred frames
HOLDS = "a C call holds its Python lock (the GIL)"


class NoDumpError(RuntimeError):
    """Why there is none."""


@dataclass(frozen=True)
class Offer:
    """What a process offers: the signal, 0 for none; the thread of ours that waits when the lock is held; the file."""

    signal: int
    thread: int
    path: Path


def look(pid: int, native: bool, timeout: float) -> list[Thread]:
    """The stacks of a process that does not answer: by py-spy, else by its own dump. Raises PySpyError, NoDumpError."""
    try:
        return py_spy(pid, native, timeout)
    except PySpyError as error:
        if native:
            raise
        missing = error
    try:
        return ask(pid)
    except NoDumpError as error:
        advice = "install py-spy to see it" if isinstance(missing, NoPySpyError) else str(missing)
        raise NoDumpError(f"{error}; {advice}") from None


def ask(pid: int) -> list[Thread]:
    """The dump of a process whose lock is held. Raises NoDumpError."""
    try:
        process = os.pidfd_open(pid)  # its number may go to another process at any time
    except (OSError, AttributeError) as error:
        raise NoDumpError(f"it can't be reached: {error}") from None
    try:
        offered = find(pid)
        if offered is None:
            raise NoDumpError("it does not answer")
        if not is_held(pid, offered.thread):
            raise NoDumpError("it does not respond, and it is not waiting for a Python lock")
        if offered.signal not in signals(pid, "SigCgt"):
            raise NoDumpError(HOLDS)
        return _read(_dump(process, offered))
    except OSError as error:
        raise NoDumpError(f"{HOLDS}, and its dump can't be read: {error}") from None
    finally:
        os.close(process)


def of_child(pid: int, number: int, file: int) -> list[Thread]:
    """The dump of a child that this process has forked, into its own file. Raises NoDumpError, OSError."""
    process = os.pidfd_open(pid)
    try:
        return _read(_dump(process, Offer(number, 0, Path(f"/proc/{pid}/fd/{file}"))))
    finally:
        os.close(process)


def find(pid: int) -> Offer | None:
    """What it offers; None also for another user's process, and for a child that has what its parent offered."""
    folder = Path(f"/proc/{pid}/fd")
    with suppress(OSError):
        for each in folder.iterdir():
            with suppress(FileNotFoundError):  # closed just now
                found = NAME.fullmatch(os.readlink(each))
                if found and int(found["pid"]) == pid:
                    return Offer(int(found["signal"]), int(found["thread"]), each)
    return None


def is_held(pid: int, thread: int) -> bool:
    """Whether that thread of ours, which has just been asked something, waits for Python's lock."""
    before = _wakes(pid, thread)
    for _ in range(round(WAKES_SECONDS / LOOK_SECONDS)):
        time.sleep(LOOK_SECONDS)
        now = _wakes(pid, thread)
        if before is None or now is None:
            return False
        if now - before >= WAKES:
            return True
    return False


def _wakes(pid: int, thread: int) -> int | None:
    """How often a thread has given its core away by itself."""
    found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status(f"{pid}/task/{thread}"), re.MULTILINE)
    return int(found[1]) if found else None


def _dump(process: int, offered: Offer) -> str:
    """Sends the signal, and reads until nothing more comes; "" where that took too long. One asker at a time.

    Raises NoDumpError while another asker has the file.
    """
    import fcntl

    end = time.monotonic() + ASK_SECONDS
    with offered.path.open("r+b") as file:
        while not _taken(fcntl, file):
            if time.monotonic() > end:
                raise NoDumpError(f"{HOLDS}, and another tool is inspecting it right now")
            time.sleep(LOOK_SECONDS)
        file.truncate(0)
        signal.pidfd_send_signal(process, offered.signal)
        size = still = 0
        while still < STILL_LOOKS and time.monotonic() < end and not select.select([process], [], [], LOOK_SECONDS)[0]:
            size, before = os.fstat(file.fileno()).st_size, size
            still = still + 1 if size == before and size else 0
        return file.read(MOST).decode(errors="replace") if still == STILL_LOOKS else ""


def _taken(fcntl: Any, file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(text: str) -> list[Thread]:
    """The main thread's is the last stack of a dump, for Python has the newest thread first."""
    stacks = dumped(text)
    if not stacks:
        raise NoDumpError(f"{HOLDS}, and no dump came within {ASK_SECONDS:g} s")
    names = [f"thread {number}" for number in range(1, len(stacks))] + ["MainThread"]
    found = [program_part(name, frames) for name, (_, frames) in zip(names, stacks, strict=True)]
    return [thread for thread in reversed(found) if thread is not None]
