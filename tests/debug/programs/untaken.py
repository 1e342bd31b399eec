"""Samples that are asked for and never taken: in a driver, and in an actor."""

from __future__ import annotations

import time
from typing import Any

import ray


@ray.remote(num_cpus=0)
class Runner:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def sample(self) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {"tokens": [1, 2, 3]}

    def train(self) -> dict[str, float]:
        return {"loss": 0.5}


@ray.remote(num_cpus=0)
def score(row: int) -> list[float]:
    return [float(row)]


@ray.remote(num_cpus=0)
class Trainer:
    def fit(self) -> int:
        count = 0
        for _ in range(2):
            groups = [score.remote(row) for row in range(6)]  # @inside
            count += len(ray.get(groups[:4]))
            del groups
        return count

    def rest(self) -> None:
        time.sleep(2)


def in_time(runners: list[Any]) -> int:
    count = 0
    for _ in range(3):
        refs = [runner.sample.remote() for runner in runners]  # @asked
        ready, _late = ray.wait(refs, num_returns=len(refs), timeout=4)
        count += len(ray.get(ready))
    return count


def all_of_them(runners: list[Any]) -> int:
    """Later, or by another process."""
    pending = [runner.sample.remote() for runner in runners]
    count = 0
    while pending:
        ready, pending = ray.wait(pending)
        count += len(ray.get(ready))
    refs = [score.remote(row) for row in range(4)]
    ray.get(refs[:2])
    kept = ray.put(refs[2:])
    del refs
    return count + len(ray.get(ray.get(kept)))


def main() -> None:
    ray.init()
    quick = [Runner.remote(0.0) for _ in range(3)]
    print("taken", all_of_them(quick))
    slow = Runner.remote(60.0)
    print("taken", in_time([*quick, slow]))
    for _ in range(3):
        metrics = [runner.train.remote() for runner in quick]
        ray.get(metrics[:2])
    ray.get([score.remote(row) for row in range(6)][:4])  # @cut
    trainer = Trainer.remote()
    ray.get(trainer.fit.remote())
    ray.get(trainer.rest.remote())


if __name__ == "__main__":
    main()
