"""Where the time and the memory of a step go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainer.memory import Memory, most

STEP, OTHER = "step", "other"


class Phases:
    """Seconds and memory of each phase of one step, by name (`interfaces.Clock`)."""

    def __init__(self, take_memory: Callable[[], Memory | None]) -> None:
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, Memory] = {}
        self._take_memory = take_memory
        self._open = 0  # phases that have begun; of teams of their own, several at once
        self._since = self._covered = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        self._since = self._since if self._open else started
        self._open += 1
        yield
        ended = time.perf_counter()
        self._open -= 1
        self._covered += 0.0 if self._open else ended - self._since
        self._keep(name, ended - started)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around all phases. What it has in none of them is `other`: those that run in turn add up to `step`."""
        started = time.perf_counter()
        yield
        self._keep(STEP, time.perf_counter() - started)
        self.seconds[OTHER] = self.seconds[STEP] - self._covered

    def _keep(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        if (memory := self._take_memory()) is not None:
            self.memory[name] = most([memory, *filter(None, [self.memory.get(name)])]) or memory
