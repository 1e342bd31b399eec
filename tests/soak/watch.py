"""What a soak looks at from outside: processes, files and memory that are left, by a mark that every child inherits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "DEVKIT_SOAK"  # in the environment of everything that the soak starts
END_SECONDS = 60.0  # for what is ending when it is looked for
SHARED_MEMORY = Path("/dev/shm")
TEMPORARY = Path("/tmp")


def own_places(folder: Path) -> dict[str, str]:
    """Variables for all that the soak starts: what programs make in /tmp without being told to goes into its folder.

    torch makes the folder of its compiler's cache at the first step of any optimizer, and leaves it.
    """
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor")}


def processes(mark: str) -> Iterator[psutil.Process]:
    """Those that the soak has started, directly or not, but this one."""
    wanted = f"{MARK}={mark}".encode()
    for process in psutil.process_iter():
        if process.pid != os.getpid():
            with suppress(OSError):
                if wanted in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    yield process


def left_processes(mark: str) -> list[str]:
    """The commands of those that do not end."""
    end = time.monotonic() + END_SECONDS
    while found := [_command(each) for each in processes(mark)]:
        if time.monotonic() > end:
            return found
        time.sleep(0.2)
    return []


def _command(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:160]}"
    except psutil.Error:
        return f"{process.pid}"


@dataclass(frozen=True)
class Files:
    """What lies at the places that programs use without being told to."""

    names: frozenset[str]

    @classmethod
    def now(cls, *folders: Path) -> Files:
        places = (TEMPORARY, SHARED_MEMORY, *folders)
        return cls(frozenset(str(each) for place in places if place.is_dir() for each in place.iterdir()))

    def left(self, before: Files, mark: str) -> list[str]:
        """New ones of this soak. Other programs use these folders, too: theirs do not count."""
        return sorted(name for name in self.names - before.names if mark in name or _is_ours(Path(name)))


def _is_ours(path: Path) -> bool:
    """By name: devkit's, the smoke test's and the trainer's, torch's, Ray's segments of shared memory."""
    return path.name.startswith(
        ("devkit", "dk-", "torchinductor_", "plasma", "rollout-reports-", "rollout-bucket-", "replay-", "capsule-")
    )


def resident_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 2**20
