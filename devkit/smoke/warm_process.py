"""The smoke test's side of the warm process (`warm.py`): starting it, giving it orders, ending it."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from devkit.debug.inworker import private
from devkit.errors import DeadlineError, DevkitError
from devkit.smoke.warm import end_marked

ANSWER_S = 90.0  # torch and transformers load in 4 s on an idle machine
LEAVE_S = 2.0


class WarmProcess:
    """Starts at once and warms up while others work. Its environment is this process's at the time."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._folder = tempfile.mkdtemp(prefix="devkit-warm-", dir=private.temporary())
        self.socket = os.path.join(self._folder, "socket")
        command = [sys.executable, "-m", "devkit.smoke.warm", self.socket]
        # A session of its own: Ctrl-C reaches the smoke test alone, which then ends everything in order.
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )

    def tell(self, do: str, **order: Any) -> None:
        """Gives an order; `answer` waits for what comes of it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps({"do": do, **order}) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("it has ended") from None

    def answer(self) -> dict[str, Any]:
        """Raises DevkitError if the order failed, DeadlineError if no answer comes."""
        assert self._process.stdout is not None
        line = self._read_line(time.monotonic() + ANSWER_S)
        if not line:
            raise self._failed("it has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def close(self) -> None:
        """Ends the process, and with it what it forked and what is left of the Ray. May be called twice."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(BrokenPipeError):  # it ended before it read all
                    stream.close()
        try:
            self._process.wait(timeout=LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end_marked(self.socket)  # itself it does so only once it is warm
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read_line(self, deadline: float) -> bytes:
        """One line of its standard output, read without a buffer that the wait could not see into."""
        stream = self._process.stdout
        assert stream is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise DeadlineError(
                        f"the process that builds the tiny model did not answer within {ANSWER_S:.0f} s",
                        hint="the machine may be overloaded: check uptime",
                    )
                piece = os.read(stream.fileno(), 65536)
                if not piece:
                    return b""
                line += piece
        return line

    def _failed(self, why: str) -> DevkitError:
        tail = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        return DevkitError(
            f"the process that builds the tiny model failed: {why}", hint=f"end of {self._log}: {tail[0]}"
        )
