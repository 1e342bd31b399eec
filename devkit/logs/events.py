"""One thing that went wrong, wherever it was found. Pure records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from devkit.debug.briefly import brief
from devkit.debug.stack_groups import Frame

SIGNAL, FATAL, CPP = "signal", "fatal error", "C++ exception"  # types of what a log has of a deadly signal
SIGNALS = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP"})
Source = Literal["crash", "task", "actor", "worker", "node", "log", "job"]
# Where an error is told best: a snapshot has variables, Ray's table a time and the whole text.
BEST: tuple[Source, ...] = ("crash", "task", "worker", "node", "log", "actor", "job")


@dataclass(frozen=True)
class Raised:
    """An exception as a text shows it: the innermost of a chain or of nested tasks."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()  # innermost first
    who: str = ""  # "Rank.train", the task whose code raised it; empty: the text's own process
    pid: int = 0
    node_ip: str = ""
    rank: int | None = None
    own: bool = False  # raised by a line of the program's own that says so: `raise`, `assert`, `sys.exit`

    @property
    def said(self) -> str:
        """Type and first line; of what Ray says at length, one sentence."""
        words = brief(self.type, self.message.strip())
        return ": ".join(part for part in (words.type, *words.message.splitlines()[:1]) if part)

    @property
    def more(self) -> tuple[str, ...]:
        """The further lines."""
        return tuple(brief(self.type, self.message.strip()).message.splitlines()[1:])


@dataclass(frozen=True)
class Event:
    """Something that went wrong in one process."""

    source: Source
    raised: Raised
    time: float | None = None  # seconds since the epoch, by the clock of its node
    role: str = ""  # of the process where it was seen
    rank: int | None = None
    node_ip: str = ""
    pid: int = 0
    worker_id: str = ""
    where: str = ""  # a file name or a table, and what in it
    text: str = ""  # what was found, as it stood
    root: str = ""  # of a crash snapshot: the id of the one that caused it
    id: str = ""  # of a crash snapshot
    kind: str = ""  # of a crash snapshot: task, actor, thread, train, driver, exit
    order: int = 0  # place in its file, where no time is known

    @property
    def is_native(self) -> bool:
        """Whether it tells of a deadly signal, at which no Python code can say anything any more."""
        return self.raised.type in SIGNALS or (self.source == "log" and self.raised.type in (SIGNAL, FATAL, CPP))

    @property
    def process(self) -> tuple[str, int]:
        """Who raised it: the node and the pid, of the innermost task where the text names that."""
        return (self.raised.node_ip or self.node_ip, self.raised.pid or self.pid)
