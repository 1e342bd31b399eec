"""Programs that are stopped by the tests. Marks at the ends of lines name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def marked(name: str) -> int:
    """The line of this file with this mark."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# @{name}"))


class Model:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.loss = float("nan") if rank == 2 else 0.5
        self.layers = {"first": 1, "second": 2}

    def forward(self, batch: list[int], *, scale: int = 2) -> int:
        total = sum(batch) * scale  # @forward
        return total


def train(worker: Any) -> None:
    model = Model(worker.rank)
    step = 17
    worker.pause()  # @pause
    batch = [1, 2, step]  # @batch
    total = model.forward(batch)  # @call
    worker.results.append(total)  # @after
    for step in range(3):
        worker.results.append(step)  # @loop
    worker.results.append("end")  # @end


def train_twice(worker: Any) -> None:
    """Stops again after `c`."""
    for step in range(2):
        worker.pause()  # @again
        worker.results.append(step)


def one_lags(worker: Any) -> None:
    """Rank 1 does not come out of its second line before `worker.release` is set."""
    worker.pause()
    worker.arrive()  # @arrive
    worker.results.append("end")  # @arrived


def waits_for_a_word(worker: Any) -> None:
    """Goes on until the test ends its process."""
    import threading

    worker.pause()
    threading.Event().wait(60)


def two_threads(worker: Any) -> None:
    """Two stops in one process."""
    import threading

    both = threading.Barrier(2, timeout=20)
    side = threading.Thread(target=stop_beside, args=(worker, both), daemon=True)
    side.start()
    both.wait()
    worker.pause()
    side.join()


def stop_beside(worker: Any, both: Any) -> None:
    both.wait()
    worker.pause()
