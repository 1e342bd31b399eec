"""Generations of verl: which takes what, what each means by it, and what has no effect here."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.config import load, resolve, search_r1, tree
from trainer.config.dialects import DIALECTS, DIFFERENCES
from trainer.config.overrides import Override
from trainer.config.releases import VERL, accepts, has, is_search_r1_only
from trainer.config.upstream import NoEffect, no_effect, rename
from trainer.errors import ConfigError

A, ROLLOUT, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_ENGINE = "actor_rollout_ref.rollout.engine"
OURS = {
    *("algorithm.masked_gae", "trainer.seed", "trainer.step_timeout", "trainer.max_rollout_drift"),
    *("trainer.rollout_drift_action", "trainer.capsule_dir", "trainer.capsule_freq", "trainer.capsule_weights"),
    *(f"trainer.device_mapping.{role}" for role in ("actor", "rollout", "ref", "critic")),
    *(f"{model}.recompute_granularity" for model in ("actor_rollout_ref.model", "critic.model")),
    *(f"{model}.activation_memory_budget" for model in ("actor_rollout_ref.model", "critic.model")),
    *("global_profiler.ranks", "global_profiler.all_ranks", f"{_ENGINE}_timeout", "trainer.grace_period"),
    *("trainer.console_metrics", "critic.model.exclude_modules"),
    *(f"{_ENGINE}_kwargs.sglang.{name}" for name in ("sampling_backend", "replicas", "log_level")),
    f"{_ENGINE}_kwargs.sglang.cuda_graph_max_bs",  # verl hands it on with all the others
    *(f"{_ENGINE}_kwargs.vllm.attention_backend", f"{_ENGINE}_kwargs.vllm.log_level"),
}

ROLLS = {
    "advantage_clip",
    "episode_reward_weight",
    "reward_clip",
    "reward_normalization.grouping",
    "reward_normalization.norm_mean_type",
    "reward_normalization.norm_std_type",
    "step_reward_gamma",
    "step_reward_weight",
    "whiten_advantages",
}


def upstream_keys() -> dict[str, str]:
    """Every key of verl's releases, with one digit per release of `VERL`: 1 where it has the key."""
    lines = (Path(__file__).parent / "verl_keys.txt").read_text().splitlines()
    return dict(line.split(" ") for line in lines if not line.startswith("#"))  # type: ignore[misc]


def test_the_table_of_releases_is_that_of_verls_own_files() -> None:
    wrong = []
    for key, there in upstream_keys().items():
        if key.startswith("critic.model.fsdp_config") or ".engine_kwargs." in key:
            continue  # the first was renamed after the list was made, the second is free-form
        mine = "".join("1" if has(release, key) else "0" for release in VERL)
        if mine != there:
            wrong.append((key, there, mine))
    assert wrong == []


def test_every_key_of_every_release_acts_or_has_its_reason() -> None:
    unknown = [
        key for key in upstream_keys() if not tree.is_key(rename(key, 1)[0]) and no_effect(rename(key, 1)[0]) is None
    ]
    assert unknown == []


def test_keys_without_an_upstream_are_ours() -> None:
    """The list is of verl's `ppo_trainer.yaml`; the Megatron sections stand in its `ppo_megatron_trainer.yaml`.

    `agent.*` is ours as a whole, some of `algorithm.*` are ROLL's; `retriever.*`, the rewards for form and the state
    masking are Search-R1's and ours; `function_tool_path` is newer than the list.
    """
    newer = f"{ROLLOUT}.multi_turn.function_tool_path"
    others = ("agent.", "retriever.", "reward_model.", f"{A}.state_masking", newer)
    keys = (key for key in tree.all_keys() if ".megatron." not in key and not key.startswith(others))
    assert {key for key in keys if key not in upstream_keys()} == OURS | {f"algorithm.{name}" for name in ROLLS}


def test_no_key_both_acts_and_has_no_effect() -> None:
    assert [
        key for key in tree.all_keys() if no_effect(key) is not None and key != "ray_kwargs.ray_init.num_cpus"
    ] == []


