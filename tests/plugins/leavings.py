"""Nothing that a run of tests started outlives it, however it ends: Ctrl-C, SIGTERM, a gate that is cut off.

What tests start inherits a variable that no other run has. A process of its own, in a session of its own, waits for the
end of pytest and then ends whatever still has that variable: Ray's daemons, trainers, shells on virtual hosts.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

VARIABLE = "DEVKIT_TESTS_RUN"
GRACE_S = float(os.environ.get("DEVKIT_TESTS_GRACE", "10"))  # between SIGTERM and SIGKILL
_RAYS_FOLDER = re.compile(rb"--temp[-_]dir=([^\0]+)")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not Path("/proc/self/environ").exists() or not hasattr(os, "pidfd_open"):
        return
    os.environ[VARIABLE] = run = secrets.token_hex(8)
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", __file__, str(os.getpid()), run],
        {name: value for name, value in os.environ.items() if name != VARIABLE},
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
        setsid=True,
    )


def processes_of(run: str) -> Iterator[int]:
    mark = f"{VARIABLE}={run}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:  # it has ended, or is another user's
            continue


def rays_folders(pids: list[int]) -> set[Path]:
    """Where Rays of these processes keep their sessions, as far as that is in the folder for what is temporary."""
    found: set[Path] = set()
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        found |= {Path(os.fsdecode(folder)) for folder in _RAYS_FOLDER.findall(words)}
    return {folder for folder in found if Path(tempfile.gettempdir()) in folder.parents}


def end(run: str) -> int:
    """Ends what a run left; returns how many processes that were."""
    left = list(processes_of(run))
    folders = rays_folders(left)
    for number, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        deadline = time.monotonic() + seconds
        for pid in processes_of(run):
            try:
                os.kill(pid, number)
            except OSError:
                continue
        while time.monotonic() < deadline and any(processes_of(run)):
            time.sleep(0.1)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return len(left)


def main(pid: int, run: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    if count := end(run):
        print(f"tests: ended what the run had left: {count} process(es)", file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
