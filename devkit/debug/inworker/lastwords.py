"""What a worker that vanished left at the end of its error log: the dump that Python makes at a deadly signal."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from . import private

TAIL = 1 << 17  # bytes of the log that are read
LONGEST = 1000  # characters of what C++ said
ABORT = "SIGABRT"

_FATAL = re.compile(r"^(?:Fatal Python error: |Windows fatal exception: )(.+)$", re.MULTILINE)
_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z0-9]+) received(?: at time=(\d{9,11})\b)?")
_TIMER = re.compile(r"^Timeout \((\d+:\d\d:\d\d(?:\.\d+)?)\)!$", re.MULTILINE)  # of faulthandler
_STACK = re.compile(r"^(Stack|(?:Current )?[Tt]hread .*?) \(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_NAMES = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
# What C++ says before it aborts: the language's runtime, Ray's handler in its place, and checks of Ray, torch, glog.
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_UNCAUGHT = re.compile(
    r"terminate called after throwing an instance of '(?P<type>[^'\n]{1,300})'(?:\s+what\(\):\s+(?P<what>[^\n]*))?"
    r"|Unhandled exception: (?P<rays>\S{1,300}?)\. what\(\): (?P<said>[^\n]*)"
    r"|(?P<check>\bCheck failed: [^\n]*)"
)
_TRACE = re.compile(r"\s/\S+\.so[.\d]*\(\S*\) \[0x.*")  # of Ray's, in the same line
_NESTED = re.compile(r"(\d{1,3})(.*)")
_MEMORY = re.compile(r"std::bad_alloc|Cannot allocate memory|\b[Oo]ut of memory\b|\bOOM\b|MemoryError\b|OutOfMemory")
_OF_DUMP = re.compile(  # what stands behind the head of a dump, and is of it
    r"\s*$|  |Extension modules: |(?:Stack|(?:Current )?[Tt]hread )|<no Python frame>|PC: @"
    r"|\[[^\]]* [EFWI] \d+ \d+\] "
)
NEAR_END = 2000  # characters of a log


def lives(pid: int) -> bool:
    """Whether a process of this machine is there, and not merely waited for by its parent.

    >>> lives(os.getpid()), lives(2**30)
    (True, False)
    """
    try:
        private.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # another user's, or a system without /proc
        return True


def last_words(path: str | os.PathLike[str], detail: str = "") -> dict[str, Any] | None:
    """The signal, the message and the stack (innermost frame first) of a process that died, as far as they are known.

    `detail` is what Ray says of its end, which tells of memory that ran out. None: nothing is known. With `at`, in
    seconds since the epoch, where the log says when the signal came; with `went_on` where it has more behind that. What
    a log says of memory is no more than a `hint`: a program prints that of what it has got over, too.
    """
    text = _tail(path)
    fatal = list(_FATAL.finditer(text))
    if fatal:
        return _of_dump(text, fatal[-1])
    if timed_out := _of_timer(text):
        return timed_out
    signals = list(_SIGNAL.finditer(text))
    if signals:  # Ray's own handler came so far, Python's did not
        name, behind = signals[-1][1], text[signals[-1].end() :].partition("\n")[2]
        said = (said_by_cpp(text) if name == ABORT else "") or f"{name} received"
        return {"kind": "signal", "signal": name, "message": said, "frames": [], **_when(signals[-1], behind)}
    if memory := _memory_line(detail.partition("Some common causes")[0]):
        return {"kind": "memory", "signal": "SIGKILL", "message": memory, "frames": []}
    hint = _memory_line(text[-NEAR_END:])
    return {"kind": "memory", "signal": "", "message": "", "frames": [], "hint": hint} if hint else None


def _of_dump(text: str, fatal: re.Match[str]) -> dict[str, Any]:
    message = fatal.group(1).strip()
    signals = list(_SIGNAL.finditer(text[: fatal.start()]))
    signal = _NAMES.get(message) or (signals[-1][1] if signals else "")
    said = said_by_cpp(text[: fatal.start()]) if signal == ABORT else ""
    memory = _memory_line(said or message)
    hint = "" if memory or said or signal not in (ABORT, "") else _memory_line(text[: fatal.start()][-NEAR_END:])
    frames, is_own = frames_of_dump(text[fatal.end() :])
    return {
        "kind": "memory" if memory and signal in (ABORT, "") else "signal",
        "signal": signal,
        "message": said or message,
        "frames": frames,
        **_when(signals[-1] if signals else None, text[fatal.end() :]),
        **({} if is_own else {"elsewhere": True}),
        **({"hint": hint} if hint else {}),
    }


def _of_timer(text: str) -> dict[str, Any] | None:
    """The dump of a timer of faulthandler's, if nothing comes behind it: with `exit=True` it ends the process."""
    timers = list(_TIMER.finditer(text))
    behind = text[timers[-1].end() :] if timers else ""
    if not timers or _when(None, behind):
        return None
    frames, _ = frames_of_dump(behind)
    said = (
        f"its log ends with the dump of faulthandler.dump_traceback_later, called {timers[-1][1]} before, not cancelled"
    )
    return {"kind": "signal", "signal": "", "message": said, "frames": frames}