@pytest.mark.parametrize(
    ("words", "dialect"),
    [
        ([], "verl-head"),
        ([f"{ROLLOUT}.name=hf", "trainer.seed=3"], "verl-head"),
        (["critic.fsdp.param_offload=True"], "verl-head"),
        (["critic.model.fsdp_config.param_offload=True"], "verl-0.7"),
        (["ray_init.num_cpus=4", "data.dataloader_num_workers=2"], "verl-0.7"),
        ([f"{A}.checkpoint.contents=[model]", "trainer.val_before_train=False"], "verl-0.4"),
        (["+trainer.val_only=True", "trainer.val_before_train=False"], "verl-0.4"),
        (["+trainer.val_before_train=False"], "verl-0.2"),
        (["++trainer.val_before_train=False"], "verl-head"),
        ([f"{A}.fsdp_config.grad_offload=True"], "verl-0.2"),
        (["max_turns=2"], "search-r1"),
        (["max_turns=2", "agent.env=search"], "search-r1"),
        (["max_turns=2", "agent.env=frozen_lake"], "verl-head"),
        ([f"{ROLLOUT}.n_agent=2", "trainer.val_before_train=False"], "search-r1"),
        (["no.such.key=1", "+trainer.val_before_train=False"], "verl-0.2"),
    ],
)
def test_the_newest_generation_that_takes_the_whole_command(words: list[str], dialect: str) -> None:
    resolved = resolve(words)
    assert resolved.dialect == dialect
    assert resolved.dialect_reason


def test_a_mixed_command_gets_the_best_match_and_a_note() -> None:
    resolved = load(["+trainer.val_before_train=False", f"{A}.loss_agg_mode=token-mean", "data.seed=1"])
    assert resolved.dialect == "verl-head"
    assert resolved.dialect_reason == "no generation takes every key, this one refuses fewest"
    (note,) = [note for note in resolved.notes if "refuses" in note.message]
    assert note.message == "verl-head itself refuses +trainer.val_before_train; it is accepted here"


@pytest.mark.parametrize(
    ("version", "dialect"),
    [
        ("verl-0.3", "verl-0.2"), ("v0.3", "verl-0.2"), ("0.3.0.post1", "verl-0.2"), ("verl-0.1", "verl-0.2"),
        ("verl-v0.4.1", "verl-0.4"), ("verl-0.5", "verl-0.7"), ("verl-0.6.1", "verl-0.7"), ("v0.7.0", "verl-0.7"),
        ("verl-0.8", "verl-head"), ("1.0", "verl-head"),
    ],
)  # fmt: skip
def test_a_version_is_of_the_dialect_that_covers_it(version: str, dialect: str) -> None:
    resolved = load([], version)
    assert (resolved.dialect, resolved.dialect_reason) == (dialect, f"asked for by {version}")


def test_what_is_no_version_is_told_with_the_nearest_dialect() -> None:
    for asked, hint in (("serch-r1", "did you mean search-r1?"), ("ppo", f"choose from {', '.join(DIALECTS)}")):
        with pytest.raises(ConfigError, match=f"no such dialect: {asked}") as caught:
            load([], asked)
        assert caught.value.hint == hint


def test_a_dialect_that_is_asked_for_is_taken() -> None:
    resolved = load(["trainer.val_before_train=False"], "verl-0.2")
    assert (resolved.dialect, resolved.dialect_reason) == ("verl-0.2", "asked for")
    assert any("verl-0.2 itself refuses trainer.val_before_train" in note.message for note in resolved.notes)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_changes_the_defaults_in_its_table_and_no_others(dialect: str) -> None:
    head, other = load([], "verl-head"), load([], dialect)
    before, after = tree.flatten(head.config), tree.flatten(other.config)
    changed = {key: value for key, value in after.items() if before[key] != value}
    searched = search_r1.DEFAULTS if dialect == "search-r1" else {}
    # 512 tokens for a response are verl's default, too
    searched = {key: value for key, value in searched.items() if key != "data.max_response_length"}
    assert changed == {difference.key: difference.value for difference in DIFFERENCES[dialect]} | searched
    assert {key for key, origin in other.origins.items() if origin == f"dialect {dialect}"} - set(
        search_r1.DEFAULTS
    ) == (set(changed) - set(searched))


def test_a_key_that_is_given_acts_as_given_in_every_dialect() -> None:
    words = ["algorithm.use_kl_in_reward=False", f"{A}.entropy_coeff=0", f"{A}.clip_ratio_c=3.0"]
    config = load([*words, "data.filter_overlong_prompts=False", "algorithm.masked_gae=True"], "verl-0.2").config
    assert config == load([], "verl-head").config


def test_old_generations_have_kl_in_the_reward_unless_it_is_in_the_loss() -> None:
    assert load([], "verl-0.2").config.algorithm.use_kl_in_reward is True
    assert load([f"{A}.use_kl_loss=True"], "verl-0.2").config.algorithm.use_kl_in_reward is False
    assert load([], "verl-0.4").config.algorithm.use_kl_in_reward is False


