"""The processes that a Ray node cannot be without, watched while the node comes up.

`ray start` itself waits half a minute and longer for a raylet that has died: it looks for it in the GCS alone.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from devkit.debug import processes

NEEDED = ("raylet", "gcs_server")
_FOLDER = re.compile(r"--log_?dir=(\S+)|--session_dir=(\S+)")
_FATAL = re.compile(r"^\[[^\]]* [CF] [^\]]*\] .*|.*\*\*\* SIG[A-Z]+ received.*|^terminate called .*", re.MULTILINE)
_ERROR = re.compile(r"^\[[^\]]* E [^\]]*\] .*", re.MULTILINE)
_HEAD = re.compile(r"^\[[^\]]*\] (?:\S+:\d+: )?\s*")
WORDS = 300  # characters
LOOK_S = 0.3  # between two looks at all processes of the machine


@dataclass(frozen=True)
class Part:
    """One process of a node, as it was seen alive."""

    name: str
    pid: int
    started: str
    logs: Path | None  # the folder of its logs

    @property
    def lives(self) -> bool:
        return processes.started(self.pid) == self.started

    @property
    def log(self) -> Path | None:
        """The one that has its last words, if it had any."""
        names = (f"{self.name}.err", f"{self.name}.out")
        every = [self.logs / name for name in names] if self.logs else []
        return next((path for path in every if last_words(path)), every[0] if every else None)


class Parts:
    """Those of one `ray start`, by its pid."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._seen: dict[int, Part] = {}
        self._next = 0.0

    def lost(self) -> Part | None:
        """One that was seen and has died; dead it is seen, too, until `ray start` has asked for its exit code."""
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + LOOK_S
        psutil = processes.load_psutil()
        with suppress(psutil.Error, OSError):
            for child in psutil.Process(self._leader).children():
                with suppress(psutil.Error, OSError):
                    name, dead = child.name(), child.status() == psutil.STATUS_ZOMBIE
                    self._note(child.pid, name, "" if dead else " ".join(child.cmdline()))
        lost = [part for part in self._seen.values() if not part.lives]
        # One is ended because of another, which is the one that says why.
        return next((part for part in lost if part.log and last_words(part.log)), lost[0] if lost else None)

    def _note(self, pid: int, name: str, command: str) -> None:
        if pid not in self._seen and name in NEEDED:
            beside = (each.logs for each in self._seen.values() if each.logs)  # a dead one has no command line any more
            self._seen[pid] = Part(name, pid, processes.started(pid) or "", logs_of(command) or next(beside, None))


def logs_of(command: str) -> Path | None:
    """The folder of the logs that a command line of Ray's names.

    >>> logs_of("raylet --session_dir=/tmp/ray/session_1 --x"), logs_of("gcs_server --log_dir=/l")
    (PosixPath('/tmp/ray/session_1/logs'), PosixPath('/l'))
    """
    found = _FOLDER.search(command)
    if found is None:
        return None
    return Path(found[1]) if found[1] else Path(found[2]) / "logs"


def last_words(log: Path) -> str:
    """Why a process of Ray's ended, by its log: what was fatal, else its last error; empty: it does not say."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return ""
    found = _FATAL.findall(text) or _ERROR.findall(text)[-1:]
    return _HEAD.sub("", " ".join(found[0].split()))[:WORDS] if found else ""
