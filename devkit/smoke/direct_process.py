"""The smoke test's side of the process that calls a reward function directly (`direct_calls.py`)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devkit.errors import DeadlineError, DevkitError
from trainer.config.schema import Config

CALL_S = 30.0  # of one call; the ranks have more
LOAD_S = 60.0  # a module may load a model
LEAVE_S = 2.0


@dataclass(frozen=True)
class Call:
    """A response to a row of a file; `*_of`: with that part of another row."""

    file: str
    index: int
    text: str
    truth_of: int | None = None
    extra_of: int | None = None
    source_of: int | None = None


@dataclass(frozen=True)
class Answer:
    """What the reward function gave; `score` None: nothing that is a score, and `problem` says what."""

    score: float | None
    problem: str = ""
    kind: str = "float"
    seconds: float = 0.0


@dataclass(frozen=True)
class Loaded:
    """How long loading took, and what the function's code shows; `place` is its `file:line`."""

    seconds: float = 0.0
    reads: Mapping[str, bool | None] = field(default_factory=dict)  # by argument; None: cannot be told
    place: str = ""


class DirectProcess:
    """Starts at once and loads beside what else is done."""

    def __init__(self, config: Config, log: Path, first: Call | None = None) -> None:
        """`first` is called at once, and its answer is nobody's: what a first call loads is loaded then."""
        own, data = config.custom_reward_function, config.data
        spec = {
            "path": own.path,
            "name": own.name,
            "prompt_key": data.prompt_key,
            "source_key": data.reward_fn_key,
        }
        self.spec = spec
        self.log = log
        # sys.path and not the environment's, as the function may import what lies beside the command.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "devkit.smoke.direct_calls", json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C reaches the smoke test alone, which ends this one
            )
        self._first = first
        self._read = b""  # of its answers, and not yet taken
        for order in ({"do": "load"}, {"do": "call", **vars(first)} if first else None):
            if order:
                self._tell(order)
        self._loaded: Loaded | None = None

    def loaded(self) -> Loaded:
        """Waits for the first loading. Raises DevkitError if the file cannot be loaded, DeadlineError if it takes
        too long."""
        if self._loaded is None:
            self._loaded = Loaded(**self._answer(LOAD_S))
            if self._first:
                self._answer(LOAD_S)
        return self._loaded

    def reload(self) -> float:
        """Anew, without anything that it kept -> seconds."""
        self.loaded()
        self._tell({"do": "load"})
        return Loaded(**self._answer(LOAD_S)).seconds

    def call(self, call: Call) -> Answer:
        """Raises DevkitError if the process ended, DeadlineError if no answer comes."""
        self.loaded()
        self._tell({"do": "call", **vars(call)})
        return Answer(**self._answer(CALL_S))

    def calls(self, calls: Sequence[Call]) -> list[Answer]:
        return [self.call(each) for each in calls]

    def caught(self, call: Call) -> str:
        """The exception that the function raises and catches itself on that call; empty: none."""
        self.loaded()
        self._tell({"do": "caught", **vars(call)})
        return str(self._answer(CALL_S)["caught"])

    def close(self) -> None:
        """Ends the process, whatever it does. May be called twice."""
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                assert stream is not None
                stream.close()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(order) + "\n").encode())
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self._ended() from None

    def _answer(self, seconds: float) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        deadline = time.monotonic() + seconds
        waiting = select.poll()
        waiting.register(stream, select.POLLIN)
        while b"\n" not in self._read:  # two answers may come in one piece
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise DeadlineError(f"no answer within {seconds:.0f} s", hint="call it with that row to reproduce it")
            piece = os.read(stream.fileno(), 65536)
            if not piece:
                raise self._ended()
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DevkitError(str(answer["error"]), hint=f"{self.log} has the traceback")
        return answer

    def _ended(self) -> DevkitError:
        return DevkitError("its process ended during a call", hint=f"see its log: {self.log}")
