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

pytestmark = pytest.mark.trainer

Ranks = list[dict[str, Any]]
TRAINED = ("actor_rollout_ref.actor.fsdp_config", "critic.model.fsdp_config")
OFFLOAD = [f"{section}.{part}_offload=True" for section in TRAINED for part in ("param", "optimizer", "grad")]
MODELS = ("actor_rollout_ref.model", "critic.model")
LORA = [
    *(f"{model}.{word}" for model in MODELS for word in ("lora_rank=3", "lora_alpha=4")),
    "actor_rollout_ref.actor.use_kl_loss=True",
]
FP16 = [f"{section}.dtype=fp16" for section in TRAINED]
PADDED = (
    "actor_rollout_ref.model.use_remove_padding=False",
    "critic.model.use_remove_padding=False",
    "trainer.balance_batch=False",
)
BY_TOKENS = (
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=14",
    "critic.ppo_max_token_len_per_gpu=20",
    "data.max_prompt_length=7",
)


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
        "two": {"world": 2, "words": tied, "save": checkpoint, "forward": True},
        "padded": {"world": 2, "words": [*tied, *PADDED], "forward": True},
        "by tokens": {"world": 2, "words": [*tied, *BY_TOKENS], "forward": True},
        "one": {"world": 1, "words": tied},
        "four": {"world": 4, "words": tied},
        "one from two": {"world": 1, "words": tied, "load": checkpoint},
        "four from two": {"world": 4, "words": tied, "load": checkpoint},
        "untied": {"world": 2, "words": job_words(words, models / "qwen2")},
        "offloaded": {"world": 2, "words": [*tied, *OFFLOAD], "save": str(folder / "offloaded" / "checkpoint")},
        "lora": {"world": 2, "words": [*tied, *LORA], "save": str(folder / "lora" / "checkpoint")},
        "lora on one": {"world": 1, "words": [*tied, *LORA]},
        "lora offloaded": {"world": 2, "words": [*tied, *LORA, *OFFLOAD]},
        "lora from two": {"world": 1, "words": [*tied, *LORA], "load": str(folder / "lora" / "checkpoint")},
        "fp16": {"world": 2, "words": [*job_words(words, models / "qwen2"), *FP16], "overflow": 2},
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


@pytest.mark.parametrize("job", ["two", "untied", "four", "offloaded", "fp16", "lora"])
def test_ranks_agree_with_each_other(jobs: dict[str, Ranks], job: str) -> None:
    first, *others = jobs[job]
    for other in others:
        assert all(first[name] == other[name] for name in ("checksums", "norms", "engine"))
    if job != "fp16":  # of which the engine has halves
        assert first["engine"] == first["checksums"]["actor"]  # its copy is the whole model, tied or not


@pytest.mark.parametrize("job", ["one", "four"])
def test_other_world_sizes_train_alike(jobs: dict[str, Ranks], job: str) -> None:
    """Losses, gradient norms and weights over three updates; what each rank gets differs, the sums do not."""
    found = merged(jobs[job])
    assert len(found["steps"]["actor"]) == len(found["steps"]["critic"]) == 3 * 2  # updates x mini-batches
    assert found["untrained"] == {"actor": [], "critic": []}
    close(found, merged(jobs["two"]))


@pytest.mark.parametrize("job", ["padded", "by tokens"])
def test_packing_balancing_and_passes_by_tokens_change_nothing(jobs: dict[str, Ranks], job: str) -> None:
    """Two ranks, against packed rows dealt evenly, one row in a pass: answers and losses are the same."""
    found, expected = jobs[job], jobs["two"]
    for name in ("log_probs", "values"):
        for b, row in enumerate(expected[0]["forward"][name]):
            assert found[0]["forward"][name][b] == pytest.approx(row, abs=1e-5), (name, b)
    first, other = (merged(ranks)["steps"] for ranks in (expected, found))
    for role in ("actor", "critic"):
        assert other[role][0] == pytest.approx(first[role][0], abs=1e-5, rel=1e-5)
    close(merged(found), merged(expected))


def test_every_rank_does_as_many_passes(jobs: dict[str, Ranks]) -> None:
    """Fewer than one for each row, more than one for all."""
    assert [rank["passes"] for rank in jobs["two"]] == [[2, 2], [2, 2]]
    first, second = (rank["passes"] for rank in jobs["by tokens"])
    assert first == second and 1 <= min(first) < max(first) <= 2


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


def test_offload_changes_no_bit(jobs: dict[str, Ranks]) -> None:
    """Steps, weights, the engine's copy and the checkpoint of two ranks whose state waits in host memory."""
    assert jobs["offloaded"] == [{name: rank[name] for name in jobs["offloaded"][0]} for rank in jobs["two"]]


def test_adapters_train_alike_on_other_numbers_of_ranks(jobs: dict[str, Ranks]) -> None:
    """Three columns on two ranks; the critic's value head trains beside its adapters. Offload changes no bit."""
    two = merged(jobs["lora"])
    assert two["untrained"] == {"actor": [], "critic": []} and jobs["lora"] != jobs["two"]
    close(merged(jobs["lora on one"]), two)
    assert jobs["lora offloaded"] == [{name: rank[name] for name in jobs["lora offloaded"][0]} for rank in jobs["lora"]]


def test_a_checkpoint_with_adapters_goes_on_with_other_ranks(jobs: dict[str, Ranks]) -> None:
    found, expected = merged(jobs["lora from two"]), merged(jobs["lora"])
    assert jobs["lora from two"][0]["loaded"] == jobs["lora"][0]["saved"]
    close(found["steps"], {role: steps[-2:] for role, steps in expected["steps"].items()})
    close(found["norms"], expected["norms"])


def test_an_overflow_on_one_rank_is_everybodys(jobs: dict[str, Ranks]) -> None:
    """Given a gradient that overflows on the second rank alone, both leave the same step out and halve their scale."""
    first, second = jobs["fp16"]
    for name in ("skipped", "loss_scale"):
        assert first[name] == second[name]
    assert first["skipped"]["actor"] == [0, 1, 0]
    assert first["loss_scale"]["actor"] == [2.0**16, 2.0**16, 2.0**15]
    assert first["skipped"]["critic"][1] >= 1


@pytest.mark.parametrize("job", ["no weights", "corrupt"])
def test_every_rank_hears_that_rank_0_cannot_read_the_model(jobs: dict[str, Ranks], job: str) -> None:
    assert [rank["error"] for rank in jobs[job]] == ["ModelError", "ModelError"]
    assert all(f"{job} model" in rank["message"] for rank in jobs[job])