def test_differences_that_matter_are_noted() -> None:
    keys = {note.key for note in load([], "search-r1").notes if note.kind == "dialect"}
    assert keys == {
        "algorithm.use_kl_in_reward",
        f"{A}.entropy_coeff",
        f"{A}.clip_ratio_c",
        f"{ROLLOUT}.top_p",
        "trainer.resume_mode",
        *("agent.env", f"{A}.state_masking", "retriever.url"),
    }
    single = {note.key for note in load(["do_search=false"], "search-r1").notes if note.kind == "dialect"}
    assert keys - single == {"agent.env", f"{A}.state_masking", "retriever.url"}


def test_search_r1s_micro_batches_give_way_to_a_size_per_rank() -> None:
    actor = load([f"{A}.ppo_micro_batch_size_per_gpu=2"], "search-r1").config.actor_rollout_ref.actor
    assert (actor.ppo_micro_batch_size, actor.ppo_micro_batch_size_per_gpu) == (None, 2)


@pytest.mark.parametrize("word", ["algorithm.kl_ctrl.kl_coef=0.1", "algorithm.kl_ctrl.type=adaptive"])
def test_kl_settings_without_effect_are_told(word: str) -> None:
    key = word.partition("=")[0]
    assert [note.key for note in load([word], "verl-0.7").notes] == [key]
    assert load([word, "algorithm.use_kl_in_reward=True"], "verl-0.7").notes == ()
    (note,) = load([word, "algorithm.use_kl_in_reward=False"], "verl-0.7").notes
    assert note.kind == "inert"


@pytest.mark.parametrize(
    ("word", "why"),
    [
        (f"{ROLLOUT}.data_parallel_size=2", "tensor_model_parallel_size alone"),
        (f"{ROLLOUT}.engine_kwargs.sglang.mm_attention_backend=fa3", "cuda_graph_max_bs, replicas, log_level alone"),
        (f"{ROLLOUT}.engine_kwargs.trtllm.max_batch_size=8", "engines are sglang and vllm"),
        (f"{ROLLOUT}.load_format=dummy", "weights from the actor"),
        (f"{ROLLOUT}.cudagraph_capture_sizes=[1,2]", "sizes and orders its own batches"),
        (f"{ROLLOUT}.disable_log_stats=False", "no statistics"),
        (f"{ROLLOUT}.logprobs_mode=raw_logprobs", "the distribution that the trainer computes"),
        (f"{ROLLOUT}.skip_tokenizer_init=False", "takes and gives tokens"),
        (f"+{A}.fsdp_config.mixed_precision.reduce_dtype=fp32", "summed up in fp32"),
        ("+critic.fsdp.mixed_precision.buffer_dtype=fp32", "leaves buffers as they are"),
        ("+hydra.run.dir=/x", "Hydra itself does not run"),
        ("global_profiler.global_tool_config.nsys.discrete=True", "does not have that profiler"),
        ("actor_rollout_ref.actor.profiler.enable=True", "global_profiler decides"),
        (f"{ROLLOUT}._target_=x", "only verl has that class"),
        (f"{A}.fsdp_config.strategy=fsdp2", "both mean FSDP2"),
        ("actor_rollout_ref.ref.fsdp_config.optimizer_offload=True", "the reference is not trained"),
        (f"{A}.fsdp_config.offload_policy=True", "say what waits in host memory"),
        (f"{ROLLOUT}.multi_turn.tokenization_sanity_check_mode=strict", "nothing that was sampled is encoded again"),
        (f"{M}.override_config.attn_implementation=sdpa", "the maths does not"),
        (f"{A}.optim.warmup_style=null", "lr_scheduler_type decides"),
        ("actor_rollout_ref.ref.strategy=${actor_rollout_ref.actor.strategy}", "on the actor's engine"),
        (f"{ROLLOUT}.engine_kwargs.vllm={{swap_space:4}}", "this trainer attention_backend, log_level alone"),
    ],
)
def test_a_key_without_effect_is_noted_with_its_reason(word: str, why: str) -> None:
    resolved = load([word])
    (note,) = [note for note in resolved.notes if note.kind == "inert"]
    assert note.message.startswith(f"{note.key} has no effect: ") and why in note.message
    assert resolved.config == load([]).config


