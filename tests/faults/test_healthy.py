"""Runs that are well: nothing is said of them.

`DEVKIT_HEALTHY_RUNS=20` makes that many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults import cluster
from tests.faults.cluster import PROGRAMS, Cluster
from tests.hosts.launching import PYTHON, document, eventually
from tests.trainer.conftest import build_models, rows

WAYS = ("steady", "uneven", "straggles", "saves", "loads", "builds")
RUNS = int(os.environ.get("DEVKIT_HEALTHY_RUNS", "3"))
SECONDS = 14
PATIENCE = "4"  # seconds without progress until the watchdog speaks
SETTINGS = {
    "trainer.nnodes": 3,
    "trainer.n_gpus_per_node": 1,
    "trainer.device": "cpu",
    "trainer.total_training_steps": 12,
    "trainer.test_freq": 4,
    "trainer.save_freq": 4,
    "trainer.logger": "[console]",
    "data.train_batch_size": 6,
    "data.max_prompt_length": 128,
    "data.max_response_length": 16,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 6,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "critic.ppo_micro_batch_size_per_gpu": 2,
}
pytestmark = [pytest.mark.timeout(600), pytest.mark.ray]


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with cluster.up() as made:
        yield made


@pytest.mark.parametrize("number", range(RUNS))
def test_nothing_is_said(three: Cluster, number: int) -> None:
    way = WAYS[number % len(WAYS)]
    log = three.share / f"{number}.log"
    command = ("-m", "devkit", "run", "--hang-timeout", PATIENCE, "--", PYTHON, str(PROGRAMS / "healthy.py"), way)
    with log.open("w") as out:
        run = three.head.popen(PYTHON, *command, str(SECONDS), env=three.environ, stdout=out, stderr=out)
        with run:
            try:
                eventually(lambda: trains(three), "training")
                found = document(three.head, "hang", env=three.environ, code=None)
                assert (found["hang"], found["kind"]) == (False, "moves"), found
                assert run.wait(120) == 0, log.read_text()
            finally:
                run.kill()
    said = log.read_text()
    assert "steps [" in said and "no progress" not in said, said


def test_nothing_is_said_of_the_trainer(three: Cluster) -> None:
    """A rank on each of three hosts, with validation and checkpoints: ranks come up, wait for rank 0, and train."""
    data, log = three.share / "data", three.share / "trainer.log"
    make_run(data)
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    settings += [f"data.train_files={data}/rows.parquet", f"data.val_files={data}/rows.parquet"]
    settings += [f"actor_rollout_ref.model.path={data}/qwen2", f"trainer.default_local_dir={data}/checkpoints"]
    command = ("-m", "devkit", "run", "--hang-timeout", PATIENCE, "--", PYTHON, "-m", "trainer.main_ppo", *settings)
    with log.open("w") as out:
        run = three.head.popen(PYTHON, *command, env=three.environ, stdout=out, stderr=out)
        with run:
            try:
                eventually(lambda: trains(three, "PPOWorker") or run.poll() is not None, "training")
                while run.poll() is None:
                    found = document(three.head, "hang", env=three.environ, code=None)
                    assert not found.get("hang"), found  # at its very end there is no job any more
                assert run.wait() == 0, log.read_text()
            finally:
                run.kill()
    said = log.read_text()
    assert "no progress" not in said, said


def make_run(folder: Path) -> None:
    """A tiny model and rows for it."""
    folder.mkdir()
    build_models(folder)
    pq.write_table(pa.Table.from_pylist(rows(12, 0)), folder / "rows.parquet")


def trains(three: Cluster, role: str = "Trainer") -> bool:
    """Whether all ranks are in the job, and one has made a step."""
    workers = document(three.head, "ps", env=three.environ, code=None).get("workers", [])
    return {each["rank"] for each in workers if each["role"] == role and each["connected"]} == {0, 1, 2}
