"""The living descendants of this process, for whoever looks for the cause of a hang: a child may hold it.

Forked ones are asked at the signal for which their fork prepared (`forked.py`). One that stands in a call of the system
which a signal would cut short, and that does not run Python, is looked at from outside: by py-spy, else by the dump
that Python itself writes at a signal which cuts nothing short. Of other programs the kernel tells what they wait for.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import connected, costs, dumping, forked, kernel_view, offering
from .locks import holders
from .stacks import PySpyError, Thread, with_statements

MOST = 64  # of one process
MOST_SEEN = 8  # of those that are looked at from outside
ANSWER_SECONDS = 1.0
SEEN_SECONDS = 2.0  # for all that are looked at from outside
LOOK_SECONDS = 0.01
AGE_SECONDS = 0.5  # a younger one may be about to execute another program
LOOKS_FOR_HOLDERS = 25
MOST_BYTES = 1 << 24  # of all answers
COMMAND = 200  # characters
# Calls of the system that every program expects to be cut short, or that Python takes up again. "": it runs.
SAFE_CALLS = frozenset(
    {
        *("", "futex", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"),
        *("nanosleep", "clock_nanosleep", "wait4", "waitid"),
    }
)
_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "py-spy")  # of nobody's interest

Document = dict[str, Any]

_asking = threading.Lock()  # one asker at a time: all children answer into one file


def _reset() -> None:
    global _asking
    _asking = threading.Lock()


os.register_at_fork(after_in_child=_reset)


def look() -> list[Document]:
    """[{"pid", "command", "facts"}]: `facts` as of any process, and `command` is empty for one that was forked."""
    found = list(_family(os.getpid()))
    with _asking:
        forks = [pid for pid in found if _is_fork(pid)]
        answers = _ask([pid for pid in forks if _hears(pid)])
        for pid, facts in answers.items():
            costs.note_asked(pid, *facts.pop("costs", (0.0, 0)))
        end = time.monotonic() + SEEN_SECONDS
        mute = [pid for pid in forks if pid not in answers][:MOST_SEEN]
        answers.update({pid: _seen(pid, end) for pid in mute})
    _note_holders(answers.values())
    return [each for pid in found if (each := _document(pid, pid in forks, answers.get(pid))) is not None]


def count() -> int:
    return sum(1 for _ in _family(os.getpid()))


def _document(pid: int, is_fork: bool, facts: Document | None) -> Document | None:
    process = kernel_view.process(pid)
    if process is None or process["state"] in "ZX":
        return None
    command = "" if is_fork else _command(pid)
    if not is_fork and (not command or any(word in command for word in _OWN)):
        return None
    known = facts or {"time": time.time(), "threads": [], "forked": {"at": None} if is_fork else None}
    outside = {"process": process, "main": kernel_view.thread(pid, pid), "connected": connected.of_process(pid)}
    if age := _age(pid):
        known = {**known, "age": round(age, 2)}
    return {"pid": pid, "command": command, "facts": {**known, **outside}}


# ---- who there is


def _family(pid: int) -> Iterator[int]:
    """Descendants, nearest first; neither Ray's daemons, nor what is below a process with an agent of its own."""
    waiting, count = [pid], 0
    while waiting:
        for child in _children(waiting.pop(0)):
            if kernel_view.is_rays(str(child)) or dumping.find(child) is not None:
                continue
            waiting.append(child)
            count += 1
            yield child
            if count == MOST:
                return


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())


def _is_fork(pid: int) -> bool:
    """Whether it has what this process gave to it and has executed no other program since: that closes our file."""
    return _has(pid, forked.box)


def _has(pid: int, file: int) -> bool:
    """Whether this file of ours is open there under the same number."""
    if file < 0:
        return False
    with suppress(OSError):
        return os.path.samestat(os.stat(f"/proc/{pid}/fd/{file}"), os.fstat(file))
    return False


