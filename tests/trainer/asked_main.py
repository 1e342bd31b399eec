"""Phases on a real Ray whose four ranks have no models: each leaves a mark, waits for the marks of others, and ends.

`python asked_main.py FOLDER` prints one JSON object: what came of each case.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.address import prepare_own_cluster

prepare_own_cluster()

import ray  # noqa: E402

from trainer.asked import Asked, Talk, together  # noqa: E402
from trainer.cluster import WorkerPool, start_ray  # noqa: E402
from trainer.config import load  # noqa: E402
from trainer.config.schema import Config  # noqa: E402
from trainer.errors import TrainerError  # noqa: E402
from trainer.memory import Memory  # noqa: E402
from trainer.transport import Packed, pack, unpack  # noqa: E402

LEFT, RIGHT, BOTH = (0, 1), (2, 3), (0, 1, 2, 3)
NEVER = "never"


class Rank:
    """Does what it is told in place of a phase."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder, self.rank = Path(folder), rank

    def call(self, phase: str, packed_args: Packed) -> Packed:
        """As `worker.PPOWorker.call`: answers with the marks that it found when it began."""
        case, awaited, error = unpack(packed_args)
        here = self.folder / case
        found = sorted(mark.name for mark in here.iterdir())
        (here / f"{phase}-{self.rank}-begun").touch()
        while not all((here / mark).exists() for mark in awaited):
            time.sleep(0.01)
        if error:
            raise ValueError(error)
        (here / f"{phase}-{self.rank}-ended").touch()
        return pack((found, Memory(self.rank + len(phase), 0, 0)))


class Pool(WorkerPool):
    def __init__(self, config: Config, folder: str, note: Callable[[str], None]) -> None:
        self.folder = folder
        super().__init__(config, name="asked", note=note)

    def _create(self, config: Config) -> None:
        remote = ray.remote(num_cpus=0)(Rank)  # the places of the run are held by its placement groups
        self._actors = [remote.remote(self.folder, rank) for rank in range(self.world_size)]


class Case:
    """Phases with marks in a folder of their own."""

    def __init__(self, pool: Pool, name: str) -> None:
        self.pool, self.name = pool, name
        self.memory: dict[str, int] = {}
        self.open: list[str] = []
        self.most_open = 0
        (Path(pool.folder) / name).mkdir()

    def asked(self, phase: str, ranks: tuple[int, ...], *awaited: str, error: str = "") -> Asked[Any]:
        def talk() -> Talk[Any]:
            mine = self.name, awaited, error
            return (yield [mine if rank in ranks else None for rank in range(4)])

        return Asked(self.pool, phase, ranks, talk)

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Takes the memory that each phase reports, as `run.Phases` does."""
        self.open.append(name)
        self.most_open = max(self.most_open, len(self.open))
        yield
        self.open.remove(name)
        reading = self.pool.take_memory()
        self.memory[name] = reading.allocated if reading else -1

    def run(self, **asked: Asked[Any]) -> dict[str, Any]:
        try:
            results = together(self.pool, asked, self.clock)
        except TrainerError as error:
            return {"error": f"{type(error).__name__}: {error}", "open": self.open}
        return {"results": results, "memory": self.memory, "most_open": self.most_open, "open": self.open}


def marks(phase: str, ranks: tuple[int, ...], what: str = "begun") -> list[str]:
    return [f"{phase}-{rank}-{what}" for rank in ranks]


def cases(pool: Pool, notes: list[str]) -> Iterator[tuple[str, Any]]:
    case = Case(pool, "beside")  # each waits for the other to begin
    one = case.asked("one", LEFT, *marks("three", RIGHT))
    yield case.name, case.run(first=one, second=case.asked("three", RIGHT, *marks("one", LEFT)))

    case = Case(pool, "queues")  # b after a on the left, while c on the right waits for both
    a, b = case.asked("a", LEFT, *marks("ccc", RIGHT)), case.asked("bb", LEFT)
    yield case.name, case.run(a=a, b=b, c=case.asked("ccc", RIGHT, *marks("bb", LEFT)))

    case = Case(pool, "in turn")
    yield case.name, case.run(x=case.asked("x", BOTH), y=case.asked("yy", BOTH))

    case = Case(pool, "note")  # the right is noted to be late, and comes
    import trainer.cluster

    trainer.cluster.SLOW_S = 0.05

    def told(text: str) -> None:
        notes.append(text)
        (Path(pool.folder) / "note" / "told").touch()

    pool._note = told
    yield case.name, {**case.run(l=case.asked("left", LEFT), r=case.asked("right", RIGHT, "told")), "notes": notes}
    trainer.cluster.SLOW_S = 30.0

    case = Case(pool, "failure")  # the left still waits
    yield case.name, case.run(l=case.asked("left2", LEFT, NEVER), r=case.asked("broken", RIGHT, error="oh"))
    (Path(pool.folder) / "failure" / NEVER).touch()

    case = Case(pool, "deadline")
    pool.timeout_s = 2.0
    late = case.asked("late", RIGHT, NEVER)
    yield case.name, case.run(l=case.asked("left3", LEFT), m=case.asked("left4", LEFT), r=late)


def main(folder: str) -> None:
    small = ["trainer.n_gpus_per_node=4", "trainer.device=cpu", "data.train_batch_size=4"]
    small += ["actor_rollout_ref.actor.ppo_mini_batch_size=4", "critic.ppo_mini_batch_size=4"]
    small += ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "critic.ppo_micro_batch_size_per_gpu=1"]
    config = load(small).config
    start_ray(config)
    notes: list[str] = []
    pool = Pool(config, folder, notes.append)
    try:
        print(json.dumps(dict(cases(pool, notes))))
    finally:
        pool.close()
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