def _when(signal: re.Match[str] | None, behind: str) -> dict[str, Any]:
    """When a signal came, if that is said; and whether who wrote of it wrote on, as who outlives a child does."""
    at = {"at": int(signal[2])} if signal is not None and signal[2] else {}
    went_on = any(not _OF_DUMP.match(line) for line in behind.splitlines())
    return {**at, **({"went_on": True} if went_on else {})}


def signal_of(message: str) -> str:
    """
    >>> signal_of("Segmentation fault"), signal_of("deadlock")
    ('SIGSEGV', '')
    """
    return _NAMES.get(message.strip(), "")


def said_by_cpp(text: str) -> str:
    """What C++ wrote last, before it gave up: the exception that nobody caught, the check that failed; or nothing.

    >>> said_by_cpp("terminate called after throwing an instance of 'std::runtime_error'\\n  what():  no device\\n")
    'std::runtime_error: no device'
    >>> said_by_cpp("logging.cc:118: Unhandled exception: N4gloo8MismatchE. what(): 16 vs 14 /v/r.so(+0x1) [0x7f] f()")
    'gloo::Mismatch: 16 vs 14'
    >>> said_by_cpp("gcs.cc:3:  Check failed: node.alive() it is gone"), said_by_cpp("fine")
    ('Check failed: node.alive() it is gone', '')
    """
    all_found = list(_UNCAUGHT.finditer(text))
    if not all_found:
        return ""
    found = all_found[-1]
    kind, what = demangled(found["type"] or found["rays"] or ""), found["what"] or found["said"] or found["check"] or ""
    return ": ".join(filter(None, (kind, _TRACE.sub("", what).strip())))[:LONGEST]


def demangled(name: str) -> str:
    """A C++ type as its source calls it, where that is easy.

    >>> demangled("N4gloo13EnforceNotMetE"), demangled("St13runtime_error"), demangled("std::bad_alloc")
    ('gloo::EnforceNotMet', 'std::runtime_error', 'std::bad_alloc')
    """
    rest = name[1:-1] if name.startswith("N") and name.endswith("E") else name
    parts, rest = (["std"], rest[2:]) if rest.startswith("St") else ([], rest)
    while found := _NESTED.match(rest):
        size = int(found[1])
        parts.append(found[2][:size])
        rest = found[2][size:]
    return "::".join(parts) if parts and not rest else name


def frames_of_dump(text: str) -> tuple[list[dict[str, Any]], bool]:
    """Those of the thread that died, innermost first; of one that runs no Python, those of the main thread and False.

    With all threads dumped the one that died is called `Current`, else it is alone; the main thread comes last.
    """
    stacks = dumped(text)
    own = [frames for head, frames in stacks if not head.startswith("Thread")]
    return (own[0], True) if own else (stacks[-1][1], False) if stacks else ([], True)


def dumped(text: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """What each thread of a dump is called there, and its frames, the innermost first."""
    stacks: list[tuple[str, list[dict[str, Any]]]] = []
    for line in text.splitlines():
        if head := _STACK.match(line):
            stacks.append((head.group(1), []))
        elif stacks and (frame := _FRAME.match(line)):
            file, number, function = (_ESCAPED.sub(_unescaped, each) for each in frame.groups())
            stacks[-1][1].append({"file": file, "line": int(number) if number.isdigit() else 0, "function": function})
    return stacks


def _unescaped(found: re.Match[str]) -> str:
    """What Python's dump has written in ASCII.

    >>> _ESCAPED.sub(_unescaped, r"/home/sch\\xf6n/\\u5927.py")
    '/home/schön/大.py'
    """
    number = int(found[1] or found[2] or found[3], 16)
    return chr(number) if number <= sys.maxunicode else found[0]


def _memory_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if _MEMORY.search(line)]
    return lines[-1][:500] if lines else ""


def _tail(path: str | os.PathLike[str]) -> str:
    try:
        with private.reading(Path(path), own=0) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
