"""What a worker that vanished left at the end of its error log: the dump that Python makes at a deadly signal."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from . import private

TAIL = 1 << 17  # bytes of the log that are read

_FATAL = re.compile(r"^(?:Fatal Python error: |Windows fatal exception: )(.+)$", re.MULTILINE)
_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z0-9]+) received")
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
_MEMORY = re.compile(r"std::bad_alloc|Cannot allocate memory|[Oo]ut of memory|OOM|MemoryError")


def lives(pid: int) -> bool:
    """Whether a process of this machine is there, and not merely waited for by its parent.

    >>> lives(os.getpid()), lives(2**30)
    (True, False)
    """
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # another user's, or a system without /proc
        return True


def last_words(path: str | os.PathLike[str], detail: str = "") -> dict[str, Any] | None:
    """The signal, the message and the stack (innermost frame first) of a process that died, as far as they are known.

    `detail` is what Ray says of its end, which tells of memory that ran out. None: nothing is known.
    """
    text = _tail(path)
    fatal = list(_FATAL.finditer(text))
    if fatal:
        return _of_dump(text, fatal[-1])
    signals = _SIGNAL.findall(text)
    if signals:  # Ray's own handler came so far, Python's did not
        return {"kind": "signal", "signal": signals[-1], "message": f"{signals[-1]} received", "frames": []}
    memory = _memory_line(text) or _memory_line(detail.partition("Some common causes")[0])
    return {"kind": "memory", "signal": "SIGKILL", "message": memory, "frames": []} if memory else None


def _of_dump(text: str, fatal: re.Match[str]) -> dict[str, Any]:
    message = fatal.group(1).strip()
    signals = _SIGNAL.findall(text[: fatal.start()])
    signal = _NAMES.get(message) or (signals[-1] if signals else "")
    memory = _memory_line(text[: fatal.end()][-4000:])
    return {
        "kind": "memory" if memory and signal in ("SIGABRT", "") else "signal",
        "signal": signal,
        "message": f"{message}: {memory}" if memory else message,
        "frames": _frames(text[fatal.end() :]),
    }


def _frames(text: str) -> list[dict[str, Any]]:
    """Those of the thread that died: with all threads dumped it is called `Current`, else it is alone."""
    stacks = dumped(text)
    own = [frames for head, frames in stacks if not head.startswith("Thread")]
    return own[0] if own else next((frames for _, frames in stacks), [])


def dumped(text: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """What each thread of a dump is called there, and its frames, the innermost first."""
    stacks: list[tuple[str, list[dict[str, Any]]]] = []
    for line in text.splitlines():
        if head := _STACK.match(line):
            stacks.append((head.group(1), []))
        elif stacks and (frame := _FRAME.match(line)):
            file, number, function = frame.groups()
            stacks[-1][1].append({"file": file, "line": int(number) if number.isdigit() else 0, "function": function})
    return stacks


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