@pytest.mark.parametrize(
    "word",
    [
        "critic.model.lora_adapter_path=/x",
        "reward_model.enable=True",
        "reward.reward_model.enable=True",
        "reward_model.reward_manager=dapo",
        "algorithm.no_think_rl=True",
        f"{A}.ulysses_sequence_parallel_size=2",
        "critic.model.fsdp_config.ulysses_sequence_parallel_size=2",
        "critic.model.fsdp_config.strategy=megatron",
        f"{A}.megatron.context_parallel_size=2",
        "critic.megatron.virtual_pipeline_model_parallel_size=2",
        f"{A}.policy_loss.loss_mode=gspo",
        f"+{A}.fsdp_config.mixed_precision.reduce_dtype=bf16",
        f"{A}.optim.optimizer=Muon",
        f"{M}.override_config.rope_theta=1",
        f"{M}.external_lib=x",
        f"{ROLLOUT}.prompt_length=5",
        "algorithm.rollout_correction.rollout_rs=token",
        "algorithm.rollout_correction.bypass_mode=True",
        "algorithm.rollout_is_level=sequence",
        "algorithm.rollout_is_mode=mask",
        "algorithm.rollout_is_veto_threshold=0.0001",
        "algorithm.use_pf_ppo=True",
        "data.custom_cls.path=/x.py",
        "actor_rollout_ref.hybrid_engine=False",
        "+custom_reward_function.reward_kwargs.scale=2",
    ],
)
def test_what_can_not_be_honoured_is_refused(word: str) -> None:
    (problem,) = resolve([word]).problems
    assert problem.message.startswith(word.lstrip("+")) and "is not supported: " in problem.message
    assert problem.hint


def test_the_precision_of_a_section_may_be_one_value() -> None:
    """As verl's recipes write it."""
    words = [f"+{A}.fsdp_config.mixed_precision={{param_dtype:bf16,reduce_dtype:fp32,buffer_dtype:fp32}}"]
    resolved = load(words)
    assert resolved.config.actor_rollout_ref.actor.fsdp_config.dtype == "bf16"
    assert [note.key.rpartition(".")[2] for note in resolved.notes if note.kind == "inert"] == [
        "reduce_dtype",
        "buffer_dtype",
    ]


def test_a_value_that_looks_right_and_has_another_type_is_refused() -> None:
    assert not NoEffect("", only=(1,)).allows(True)
    assert NoEffect("", only=(1,)).allows(1)


def test_plus_is_for_keys_that_a_release_lacks() -> None:
    plus, plain = Override("+", "trainer.val_only", True), Override("", "trainer.val_only", True)
    assert [release for release in VERL if accepts(release, plus)] == ["v0.2", "v0.3", "v0.4.0"]
    assert [release for release in VERL if accepts(release, plain)] == ["v0.4.1", "v0.5", "v0.6", "v0.7", "head"]


def test_keys_of_search_r1_alone() -> None:
    assert is_search_r1_only("retriever.topk") and not is_search_r1_only("trainer.nnodes")
    assert has("search-r1", "retriever.topk") and not has("search-r1", f"{A}.ppo_micro_batch_size_per_gpu")


@pytest.mark.parametrize(
    ("words", "level", "cap"),
    [
        ([], None, 2.0),
        (["algorithm.rollout_correction.rollout_is=sequence"], "sequence", 2.0),
        ([f"{A}.tis_imp_ratio_cap=3"], "token", 3.0),
        ([f"{A}.tis_imp_ratio_cap=-1"], None, 2.0),
        (["algorithm.rollout_is=True", "algorithm.rollout_is_threshold=4"], "token", 4.0),
        (["algorithm.rollout_is=False"], None, 2.0),
    ],
)
def test_every_spelling_of_truncated_importance_sampling(words: list[str], level: str | None, cap: float) -> None:
    resolved = resolve(words)
    correction = resolved.config.algorithm.rollout_correction
    assert (correction.rollout_is, correction.rollout_is_threshold) == (level, cap)
    assert not resolved.problems


def test_the_level_and_the_cap_of_a_ratio_cap_have_one_origin() -> None:
    resolved = resolve([f"{A}.tis_imp_ratio_cap=3"])
    for key in ("rollout_is", "rollout_is_threshold"):
        origin = resolved.origins[f"algorithm.rollout_correction.{key}"]
        assert origin == f"command line, as {A}.tis_imp_ratio_cap"


def test_profiled_steps_and_ranks_under_their_older_names() -> None:
    profiler = resolve(["trainer.profile_steps=[2,3]", f"{A}.profiler.all_ranks=True"]).config.global_profiler
    assert profiler.steps == [2, 3] and profiler.all_ranks
