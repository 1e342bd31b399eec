"""Megatron beside FSDP2 on the same tiny models and batches: losses, gradient norms, weights, checkpoints.

The ranks are processes over gloo, without Ray; megatron-core runs as it is, on the CPU.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.pace import stretched
from tests.trainer.conftest import Words, locked
from tests.trainer.test_world_sizes import BY_TOKENS, Ranks, job_words, run_jobs
from trainer.balance import PassLimit
from trainer.config import check, load, resolve
from trainer.errors import ConfigError, ModelError
from trainer.learner.megatron.structure import dimensions, fitting
from trainer.requirements import require_engines

DEADLINE_S = stretched(300.0)  # of thirty ranks that take half a minute on an idle machine
pytestmark = [pytest.mark.trainer, pytest.mark.timeout(DEADLINE_S + 60)]

A, C = "actor_rollout_ref.actor", "critic"
ON = f"{A}.strategy=megatron"
TP, PP = (f"{A}.megatron.{kind}_model_parallel_size=2" for kind in ("tensor", "pipeline"))
RECOMPUTE = f"{A}.megatron.override_transformer_config.recompute"


def both(setting: str) -> tuple[str, str]:
    """A key below `megatron` of actor and critic."""
    return f"{A}.megatron.{setting}", f"{C}.megatron.{setting}"


def all_jobs(words: Words, models: Path, folder: Path) -> dict[str, Any]:
    def job(model: str, world: int, *changes: str, **state: str | bool) -> dict[str, Any]:
        return {
            "world": world,
            "words": [*job_words(words, models / model), f"trainer.n_gpus_per_node={world}", *changes],
            **state,
        }

    full = (f"{RECOMPUTE}_{end}" for end in ("granularity=full", "method=uniform", "num_layers=1"))
    selective = f"{C}.megatron.override_transformer_config.recompute_granularity=selective"
    of_dp, of_fsdp = str(folder / "dp, recomputed" / "checkpoint"), str(folder / "fsdp" / "checkpoint")
    four = ("qwen2-tied", 4, ON, TP, "trainer.balance_batch=True")
    bf16 = (f"{A}.fsdp_config.dtype=bf16", "critic.model.fsdp_config.dtype=bf16")
    return {
        "fsdp": job("qwen2-tied", 1, save=of_fsdp, forward=True, capsule=str(folder / "fsdp.capsule")),
        "dp, recomputed": job("qwen2-tied", 2, ON, *full, selective, save=of_dp),
        "tp": job("qwen2-tied", 2, ON, TP, *both("use_distributed_optimizer=False")),
        "pp": job("qwen2-tied", 2, ON, PP),
        "tp from dp": job("qwen2-tied", 2, ON, TP, *both("sequence_parallel=False"), load=of_dp),
        "pp from fsdp": job("qwen2-tied", 2, ON, PP, load=of_fsdp, capsule=str(folder / "pp.capsule")),
        "bf16 fsdp": job("qwen2-tied", 1, *bf16),
        "bf16 tp": job("qwen2-tied", 2, ON, TP, *both("dtype=bf16")),
        "llama fsdp": job("llama", 1),
        "llama pp": job("llama", 2, ON, PP, *both("use_distributed_optimizer=False")),
        "dp x tp, by tokens": job(*four, *BY_TOKENS, forward=True),
        "dp x pp": job("qwen2-tied", 4, ON, PP, "trainer.balance_batch=True", forward=True),
        "tp x pp": job(*four, PP, *both("use_distributed_optimizer=False"), forward=True),
        "pp, critic on fsdp": job("qwen2-tied", 2, ON, PP, *BY_TOKENS, "critic.strategy=fsdp2", forward=True),
        "gaps, fsdp": job("qwen2-tied", 1, gaps=True, forward=True),
        "gaps, tp": job("qwen2-tied", 2, ON, TP, gaps=True, forward=True),
        "gaps, pp by tokens": job("qwen2-tied", 2, ON, PP, *BY_TOKENS, gaps=True, forward=True),
        "gemma": job("gemma", 2, ON),
    }


@pytest.fixture(scope="module")
def jobs(words: Words, models: Path, shared: Path) -> dict[str, Ranks]:
    """What the ranks of each job found."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed: pip install 'ray-devkit[megatron]'")
    folder = shared / "trainer-megatron"
    with locked(shared / "trainer-megatron.lock"):
        if not folder.exists():
            folder.mkdir()
            run_jobs(folder, all_jobs(words, models, folder), DEADLINE_S)
    return {
        job.name: [json.loads(file.read_text()) for file in sorted(job.glob("rank*.json"))]
        for job in folder.iterdir()
        if (job / "rank0.json").exists()
    }


