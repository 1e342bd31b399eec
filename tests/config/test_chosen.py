"""How actor and critic are trained where the command leaves it open, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.config import check_command, config_text, fact_lines, load
from trainer.config.chosen import CPU, Choice, Device, applied, choose
from trainer.config.expected import expected
from trainer.config.fits import FULL, GIB, NONE, SELECTIVE, SHARE
from trainer.config.schema import Config
from trainer.config.shape import Shape, shape_of

Command = Callable[..., list[str]]
M, C, F = "actor_rollout_ref.model", "critic.model", "actor_rollout_ref.actor.fsdp_config"
QWEN2 = {
    **{"model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28},
    **{"num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
}
SMALL = {**QWEN2, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
BASE = (
    *("actor_rollout_ref.actor.use_dynamic_bsz=True", "critic.ppo_max_token_len_per_gpu=16384"),
    *("data.train_batch_size=64", "actor_rollout_ref.actor.ppo_mini_batch_size=64", "trainer.n_gpus_per_node=1"),
)


def of(*changes: str) -> Config:
    return load([*BASE, *changes]).config


def shapes(config: dict[str, object] = QWEN2) -> dict[str, Shape | None]:
    return dict.fromkeys(("actor", "critic"), shape_of(config))


def gpu(free: float, *, compiles: bool = True) -> Device:
    return Device(cuda=True, compiles=compiles, free=int(free * GIB), total=80 * GIB)


def chosen(device: Device, *changes: str) -> dict[str, Choice]:
    return {choice.role: choice for choice in choose(of(*changes), shapes(), device)}


GRPO = "algorithm.adv_estimator=grpo"


def test_on_a_cpu_nothing_changes() -> None:
    """All keys are null; what comes out is what the defaults were: the same lines of the learner run."""
    config = of()
    after = applied(config, choose(config, {}, CPU), CPU)
    model, fsdp = after.actor_rollout_ref.model, after.actor_rollout_ref.actor.fsdp_config
    assert (model.enable_gradient_checkpointing, model.recompute_granularity) == (True, "full")
    assert after.critic.model.enable_gradient_checkpointing is True
    for each in (fsdp, after.critic.model.fsdp_config, after.actor_rollout_ref.ref.fsdp_config):
        assert (each.use_torch_compile, each.reshard_after_forward) == (False, True)


def test_on_a_gpu_layers_are_compiled_and_the_least_is_recomputed() -> None:
    config = of(GRPO)
    [choice] = choose(config, shapes(), gpu(78))
    assert (choice.plan.compiled, choice.plan.recompute, choice.plan.reshard) == (True, NONE, False)
    after = applied(config, (choice,), gpu(78))
    assert after.actor_rollout_ref.model.enable_gradient_checkpointing is False
    assert after.actor_rollout_ref.actor.fsdp_config.use_torch_compile is True
    assert after.actor_rollout_ref.actor.fsdp_config.reshard_after_forward is False
    reference = after.actor_rollout_ref.ref.fsdp_config
    assert (reference.use_torch_compile, reference.reshard_after_forward) == (True, True)


def test_a_share_is_left_free() -> None:
    """0.9 of what is free: an update of 60.0 GiB fits into 67, and no longer into 66."""
    assert SHARE == 0.9
    found = [chosen(gpu(free), GRPO)["actor"].plan for free in (67, 66)]
    assert [plan.recompute for plan in found] == [NONE, SELECTIVE]
    assert [(plan.budget, plan.reshard) for plan in found] == [(None, False), (0.75, False)]


def test_other_models_on_the_same_gpu_take_their_share() -> None:
    """A critic has 12 bytes of each parameter there, a reference 4; in host memory they take nothing."""
    alone, both = chosen(gpu(78), GRPO)["actor"], chosen(gpu(78))["actor"]
    assert alone.plan.recompute == NONE and both.plan.recompute == SELECTIVE
    waiting = chosen(gpu(78), f"{C}.fsdp_config.param_offload=True", f"{C}.fsdp_config.optimizer_offload=True")
    assert waiting["actor"].plan.recompute == NONE
    apart = chosen(
        gpu(78),
        "trainer.n_gpus_per_node=2",
        *("trainer.device_mapping.actor=[0]", "trainer.device_mapping.critic=[1]", "trainer.device_mapping.ref=[0]"),
        "trainer.device_mapping.rollout=[0]",
    )
    assert apart["actor"].plan.recompute == NONE


def test_ranks_share_what_a_model_keeps() -> None:
    few, many = (chosen(gpu(48), GRPO, f"trainer.n_gpus_per_node={ranks}")["actor"].plan for ranks in (1, 8))
    assert few.recompute == SELECTIVE and many.recompute == NONE


@pytest.mark.parametrize(
    ("changes", "plan"),
    [
        ((f"{M}.enable_gradient_checkpointing=True",), (True, SELECTIVE, 0.75, False)),
        ((f"{M}.enable_gradient_checkpointing=False",), (True, NONE, None, False)),
        ((f"{M}.recompute_granularity=full",), (True, FULL, None, False)),
        ((f"{M}.recompute_granularity=selective",), (True, SELECTIVE, 0.75, False)),
        ((f"{M}.activation_memory_budget=0.7",), (True, SELECTIVE, 0.7, False)),
        ((f"{F}.use_torch_compile=False",), (False, FULL, None, False)),
        ((f"{F}.reshard_after_forward=True",), (True, NONE, None, True)),
    ],
)
def test_a_key_that_is_given_stands(changes: tuple[str, ...], plan: tuple[bool, str, float | None, bool]) -> None:
    config = of(GRPO, *changes)
    [choice] = choose(config, shapes(), gpu(78))
    assert (choice.plan.compiled, choice.plan.recompute, choice.plan.budget, choice.plan.reshard) == plan
    key, _, value = changes[0].rpartition("=")
    assert choice.given == (key.rpartition(".")[2],) and f"(given: {choice.given[0]})" in str(choice)
    section = applied(config, (choice,), gpu(78)).actor_rollout_ref
    holder = section.actor.fsdp_config if key.startswith(F) else section.model
    assert str(getattr(holder, choice.given[0])) == value


def test_where_the_compiler_does_not_work_layers_run_as_they_are() -> None:
    choice = chosen(gpu(78, compiles=False), GRPO)["actor"]
    assert not choice.plan.compiled and choice.plan.budget is None
    assert choice.why.endswith("torch's compiler does not work here")
    config = of(GRPO)
    assert (
        applied(config, (choice,), gpu(78, compiles=False)).actor_rollout_ref.ref.fsdp_config.use_torch_compile is False
    )


def test_what_does_not_fit_takes_the_least_and_says_so() -> None:
    choice = chosen(gpu(20), GRPO)["actor"]
    assert (choice.plan.recompute, choice.plan.reshard) == (FULL, True)
    assert "more than the 18.0 that are left: " in choice.why
    assert choice.why.endswith("only more GPUs, or offloading, take less"), "16 bytes of each parameter do not fit"
    assert chosen(gpu(28), GRPO)["actor"].why.endswith("smaller passes take less")


def test_a_model_on_megatron_has_settings_of_its_own() -> None:
    config = of(GRPO, "actor_rollout_ref.actor.strategy=megatron")
    assert choose(config, shapes(), gpu(78)) == ()


# ------------------------------------------------------------------------------------------------------- what is said


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "sizes").mkdir()
    (tmp_path / "sizes/config.json").write_text(json.dumps(QWEN2))
    return f"{M}.path={tmp_path / 'sizes'}"


def test_check_says_what_is_chosen_and_why(command: Command, model_dir: Path) -> None:
    (model_dir / "config.json").write_text(json.dumps({**SMALL, "hidden_size": 4, "vocab_size": 3}))
    lines = dict(line.split(" = ") for line in fact_lines(check_command(command("trainer.device=cuda"))))
    plan, why = lines["actor_training"].split("   # ")
    assert plan == "layers compiled, nothing recomputed, parameters whole" and why.startswith("an update takes")
    assert "critic_training" in lines
    lines = dict(line.split(" = ") for line in fact_lines(check_command(command("trainer.device=cpu"))))
    assert lines["actor_training"] == (
        "layers not compiled, all recomputed, parameters sharded again after each layer"
        "   # on a CPU nothing is chosen; trainer.device is cpu"
    )


def test_the_configuration_is_printed_with_it(model: str) -> None:
    text = config_text(load([*BASE, model, "trainer.device=cuda", GRPO, f"{M}.recompute_granularity=full"]))
    [line] = [line for line in text.splitlines() if line.startswith("# actor: ")]
    assert line.startswith("# actor: layers compiled, all recomputed, parameters whole: given: recompute_granularity; ")
    assert " GiB; on GPUs of " in line
    assert f"{F}.use_torch_compile" in text and "= null" in text


def test_a_model_that_is_not_here_is_chosen_for_later() -> None:
    said = list(expected(of(f"{M}.path=org/name", "trainer.device=cuda", GRPO)).lines())
    assert [(role, plan) for role, plan, _ in said] == [("actor", "chosen when the model is loaded")]


def test_batches_that_do_not_come_out_even_are_an_error_elsewhere(model: str) -> None:
    config = of(model, "trainer.device=cuda", "actor_rollout_ref.actor.ppo_mini_batch_size=48")
    assert list(expected(config).lines()) == []


@pytest.mark.parametrize(("frees", "room"), [(True, 70.2), (False, 34.2)])
def test_an_engine_that_keeps_its_memory_leaves_less(
    model: str, frees: bool, room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of 80 GiB, beside 2 that CUDA takes itself."""
    monkeypatch.setattr("trainer.config.expected._smallest_gpu", lambda: None)  # as on a machine without one
    words = ("actor_rollout_ref.rollout.name=sglang", "actor_rollout_ref.rollout.tensor_model_parallel_size=1")
    config = of(model, "trainer.device=cuda", GRPO, *words, f"actor_rollout_ref.rollout.free_cache_engine={frees}")
    [(_, _, why)] = expected(config).lines()
    assert f" of {room:.1f} GiB" in why
