"""Phases on a real Ray whose four ranks have no models: each leaves a mark, waits for the marks of others, and ends.

`python asked_main.py FOLDER` writes FOLDER/found.json: what came of each case.
"""

from __future__ import annotations

import json
import os
import signal
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
from trainer.worker import WorkerInfo  # noqa: E402

LEFT, RIGHT, BOTH = (0, 1), (2, 3), (0, 1, 2, 3)
NEVER, DEATH = "never", "death"
FOUND = "found.json"


class Rank:
    """Does what it is told in place of a phase."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder, self.rank = Path(folder), rank

    def describe(self) -> WorkerInfo:
        return WorkerInfo(self.rank, "10.0.0.1", os.getpid(), ray.get_runtime_context().get_node_id())

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
        if case == DEATH and self.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        (here / f"{phase}-{self.rank}-ended").touch()
        return pack((found, Memory(len(phase) - self.rank, 0, 0)))


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
            return (yield phase, [mine if rank in ranks else None for rank in range(4)])

        return Asked(self.pool, ranks, talk)

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Takes the memory that each phase reports, as `phases.Phases` does."""
        self.open.append(name)
        self.most_open = max(self.most_open, len(self.open))
        try:
            yield
        finally:
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

    case = Case(pool, "note")  # both are late, and come when it is noted of the right
    import trainer.cluster

    trainer.cluster.SLOW_S = 0.05

    def told(text: str) -> None:
        notes.append(text)
        if text.startswith("right "):
            (Path(pool.folder) / "note" / "told").touch()

    pool._note = told
    yield (
        case.name,
        {**case.run(l=case.asked("left", LEFT, "told"), r=case.asked("right", RIGHT, "told")), "notes": notes},
    )
    trainer.cluster.SLOW_S = 30.0

    case = Case(pool, "failure")  # the left still waits
    yield case.name, case.run(l=case.asked("left2", LEFT, NEVER), r=case.asked("broken", RIGHT, error="oh"))
    (Path(pool.folder) / "failure" / NEVER).touch()

    case = Case(pool, "deadline")
    pool.timeout_s = 2.0
    late = case.asked("late", RIGHT, NEVER)
    yield case.name, case.run(l=case.asked("left3", LEFT), m=case.asked("left4", LEFT), r=late)
    (Path(pool.folder) / "deadline" / NEVER).touch()

    pool.timeout_s = 60.0
    pool.infos = pool._gather("start", [actor.describe.remote() for actor in pool._actors], 60.0)
    case = Case(pool, DEATH)  # the left still waits
    found = case.run(l=case.asked("left5", LEFT, NEVER), r=case.asked("deadly", RIGHT))
    yield case.name, {**found, "pid": pool.infos[3].pid, "marks": sorted(os.listdir(Path(pool.folder) / DEATH))}


def main(folder: str) -> None:
    small = ["trainer.n_gpus_per_node=4", "trainer.device=cpu", "data.train_batch_size=4"]
    small += ["actor_rollout_ref.actor.ppo_mini_batch_size=4", "critic.ppo_mini_batch_size=4"]
    small += ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "critic.ppo_micro_batch_size_per_gpu=1"]
    config = load(small).config
    start_ray(config)
    notes: list[str] = []
    pool = Pool(config, folder, notes.append)
    try:
        found = dict(cases(pool, notes))
        (Path(folder) / FOUND).write_text(json.dumps(found))  # what Ray says of its workers comes to stdout
    finally:
        pool.close()
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