def merged(ranks: Ranks) -> dict[str, Any]:
    """A run as its driver sees it: the losses of different rows added up, those of the same rows taken once."""
    first = ranks[0]
    return {"steps": first["whole"], **{name: first[name] for name in ("norms", "lr", "updates", "untrained")}}


def within(found: Any, expected: Any, tolerance: float) -> None:
    """Losses and gradient norms of each step, absolutely below 1 and relatively above."""
    for role in ("actor", "critic"):
        for step, wanted in zip(found[role], expected[role], strict=True):
            assert step == pytest.approx(wanted, rel=tolerance, abs=tolerance), role


def alike(found: Any, expected: Any) -> None:
    """Norm and sum of each tensor. Adam divides by the root of a moment: near 0 it makes much of a rounding."""
    assert found.keys() == expected.keys()
    for role, norms in expected.items():
        assert found[role] == {name: pytest.approx(pair, rel=1e-4, abs=2e-5) for name, pair in norms.items()}


SPLIT = ["dp x tp, by tokens", "dp x pp", "tp x pp", "pp, critic on fsdp"]


@pytest.mark.parametrize("job", ["dp, recomputed", "tp", "pp", *SPLIT])
def test_trains_as_fsdp_does(jobs: dict[str, Ranks], job: str) -> None:
    """Three float32 updates of actor and critic: every loss and norm within 1e-5, the weights within rounding."""
    found, expected = merged(jobs[job]), merged(jobs["fsdp"])
    assert len(found["steps"]["actor"]) == 3 * 2
    within(found["steps"], expected["steps"], 1e-5)
    alike(found["norms"], expected["norms"])
    assert (found["lr"], found["updates"]) == (expected["lr"], expected["updates"])
    assert found["untrained"] == {"actor": [], "critic": []}


@pytest.mark.parametrize("job", SPLIT)
def test_every_row_has_its_answer_however_ranks_and_passes_are_dealt(jobs: dict[str, Ranks], job: str) -> None:
    """Balanced over two copies of two ranks, or four ranks to a copy: log-probs and values are those of one rank."""
    for name, expected in jobs["fsdp"][0]["forward"].items():
        for rank in jobs[job]:
            for b, row in enumerate(expected):
                assert rank["forward"][name][b] == pytest.approx(row, abs=1e-5), (name, b)


@pytest.mark.parametrize("job", ["gaps, tp", "gaps, pp by tokens"])
def test_masks_with_gaps_train_as_under_fsdp(jobs: dict[str, Ranks], job: str) -> None:
    """Of conversations: observations are read, and no loss is of them."""
    found, expected = merged(jobs[job]), merged(jobs["gaps, fsdp"])
    within(found["steps"], expected["steps"], 1e-5)
    alike(found["norms"], expected["norms"])
    forward, other = jobs[job][-1]["forward"], jobs["gaps, fsdp"][0]["forward"]
    for name in ("log_probs", "values"):
        for b, row in enumerate(other[name]):
            assert forward[name][b] == pytest.approx(row, abs=1e-5), (name, b)
    assert merged(jobs["fsdp"])["steps"] != expected["steps"]


def test_ranks_of_a_copy_take_the_same_rows(jobs: dict[str, Ranks]) -> None:
    """Mini-batches of 4 sequences: 2 for each of two copies, 4 for the one of four ranks."""
    assert [rank["rows"] for rank in jobs["dp x tp, by tokens"]] == [[2, 2]] * 4
    first, second, third, fourth = (rank["steps"]["actor"][0]["actor/pg_loss"] for rank in jobs["dp x tp, by tokens"])
    assert first == second != third == fourth
    assert [rank["rows"] for rank in jobs["dp x pp"]] == [[2, 2]] * 4
    assert [rank["rows"] for rank in jobs["tp x pp"]] == [[4, 4]] * 4


def test_trains_llama_as_fsdp_does(jobs: dict[str, Ranks]) -> None:
    """Without biases, the output layer its own, over two stages."""
    found, expected = merged(jobs["llama pp"]), merged(jobs["llama fsdp"])
    within(found["steps"], expected["steps"], 1e-5)
    alike(found["norms"], expected["norms"])


