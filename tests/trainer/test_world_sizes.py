"""The number of ranks changes nothing: 1, 2 and 4 processes over gloo, without Ray, train alike and read each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import Words, locked
from tests.trainer.runs import DEADLINE_S, ROOT

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def jobs(words: Words, models: Path, shared: Path) -> dict[str, Ranks]:
    """What the ranks of each job found. "two" saves a checkpoint, "one from two" loads it and goes on, and so on."""
    folder = shared / "trainer-world-sizes"
    with locked(shared / "trainer-world-sizes.lock"):
        if not folder.exists():
            folder.mkdir()
            run_jobs(folder, all_jobs(words, models, folder))
    return {
        job.name: [json.loads(file.read_text()) for file in sorted(job.glob("rank*.json"))]
        for job in folder.iterdir()
        if (job / "rank0.json").exists()
    }


def all_jobs(words: Words, models: Path, folder: Path) -> dict[str, Any]:
    tied = job_words(words, models / "qwen2-tied")
    checkpoint = str(folder / "two" / "checkpoint")
    return {
        "two": {"world": 2, "words": tied, "save": checkpoint},
        "one": {"world": 1, "words": tied},
        "four": {"world": 4, "words": tied},
        "one from two": {"world": 1, "words": tied, "load": checkpoint},
        "four from two": {"world": 4, "words": tied, "load": checkpoint},
        "untied": {"world": 2, "words": job_words(words, models / "qwen2")},
        "no weights": {"world": 2, "words": job_words(words, half_a_model(models, folder / "no weights model", None))},
        "corrupt": {"world": 2, "words": job_words(words, half_a_model(models, folder / "corrupt model", 3000))},
    }


def half_a_model(models: Path, folder: Path, size: int | None) -> Path:
    """A model folder with `size` bytes of its weights; None: without them."""
    shutil.copytree(models / "qwen2", folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size]) if size is not None else weights.unlink()
    return folder


def run_jobs(folder: Path, jobs: dict[str, Any], timeout_s: float = DEADLINE_S) -> None:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("rank_main.py")), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr


def job_words(words: Words, model: Path) -> list[str]:
    return words(
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "critic.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.actor.entropy_coeff=0.01",
        "trainer.total_training_steps=10",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=2",
        "critic.optim.lr_scheduler_type=cosine",
    )


def close(actual: Any, expected: Any) -> None:
    """Equal within rounding, in nested dicts and lists."""
    assert type(actual) is type(expected)
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for name in expected:
            close(actual[name], expected[name])
    elif isinstance(expected, list):
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            close(a, b)
    else:
        assert actual == pytest.approx(expected, rel=1e-4, abs=2e-6)


@pytest.mark.parametrize("job", ["two", "untied", "four"])
def test_ranks_agree_with_each_other(jobs: dict[str, Ranks], job: str) -> None:
    first, *others = jobs[job]
    for other in others:
        assert all(first[name] == other[name] for name in ("checksums", "norms", "engine"))
    assert first["engine"] == first["checksums"]["actor"]  # the engine's copy is the whole model, tied or not


@pytest.mark.parametrize("job", ["one", "four"])
def test_other_world_sizes_train_alike(jobs: dict[str, Ranks], job: str) -> None:
    """Losses, gradient norms and weights over three updates; what each rank gets differs, the sums do not."""
    found = merged(jobs[job])
    assert len(found["steps"]["actor"]) == len(found["steps"]["critic"]) == 3 * 2  # updates x mini-batches
    assert found["untrained"] == {"actor": [], "critic": []}
    close(found, merged(jobs["two"]))


def merged(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a run found: the losses of the ranks added up, the rest from rank 0."""
    steps: dict[str, Any] = {}
    for role in ("actor", "critic"):
        steps[role] = [
            {n: parts[0][n] if n == "grad_norm" else sum(part[n] for part in parts) for n in parts[0]}
            for parts in zip(*(rank["steps"][role] for rank in ranks), strict=True)
        ]
    return {"steps": steps, **{name: ranks[0][name] for name in ("norms", "lr", "updates", "untrained")}}


@pytest.mark.parametrize("job", ["one from two", "four from two"])
def test_checkpoint_goes_on_with_other_ranks(jobs: dict[str, Ranks], job: str) -> None:
    """Weights, optimizer state and schedule are re-sharded: the third update is that of the two ranks."""
    found, expected = merged(jobs[job]), merged(jobs["two"])
    assert jobs[job][0]["loaded"] == jobs["two"][0]["saved"]  # to the bit, on any number of ranks
    close(found["steps"], {role: steps[-2:] for role, steps in expected["steps"].items()})
    close(found["norms"], expected["norms"])
    assert found["updates"] == expected["updates"] == {"actor": 3, "critic": 3}
    assert found["lr"] == {role: rates[-1:] for role, rates in expected["lr"].items()}


@pytest.mark.parametrize("job", ["no weights", "corrupt"])
def test_every_rank_hears_that_rank_0_cannot_read_the_model(jobs: dict[str, Ranks], job: str) -> None:
    assert [rank["error"] for rank in jobs[job]] == ["ModelError", "ModelError"]
    assert all(f"{job} model" in rank["message"] for rank in jobs[job])