def _command(pid: int) -> str:
    from .redaction import scrub_command

    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        return " ".join(scrub_command(words.rstrip("\0").split("\0"), COMMAND).split())  # a program may be an argument
    return ""


# ---- asked


def _hears(pid: int) -> bool:
    """Whether our handler is there, and the signal harms nothing."""
    call = kernel_view.thread(pid, pid).get("wait", {}).get("call", "")
    caught, blocked = offering.signals(pid, "SigCgt"), offering.signals(pid, "SigBlk")
    return forked.number in caught - blocked and call in SAFE_CALLS and _age(pid) > AGE_SECONDS


def _age(pid: int) -> float:
    """Seconds since it was forked; 0 where that is not known."""
    with suppress(OSError, IndexError, ValueError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _ask(pids: list[int]) -> dict[int, Document]:
    """What they tell of themselves, those that do so in time."""
    if not pids:
        return {}
    began = time.time()
    os.ftruncate(forked.box, 0)
    for pid in pids:
        _send(pid, forked.number)
    answers: dict[int, Document] = {}
    end = time.monotonic() + ANSWER_SECONDS
    while len(answers) < len(pids) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        answers = {pid: facts for pid, facts in _answers(began) if pid in pids}
    return answers


def _send(pid: int, number: int) -> None:
    with suppress(OSError):  # it has ended
        process = os.pidfd_open(pid)  # its number may go to another process at any time
        try:
            if _is_fork(pid) and number in offering.signals(pid, "SigCgt"):
                signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


def _answers(began: float) -> Iterator[tuple[int, Document]]:
    """Whole lines, without those that came late for somebody else."""
    size = os.fstat(forked.box).st_size
    for line in os.pread(forked.box, min(size, MOST_BYTES), 0).split(b"\n")[:-1]:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            answer = json.loads(line)
            if float(answer["facts"]["time"]) >= began and isinstance(answer["facts"]["threads"], list):
                yield int(answer["pid"]), answer["facts"]


# ---- looked at


def _seen(pid: int, end: float) -> Document:
    """From outside: its stacks, and what the kernel says of its main thread."""
    main = kernel_view.thread(pid, pid)  # before somebody stops it for a look
    threads, statements = _stacks(pid, end)
    for each in threads:
        if each["name"] == "MainThread":
            each.update(main)
    return {"time": time.time(), "threads": threads, "statements": statements, "forked": {"at": None}}


def _stacks(pid: int, end: float) -> tuple[list[Thread], list[Document]]:
    """And the statements at which it stands, where py-spy can look."""
    left = end - time.monotonic()
    if left <= 0:
        return [], []
    try:
        found, statements = with_statements(pid, timeout=left)
        # After a fork it may have no name.
        return ([{**found[0], "name": "MainThread"}] if len(found) == 1 else found), statements
    except PySpyError:  # there is none, or it may not look: Python's own dump needs nobody's leave
        return _dumped(pid), []


def _dumped(pid: int) -> list[Thread]:
    number, file = offering.inherited()
    if not number or not _has(pid, file) or number not in offering.signals(pid, "SigCgt") or _age(pid) < AGE_SECONDS:
        return []
    if len(os.listdir(f"/proc/{pid}/task")) > 1:  # the others' frames may change meanwhile
        return []
    with suppress(OSError, dumping.NoDumpError):
        return dumping.of_child(pid, number, file)
    return []


# ---- who held what


def _note_holders(answers: Any) -> None:
    """Which thread of ours holds what a child waits for and none of its own has: a fork copies a lock as it is."""
    orphans = [each for facts in answers for each in facts.get("locks") or () if each.get("holder") is None]
    if not orphans:
        return
    wanted = {each["lock"] for each in orphans}
    found: dict[str, Document] = {}
    for _ in range(LOOKS_FOR_HOLDERS):  # it may take it and give it back again and again
        found |= holders(wanted - set(found))
        if wanted <= set(found):
            break
        time.sleep(LOOK_SECONDS)
    for each in orphans:
        each["then"] = found.get(each["lock"])
