"""A full run's command becomes one that takes seconds, and what decides the maths is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit import cli
from devkit.smoke.enough import require_rows
from devkit.smoke.problems import write_parquet
from devkit.smoke.shrink import (
    DEFAULTS,
    KEPT,
    MAX_NODES,
    Plan,
    make_plan,
    replaced,
    with_defaults,
)
from devkit.smoke.sizing import MAX_MICRO_BATCHES, MAX_SAMPLES, MAX_STEPS_PER_EPOCH, MIN_ROWS
from tests.config.conftest import SEED_SCRIPTS, write_rows
from trainer.config import check, micro_batch_sizes, resolve
from trainer.config.batches import arithmetic_problems
from trainer.config.megatron import megatron_problems
from trainer.config.problems import ConfigErrors
from trainer.config.schema import Config
from trainer.errors import ConfigError
from trainer.grid import actor_grid
from trainer.rollout import versions

ACTOR, M = "actor_rollout_ref.actor", "actor_rollout_ref.model"


def tiny_of(plan: Plan, *words: str) -> Config:
    """The pipeline run's configuration."""
    return resolve([*plan.overrides, *words], plan.dialect).config


def value(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config


def steps(config: Config) -> int:
    return config.data.train_batch_size // config.actor_rollout_ref.actor.ppo_mini_batch_size


def passes(config: Config) -> int:
    """Micro-batches of a mini-batch, on each rank."""
    actor, n = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    size = micro_batch_sizes(config).actor_update.sequences(config.longest_sequence)
    return max(1, actor.ppo_mini_batch_size * n // config.world_size // size)


@pytest.mark.parametrize("script", SEED_SCRIPTS, ids=lambda script: script.stem)
class TestSeed:
    """Each of the six launch commands."""

    def test_what_decides_the_maths_is_kept(self, script: Path, local_seed: Callable[[Path], list[str]]) -> None:
        plan = make_plan(local_seed(script), None)
        full, tiny = plan.full, tiny_of(plan)
        for key in KEPT:
            if key not in ("trainer.nnodes", "actor_rollout_ref.rollout.n", "data.truncation"):
                assert value(tiny, key) == value(full, key), key
        cut_prompts = full.data.truncation
        assert tiny.data.truncation == ("left" if cut_prompts == "error" else cut_prompts)
        assert tiny.actor_rollout_ref.rollout.n == min(full.actor_rollout_ref.rollout.n, MAX_SAMPLES)
        assert tiny.trainer.nnodes == min(full.trainer.nnodes, MAX_NODES) == plan.nodes
        assert (tiny.uses_critic, tiny.uses_reference) == (full.uses_critic, full.uses_reference)

    def test_the_numbers_of_batches_are_kept(self, script: Path, local_seed: Callable[[Path], list[str]]) -> None:
        plan = make_plan(local_seed(script), None)
        full, tiny = plan.full, tiny_of(plan)
        assert steps(tiny) == min(steps(full), MAX_STEPS_PER_EPOCH)
        assert passes(tiny) == min(passes(full), MAX_MICRO_BATCHES)

    def test_the_result_is_sound(
        self, script: Path, local_seed: Callable[[Path], list[str]], model_dir: Path, tmp_path: Path
    ) -> None:
        plan = make_plan(local_seed(script), None)
        data = write_rows(tmp_path / "tiny.parquet", 64)
        paths: dict[str, Any] = {key: [data] for key in ("data.train_files", "data.val_files")}
        paths |= dict.fromkeys(("actor_rollout_ref.model.path", "critic.model.path"), str(model_dir))
        assert check(resolve(replaced(plan.overrides, paths), plan.dialect)).problems == ()

    def test_the_lists_say_what_happened(self, script: Path, local_seed: Callable[[Path], list[str]]) -> None:
        plan = make_plan(local_seed(script), None)
        tiny = tiny_of(plan)
        assert {key: value(plan.full, key) for key in plan.kept} == plan.kept
        for cut in plan.cut:
            assert (value(plan.full, cut.key), value(tiny, cut.key)) == (cut.full, cut.tiny), cut.key
            assert cut.full != cut.tiny
            assert cut.why
        assert {cut.key for cut in plan.cut if cut.given} >= {"data.train_batch_size", "data.max_prompt_length"}


LARGE = ("data.train_batch_size=1024", f"{ACTOR}.ppo_mini_batch_size=256", f"{ACTOR}.ppo_micro_batch_size_per_gpu=8")
CRITIC = "critic.ppo_micro_batch_size_per_gpu=8"


@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_truncation_is_kept(side: str) -> None:
    plan = make_plan([f"data.truncation={side}", "data.shuffle=False"], None)
    assert (plan.kept["data.truncation"], plan.kept["data.shuffle"]) == (side, False)
    assert (tiny_of(plan).data.truncation, tiny_of(plan).data.shuffle) == (side, False)
    assert "data.truncation" not in {cut.key for cut in plan.cut}


def test_a_truncation_that_ends_the_run_is_cut() -> None:
    plan = make_plan(["data.truncation=error"], None)
    [cut] = [cut for cut in plan.cut if cut.key == "data.truncation"]
    assert (cut.full, cut.tiny, cut.given, tiny_of(plan).data.truncation) == ("error", "left", True, "left")
    assert "would abort the run" in cut.why and "data.truncation" not in plan.kept


def test_a_bare_call_runs_the_defaults() -> None:
    plan = make_plan([], None)
    assert (plan.nodes, plan.ranks_per_node, plan.own_data, plan.like) == (2, 1, True, None)
    assert plan.overrides[: len(DEFAULTS)] == DEFAULTS
    assert [cut.key for cut in plan.cut if cut.given] == []
    assert plan.kept["trainer.nnodes"] == 2


@pytest.mark.parametrize(
    ("engine", "version", "error", "hint"),
    [
        ("tgi", None, "--rollout tgi is not a rollout engine", "choose from hf, sglang, vllm"),
        ("sglang", None, "sglang is not installed here", "pip install 'sglang>="),
        ("vllm", None, "vllm is not installed here", "pip install 'vllm>="),
        ("vllm", "0.8.5", "vllm 0.8.5 is installed here", "pip install 'vllm>="),
    ],
)
def test_an_engine_that_can_not_be_had_is_one_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    engine: str,
    version: str | None,
    error: str,
    hint: str,
) -> None:
    """Before anything is started."""
    monkeypatch.setattr(versions, "installed", lambda _name: version)
    assert cli.main(["smoke", "--tiny", "--rollout", engine]) == 2
    said = capsys.readouterr()
    first, second = said.err.splitlines()
    assert first.startswith("error: ") and error in first
    assert second.startswith("hint: ") and hint in second
    assert said.out == ""


@pytest.mark.parametrize(
    ("words", "added"),
    [
        ([], len(DEFAULTS)),
        (["actor_rollout_ref.rollout.temperature=0.5"], len(DEFAULTS) - 1),
        (["+trainer.nnodes=1"], len(DEFAULTS) - 1),
        (["data.train_batch_size=64"], 0),
    ],
)
def test_defaults_give_way(words: list[str], added: int) -> None:
    made = with_defaults(words)
    assert list(made[added:]) == words
    assert len(made) == added + len(words)


def test_a_folder_of_the_full_run_that_cannot_be_made_here_is_not_needed() -> None:
    assert make_plan(["trainer.default_local_dir=/proc/checkpoints"], None).overrides


def test_kept_and_cut_by_name() -> None:
    words = [*LARGE, CRITIC, "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=5", "trainer.nnodes=8"]
    plan = make_plan([*words, "trainer.n_gpus_per_node=4", f"{ACTOR}.optim.lr=1e-6"], None)
    cuts = {cut.key: cut for cut in plan.cut}
    assert plan.kept["algorithm.adv_estimator"] == "grpo"
    assert plan.kept["actor_rollout_ref.rollout.n"] == 5
    assert (cuts["trainer.nnodes"].full, cuts["trainer.nnodes"].tiny) == (8, MAX_NODES)
    assert cuts["trainer.nnodes"].given
    assert not cuts["trainer.save_freq"].given
    assert "algorithm.adv_estimator" not in cuts
    assert "data.train_batch_size" in cuts


@pytest.mark.parametrize(
    ("nodes", "gpus", "sizes", "tiny"),
    [
        (2, 8, (4, 2), (2, 1)),  # two ranks are one matrix's
        (4, 8, (8, 4), (2, 2)),
        (1, 8, (1, 4), (1, 2)),
        (1, 8, (1, 1), (1, 1)),
        (3, 8, (8, 1), (1, 1)),  # three ranks have no halves
    ],
)
@pytest.mark.parametrize("critic", ["megatron", "fsdp"])
def test_parallel_sizes_fit_the_ranks(
    nodes: int, gpus: int, sizes: tuple[int, int], tiny: tuple[int, int], critic: str
) -> None:
    """And the batches come out even for the copies of each model, with as many micro-batches as there were."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    tensor, pipeline = sizes
    plan = make_plan(
        [
            *(f"{ACTOR}.strategy=megatron", f"critic.strategy={critic}", f"trainer.nnodes={nodes}"),
            *("data.train_batch_size=1536", f"{ACTOR}.ppo_mini_batch_size=384", f"trainer.n_gpus_per_node={gpus}"),
            *(f"{ACTOR}.ppo_micro_batch_size_per_gpu=16", "critic.ppo_micro_batch_size_per_gpu=4"),
            f"{ACTOR}.megatron.tensor_model_parallel_size={tensor}",
            f"{ACTOR}.megatron.pipeline_model_parallel_size={pipeline}",
            f"{ACTOR}.megatron.override_transformer_config.recompute_num_layers=4",
        ],
        None,
    )
    config = tiny_of(plan)
    megatron = config.actor_rollout_ref.actor.megatron
    assert (megatron.tensor_model_parallel_size, megatron.pipeline_model_parallel_size) == tiny
    assert megatron.override_transformer_config.recompute_num_layers == 1 and megatron.dtype == "fp32"
    assert not list(arithmetic_problems(config)) and not list(megatron_problems(config))
    assert copies_passes(config) == min(copies_passes(plan.full), MAX_MICRO_BATCHES)
    assert plan.kept[f"{ACTOR}.strategy"] == "megatron"


def copies_passes(config: Config) -> int:
    """Micro-batches of the actor's mini-batch, on each copy of it."""
    actor = config.actor_rollout_ref.actor
    assert actor.ppo_micro_batch_size_per_gpu
    return actor.ppo_mini_batch_size // actor_grid(config).copies // actor.ppo_micro_batch_size_per_gpu


def test_one_node_has_two_ranks() -> None:
    plan = make_plan([*LARGE, CRITIC, "trainer.nnodes=1", "trainer.n_gpus_per_node=8"], None)
    assert (plan.nodes, plan.ranks_per_node) == (1, 2)


def test_the_model_folder_gives_the_architecture(model_dir: Path) -> None:
    assert make_plan([f"actor_rollout_ref.model.path={model_dir}"], None).like == str(model_dir)
    assert make_plan(["actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct"], None).like is None


def test_every_problem_of_the_command_is_told_at_once() -> None:
    with pytest.raises(ConfigErrors) as caught:
        make_plan(["algorithm.adv_estimatr=grpo", "actor_rollout_ref.rollout.temperature=-1", "trainer.nnodes=0"], None)
    told = str(caught.value)
    assert "adv_estimatr" in told
    assert len(caught.value.problems) >= 2


@settings(deadline=None, max_examples=15)  # of a sixth of a second each
@given(
    mini=st.sampled_from([1, 2, 3, 6, 8, 64, 96, 256]),
    steps_=st.integers(1, 9),
    n=st.integers(1, 12),
    nodes=st.integers(1, 9),
    gpus=st.sampled_from([1, 2, 4, 8]),
    split=st.integers(1, 9),
)
def test_any_sound_batch_arithmetic_becomes_a_sound_one(
    mini: int, steps_: int, n: int, nodes: int, gpus: int, split: int
) -> None:
    """Given as multiples, so that most draws are sound; those that aren't are refused with a reason."""
    mini *= nodes * gpus
    per_rank = mini * n // (nodes * gpus)
    micro = max(1, per_rank // split)
    words = [
        f"data.train_batch_size={mini * steps_}",
        f"{ACTOR}.ppo_mini_batch_size={mini}",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu={micro}",
        f"critic.ppo_micro_batch_size_per_gpu={micro}",
        f"actor_rollout_ref.rollout.n={n}",
        f"trainer.nnodes={nodes}",
        f"trainer.n_gpus_per_node={gpus}",
    ]
    try:
        plan = make_plan(words, None)
    except ConfigErrors:
        assert per_rank % micro != 0
        return
    tiny = tiny_of(plan)
    actor, samples = tiny.actor_rollout_ref.actor, tiny.actor_rollout_ref.rollout.n
    rows = actor.ppo_mini_batch_size * samples
    assert samples == min(n, MAX_SAMPLES)
    assert steps(tiny) == min(steps_, MAX_STEPS_PER_EPOCH)
    assert tiny.data.train_batch_size % actor.ppo_mini_batch_size == 0
    assert rows % (tiny.world_size * micro_batch_sizes(tiny).actor_update.sequences(tiny.longest_sequence)) == 0
    assert passes(tiny) == min(-(-per_rank // micro), MAX_MICRO_BATCHES)
    assert rows >= MIN_ROWS
    problems = check(resolve(list(plan.overrides), plan.dialect)).problems
    assert [p for p in problems if "batch" in p.key and "rows" not in p.message] == []


@pytest.mark.parametrize(
    ("words", "warmup", "least"),
    [
        (["actor_rollout_ref.actor.optim.lr_warmup_steps=50"], 2, 0.5),
        (["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1"], -1, 0.5),
        (["actor_rollout_ref.actor.optim.min_lr_ratio=0.8", "actor_rollout_ref.actor.optim.lr_warmup_steps=0"], 0, 0.8),
    ],
)
def test_a_schedule_stays_one(words: list[str], warmup: int, least: float) -> None:
    """Short, and ending on a rate with which a tiny model learns."""
    cosine = "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine"
    optim = tiny_of(make_plan([*words, cosine], None)).actor_rollout_ref.actor.optim
    assert (optim.lr_scheduler_type, optim.lr_warmup_steps, optim.min_lr_ratio) == ("cosine", warmup, least)


def test_micro_batches_by_tokens_stay_so() -> None:
    config = tiny_of(make_plan(["actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.rollout.n=4"], None))
    sizes = micro_batch_sizes(config)
    assert sizes.actor_update.tokens and sizes.critic_update.tokens and sizes.old_log_prob.tokens
    assert sizes.old_log_prob.tokens == 2 * sizes.actor_update.tokens
    rows = config.actor_rollout_ref.actor.ppo_mini_batch_size * 4 // config.world_size
    assert 1 <= sizes.actor_update.sequences(config.longest_sequence) < rows, "several passes to a mini-batch"


@pytest.mark.parametrize("logger", ["[console,swanlab]", "mlflow", "['console','vemlp_wandb','rerun']"])
def test_no_tracker_of_verls_keeps_a_command_from_its_smoke_test(logger: str) -> None:
    plan = make_plan([f"trainer.logger={logger}"], None)
    assert plan.warnings == ()
    assert resolve(plan.overrides, plan.dialect).config.trainer.logger == ["file"]


def test_what_is_asked_for_in_vain_is_said_of_the_full_run() -> None:
    (warning,) = make_plan(["reranker.topk=4"], None).warnings
    assert warning.startswith("warning: reranker.topk=4 asks for a reranker")


@pytest.mark.parametrize("role", ["actor_rollout_ref", "critic"])
def test_what_a_full_run_refuses_of_a_model_is_refused(role: str) -> None:
    """A model that is not here is another matter: the smoke test brings its own."""
    with pytest.raises(ConfigErrors, match=f"{role}.model.external_lib=x is not supported"):
        make_plan([f"{role}.model.external_lib=x"], None)
    make_plan([f"{role}.model.path=/nowhere/at/all", "actor_rollout_ref.model.tokenizer_path=/nowhere"], None)


def test_adapters_stay_and_are_narrow() -> None:
    """Eight columns that count four times, of the modules that the command names."""
    words = [f"{M}.lora_rank=32", f"{M}.lora_alpha=16", f"{M}.target_modules=[q_proj,v_proj]"]
    plan = make_plan(words, None)
    model, critic = tiny_of(plan).actor_rollout_ref.model, tiny_of(plan).critic.model
    assert (model.lora_rank, model.lora_alpha, model.target_modules) == (8, 32.0, ["q_proj", "v_proj"])
    assert critic.lora_rank == 0
    assert plan.kept[f"{M}.target_modules"] == ["q_proj", "v_proj"]
    assert {cut.key for cut in plan.cut} >= {f"{M}.lora_rank", f"{M}.lora_alpha"}
    elsewhere = make_plan([*words, f"{M}.lora_adapter_path=/on/the/cluster"], None)
    assert tiny_of(elsewhere).actor_rollout_ref.model.lora_adapter_path is None


def test_a_file_with_fewer_rows_than_a_step_of_the_smoke_test_is_told_at_once(tmp_path: Path) -> None:
    train, _ = write_parquet(tmp_path, 8, seed=0)
    plan = make_plan([f"data.train_files={train}"], None)
    with pytest.raises(ConfigError, match="has 8 rows, and a step of the smoke test takes") as caught:
        require_rows(plan)
    assert caught.value.hint and caught.value.exit_code == 2
    large, _ = write_parquet(tmp_path, 512, seed=0)
    require_rows(make_plan([f"data.train_files={large}"], None))
