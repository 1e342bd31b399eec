"""Real calls of `devkit smoke --tiny`: what they said, and whether anything of them is left.

Each has a temp folder of its own and a mark in its environment, which all its processes inherit; what is left of it
is found by the mark and ended by pid.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.pace import stretched
from tests.trainer.runs import MARK, ROOT, marked, wait_until_gone

DEADLINE_S = stretched(150.0)  # of a call that takes 15 to 20 s on an idle machine
GONE_S = stretched(20.0)

# What a whole run reports; `run` is there only when the trainer itself failed.
CHECKS = {
    "adamw",
    "advantages",
    "command-settings",
    "critic-update",
    "data-limits",
    "data-order",
    "data-rows",
    "draws-differ",
    "export",
    "first-mini-batch",
    "formulas",
    "forward",
    "gradients",
    "killed-rank",
    "kl-in-reward",
    "learning",
    "learning-rate",
    "loss-gradient",
    "losses",
    "masks",
    "metrics",
    "micro-batches",
    "mini-batches",
    "optimizer-step",
    "pipeline-rewards",
    "policy-update",
    "prompt-tokens",
    "prompts",
    "ranks-equal",
    "reference",
    "resume",
    "reward-answer",
    "reward-calls",
    "reward-repeats",
    "reward-text",
    "reward-truth",
    "rewards",
    "rollout-logprobs",
    "settings",
    "steps",
    "temperature",
    "top-k",
    "top-p",
    "validation",
    "validation-rows",
    "weight-sync",
}


# Of files that the user names; where they name none, there is nothing to look at.
OF_FILES = {"data-limits", "data-rows"}
# Of conversations alone; beside them, `--agent` has some of the others.
OF_CONVERSATIONS = {"glue", "mask-proof", "turn-rewards", "turns"}


@dataclass
class Call:
    """A call that runs."""

    process: subprocess.Popen[bytes]
    mark: str
    temporary: Path  # its temp folder
    log: Path  # what it says on stderr, as it comes
    out: IO[bytes]

    def wait(self, timeout_s: float = DEADLINE_S) -> Done:
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.said}") from None
        self.out.seek(0)
        return Done(code, self.out.read().decode(), self.said)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, words: str, timeout_s: float = DEADLINE_S) -> None:
        """Until it has said `words` on stderr."""
        deadline = time.monotonic() + timeout_s
        while words not in self.said:
            assert self.process.poll() is None, f"ended without {words!r}:\n{self.said}"
            assert time.monotonic() < deadline, f"no {words!r} within {timeout_s} s:\n{self.said}"
            time.sleep(0.02)  # between two looks; the deadline is above

    def processes(self) -> list[int]:
        return marked(self.mark)

    def assert_nothing_left(self, timeout_s: float = GONE_S, *, folders: bool = True) -> None:
        left = wait_until_gone(self.mark, timeout_s)
        assert left == [], f"processes are left: {left}\n{self.said}"
        if folders:
            # megatron-core imports wandb where there is one: two folders, which a worker that is killed leaves behind.
            theirs = ("wandb-media", "wandb-artifacts")
            left = sorted(str(path) for path in self.temporary.rglob("*") if not path.name.endswith(theirs))
            assert left == [], f"files are left: {left}\n{self.said}"


@dataclass(frozen=True)
class Done:
    """A call that ended."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        """Its one JSON document."""
        try:
            document: dict[str, Any] = json.loads(self.out)
        except ValueError:
            raise AssertionError(f"stdout is no JSON document:\n{self.out}\nstderr:\n{self.err}") from None
        return document

    def checks(self, status: str) -> dict[str, str]:
        """Name and detail of the checks with that status."""
        found = self.record
        assert "checks" in found, f"no record of checks:\n{found}\nstderr:\n{self.err}"
        return {check["name"]: check["detail"] for check in found["checks"] if check["status"] == status}


@contextmanager
def calling(*words: str, **env: str) -> Iterator[Call]:
    """`devkit smoke --tiny WORDS`, and the end of whatever is left of it."""
    temporary = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))  # short: sockets lie below it
    mark = temporary.name
    own = temporary.with_name(mark + ".test")
    own.mkdir()
    own_env = {
        MARK: mark,
        "RAY_AUTH_MODE": "token",
        "TMPDIR": str(temporary),
    }
    with (own / "out").open("w+b") as out, (own / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "devkit", "smoke", "--tiny", *words],
            cwd=ROOT,
            env={**os.environ, **own_env, **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            yield Call(process, mark, temporary, own / "err", out)
        finally:
            for pid in marked(mark):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait(GONE_S)
            wait_until_gone(mark)
            for folder in (temporary, own):
                shutil.rmtree(folder, ignore_errors=True)


def smoke(*words: str, timeout_s: float = DEADLINE_S, **env: str) -> Done:
    """One call from start to end; it must leave nothing behind."""
    with calling(*words, **env) as call:
        done = call.wait(timeout_s)
        call.assert_nothing_left()
    return done