def test_bf16_has_the_same_losses_within_a_thousandth(jobs: dict[str, Ranks]) -> None:
    """Before the first step they are of the same weights; later ones differ by what bfloat16 rounds."""
    found, expected = merged(jobs["bf16 tp"])["steps"], merged(jobs["bf16 fsdp"])["steps"]
    for role, norm in (("actor", "actor/pg_loss"), ("critic", "critic/vf_loss")):
        assert found[role][0][norm] == pytest.approx(expected[role][0][norm], abs=1e-3)
        assert found[role][0]["grad_norm"] == pytest.approx(expected[role][0]["grad_norm"], rel=1e-2)


@pytest.mark.parametrize("job", ["dp, recomputed", "tp", "pp", "bf16 tp"])
def test_every_rank_exports_the_same_and_the_engine_gets_it(jobs: dict[str, Ranks], job: str) -> None:
    first, other = jobs[job]
    assert all(first[name] == other[name] for name in ("checksums", "norms", "engine"))
    assert first["engine"] == first["checksums"]["actor"]


@pytest.mark.parametrize(("job", "saver"), [("tp from dp", "dp, recomputed"), ("pp from fsdp", "fsdp")])
def test_checkpoints_continue_on_other_sizes_and_from_the_other_engine(
    jobs: dict[str, Ranks], job: str, saver: str
) -> None:
    """Weights to the bit, and the third update, with its moments and schedule, is that of the run that went on."""
    assert jobs[job][0]["loaded"] == jobs[saver][0]["saved"]
    found, expected = merged(jobs[job]), merged(jobs[saver])
    within(found["steps"], {role: steps[-2:] for role, steps in expected["steps"].items()}, 1e-5)
    alike(found["norms"], expected["norms"])
    assert found["updates"] == {"actor": 3, "critic": 3}


def test_a_capsule_of_several_ranks_has_what_one_of_fsdp_has(jobs: dict[str, Ranks]) -> None:
    """Of the third update: weights to the bit, counts, and how far each tensor moves."""
    (found, other), expected = jobs["pp from fsdp"], jobs["fsdp"][0]
    assert found["held"] == expected["held"]
    assert found["held"]["actor"][:2] == [4, 2]  # optimizer steps, updates
    for role, norms in expected["moved"].items():
        assert found["moved"][role] == pytest.approx(norms, rel=1e-3)
    assert other["moved"] == {"actor": {}, "critic": {}}


def test_every_rank_hears_of_a_model_that_megatron_does_not_know(jobs: dict[str, Ranks]) -> None:
    assert [rank["error"] for rank in jobs["gemma"]] == ["ModelError", "ModelError"]
    assert "model_type=gemma" in jobs["gemma"][0]["message"]


def test_a_model_that_cannot_be_split_so_is_refused(models: Path) -> None:
    from transformers import AutoConfig

    sizes = dimensions(AutoConfig.from_pretrained(models / "qwen2"), value=False)
    fitting(sizes, 2, 2)
    with pytest.raises(ModelError, match="2 key-value heads over tensor_model_parallel_size=4"):
        fitting(sizes, 4, 1)
    with pytest.raises(ModelError, match="2 layers over pipeline_model_parallel_size=4"):
        fitting(sizes, 1, 4)


@pytest.mark.filterwarnings("ignore")  # Megatron's import has many
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_pass_computes_what_its_budget_counts(tensor: int) -> None:
    import torch

    from tests.trainer.batches import train_batch
    from trainer.learner.megatron.tokens import aligned

    rollout = train_batch(8).experience.rollout
    limit = PassLimit(tokens=1, padded_to=tensor)
    assert aligned(rollout, tensor, torch.device("cpu")).ids_BS.numel() == limit.size(rollout.lengths_B.tolist())


