"""The process of one rank of an all-reduce, seen from its node."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

# With these the child would take part in the debugger, or ask Ray for something.
NOT_ITS = ("DEVKIT_SETTINGS", "RAY_RUNTIME_ENV_HOOK", "RAY_ADDRESS")


class Rank:
    """`collective.py`, started at once: while torch is imported, other things are looked at."""

    def __init__(self, program: str, environ: dict[str, str]) -> None:
        environ = {name: value for name, value in environ.items() if name not in NOT_ITS}
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._errors = ""
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            env={**environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            with suppress(ValueError):  # a library that prints
                self._answers.put(json.loads(line))
        self._answers.put(None)

    def _read_errors(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self._errors = line.strip() or self._errors

    def answer(self, seconds: float) -> dict[str, Any]:
        """Its next answer: a status and what belongs to it. "late": there was none in that time."""
        try:
            found = self._answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return {"status": "late", "detail": f"no answer within {seconds:.1f} s"}
        if found is None:
            self._answers.put(None)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)
            return {
                "status": "failed",
                "detail": f"the process ended with {self._child.returncode}: {self._errors[:200]}",
            }
        return found

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Takes part in one all-reduce, within `job["seconds"]`."""
        assert self._child.stdin is not None
        end = time.monotonic() + float(job["seconds"])
        try:
            self._child.stdin.write(json.dumps(job) + "\n")
            self._child.stdin.flush()
        except OSError:
            pass  # it has ended, and its last answer says why
        return self.answer(end - time.monotonic())

    def close(self) -> None:
        with suppress(OSError):
            self._child.kill()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(5.0)
        for reader in self._readers:
            reader.join(1.0)
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                with suppress(OSError, ValueError):
                    pipe.close()


def environment(ray_environ: dict[str, str]) -> dict[str, str]:
    """What a training worker would start with: Ray hides the GPUs from a worker that asked for none."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_VISIBLE_DEVICES")}
    base = kept if ray_environ else dict(os.environ)
    wanted = ("_VISIBLE_DEVICES", "_SOCKET_IFNAME")
    return {**base, **{name: value for name, value in ray_environ.items() if name.endswith(wanted)}}
