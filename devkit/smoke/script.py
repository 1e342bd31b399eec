"""The trainer command that a launch script starts: it runs, and finds stand-ins for Ray and for the trainer."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from devkit.debug.inworker import private
from devkit.errors import DeadlineError, UsageError
from devkit.smoke import standin

DEADLINE_SECONDS = 600.0  # until the script has started a trainer; it may prepare data first
END_SECONDS = 3.0  # that its processes have to end by themselves
LOOK_SECONDS = 0.1  # how often it is looked whether the script has ended
TRAINER = "python -m verl.trainer.main_ppo (or trainer.main_ppo), also by torchrun, ray job submit, docker or srun"


@dataclass(frozen=True)
class TrainerCommand:
    """A trainer command as a script has started it."""

    arguments: tuple[str, ...]  # behind the module
    folder: Path  # in which it was started
    python_path: tuple[str, ...]  # its PYTHONPATH, without ours


def capture(command: tuple[str, ...], timeout: float | None = None) -> TrainerCommand:
    """Runs `command` until it starts a trainer, and ends it there; its output goes to stderr.

    Raises UsageError if it can't be run or ends without a trainer, DeadlineError after `timeout` seconds.
    """
    seconds = min(timeout or DEADLINE_SECONDS, DEADLINE_SECONDS)
    place = private.temporary()  # it goes in front of PATH
    with tempfile.TemporaryDirectory(prefix="devkit-standin-", dir=place) as name, ExitStack() as endings:
        folder = Path(name)
        fifo = folder / "command"
        os.mkfifo(fifo, 0o600)
        # Also opened for writing: it never reads as ended before the trainer has come.
        told = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        endings.callback(os.close, told)
        environ = _environment(folder, fifo, os.environ)
        process = endings.enter_context(_started(command, environ))
        line = _first_line(told, process, time.monotonic() + seconds)
        code = None if _has_members(process.pid) else process.poll()
    if line is None and code is None:
        raise DeadlineError(
            f"{shlex.join(command)} did not start a trainer within {seconds:g} s",
            hint="what it waits for is above; a cluster, a container or another machine never answers here",
        )
    if line is None:
        raise UsageError(
            f"{shlex.join(command)} exited with code {code} before it started a trainer",
            hint=f"devkit looks for: {TRAINER}",
        )
    document = json.loads(line)
    path = [each for each in document["python_path"].split(os.pathsep) if each and not each.startswith(name)]
    return TrainerCommand(tuple(document["arguments"]), Path(document["folder"]), tuple(path))


def _environment(folder: Path, fifo: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Ours come first on PATH, and on PYTHONPATH for a Python that is called by its path."""
    site, programs = folder / standin.SITE, folder / standin.BIN
    site.mkdir()
    programs.mkdir()
    code = shutil.copy(standin.__file__, site / "sitecustomize.py")
    for name in standin.PROGRAMS:
        words = shlex.join([sys.executable, "-I", "-S", str(code), name])
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (programs / name).chmod(0o755)
    return {
        **environ,
        standin.FIFO: str(fifo),
        standin.FOLDER: str(folder),
        "PATH": os.pathsep.join([str(programs), environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(site), environ.get("PYTHONPATH")])),
    }


@contextmanager
def _started(command: tuple[str, ...], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The script in a session of its own, of which nothing is left at the end."""
    try:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), start_new_session=True
        )
    except OSError as error:
        hint = "after -- goes the command that starts the training: bash run.sh"
        raise UsageError(f"cannot run {shlex.join(command)}: {error.strerror}", hint=hint) from None
    try:
        yield process
    finally:
        _end(process)


def _first_line(told: int, process: subprocess.Popen[bytes], deadline: float) -> str | None:
    """What comes out of the FIFO; None if the script and all it left running end before, or the time is over."""
    data = b""
    while not data.endswith(b"\n"):
        # Looked at first: what was told just before is still read.
        has_ended = process.poll() is not None and not _has_members(process.pid)
        ready, _, _ = select.select([told], [], [], 0.0 if has_ended else LOOK_SECONDS)
        if ready:
            data += os.read(told, 1 << 16)
        elif has_ended or time.monotonic() > deadline:
            return None
    return data.decode()


def _has_members(group: int) -> bool:
    """Whether anything runs in this process group: a script may leave its trainer in the background."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