@pytest.mark.parametrize("version", [None, "0.12.3", "1.0.0"])
def test_a_missing_or_other_megatron_is_one_error(
    words: Words, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    def found(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)
    said = "not installed" if version is None else f"{version} is installed"
    for strategy in (f"{A}.strategy=megatron", "critic.strategy=megatron"):
        with pytest.raises(ConfigError, match=said) as raised:
            require_engines(load(words(strategy)).config)
        assert "megatron-core 0.16" in raised.value.hint
    require_engines(load(words()).config)


@pytest.mark.parametrize(
    ("changes", "key", "part"),
    [
        (("trainer.n_gpus_per_node=3", TP), f"{A}.megatron.tensor_model_parallel_size", "do not divide the 3 ranks"),
        (("trainer.n_gpus_per_node=4", TP, "critic.megatron.tensor_model_parallel_size=1"),
         "critic.megatron.tensor_model_parallel_size", "not the actor's 2"),
        ((f"{RECOMPUTE}_granularity=full",), f"{RECOMPUTE}_method", "does not say what is recomputed"),
        ((f"{RECOMPUTE}_granularity=selective", f"{RECOMPUTE}_method=block"),
         f"{RECOMPUTE}_method", "not of selective"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(words: Words, changes: tuple[str, ...], key: str, part: str) -> None:
    size = ("data.train_batch_size=12", f"{A}.ppo_mini_batch_size=12", f"{A}.ppo_micro_batch_size_per_gpu=1")
    report = check(resolve(words(ON, *size, "critic.ppo_micro_batch_size_per_gpu=1", *changes)))
    assert [problem.key for problem in report.problems] == [key]
    assert part in report.problems[0].message and report.problems[0].hint


def test_micro_batches_are_counted_by_copy_of_the_model(words: Words) -> None:
    """Four ranks, two copies: a mini-batch of 4 sequences is 2 per copy, so passes of 2 fit."""
    sizes = (f"{A}.ppo_micro_batch_size_per_gpu=2", "critic.ppo_micro_batch_size_per_gpu=2")
    assert check(resolve(words("trainer.n_gpus_per_node=4", ON, TP, *sizes))).ok
    assert not check(resolve(words("trainer.n_gpus_per_node=4", *sizes))).ok


def test_the_critic_follows_the_actor(words: Words) -> None:
    config = load(words("trainer.n_gpus_per_node=2", ON, TP)).config
    assert config.critic.strategy == "megatron" and config.critic.megatron.tensor_model_parallel_size == 2


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ((ON, f"{A}.fsdp_config.param_offload=True"), f"{A}.fsdp_config.param_offload"),
        ((ON, "critic.model.fsdp_config.dtype=bf16"), "critic.model.fsdp_config.dtype"),
        ((ON, "actor_rollout_ref.ref.fsdp_config.dtype=bf16"), "actor_rollout_ref.ref.fsdp_config.dtype"),
        ((ON,), "critic.model.enable_gradient_checkpointing"),
        ((TP,), f"{A}.megatron.tensor_model_parallel_size"),
        (("critic.megatron.dtype=bf16",), "critic.megatron.dtype"),
        ((f"{RECOMPUTE}_granularity=full",), f"{RECOMPUTE}_granularity"),
    ],
)
def test_settings_of_the_engine_that_is_not_used_are_told(words: Words, changes: tuple[str, ...], key: str) -> None:
    size = ("trainer.n_gpus_per_node=2", f"{A}.ppo_micro_batch_size_per_gpu=1", "critic.ppo_micro_batch_size_per_gpu=1")
    notes = [note for note in check(resolve(words(*size, *changes))).notes if note.kind == "inert"]
    assert key in [note.key for note in notes]
    plain = {note.key for note in check(resolve(words(*size))).notes}
    assert key not in plain and not [name for name in plain if "megatron" in name]


def test_a_key_that_follows_one_without_effect_is_not_told(words: Words) -> None:
    followed = "actor_rollout_ref.ref.fsdp_config.dtype"
    for changes in ((ON,), (ON, f"{A}.fsdp_config.dtype=bf16")):
        assert followed not in {note.key for note in check(resolve(words(*changes))).notes}


def test_the_sizes_of_a_critic_on_megatron_beside_an_actor_on_fsdp_act(words: Words) -> None:
    report = check(resolve(words("trainer.n_gpus_per_node=2", "critic.strategy=megatron", TP)))
    assert not [note for note in report.notes if "parallel_size" in note.key]


def test_a_capsule_whose_weights_are_in_megatrons_checkpoint_is_refused(words: Words) -> None:
    """A replay is under FSDP2, which does not read it."""
    report = check(resolve(words(ON, "trainer.capsule_dir=/x", "trainer.capsule_weights=checkpoint")))
    assert [problem.key for problem in report.problems] == ["trainer.capsule_weights"]
