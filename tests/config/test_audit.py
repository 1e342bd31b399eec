"""What each release makes of a command, without a look at any file."""

from __future__ import annotations

import pytest

from trainer.config.audit import OURS, audit
from trainer.errors import ConfigError

FIT = (
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "critic.ppo_micro_batch_size_per_gpu=8",
)


def remarks(*words: str, target: str | None = None, unknown: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return [(r.kind, r.key) for r in audit((*FIT, *words), target=target, unknown=unknown).remarks]


@pytest.mark.parametrize("target", [None, "verl-0.2", "verl-0.4", "verl-0.7", "verl-head", OURS])
def test_a_fit_command_is_not_remarked_upon(target: str | None) -> None:
    assert remarks(target=target) == []


@pytest.mark.parametrize(
    ("word", "target", "kind"),
    [
        ("trainer.nnode=2", "verl-0.4", "unknown"),
        ("trainer.nnode=2", OURS, "unknown"),
        ("+trainer.my_own=2", "verl-0.4", ""),  # added by its author
        ("max_turns=4", "verl-0.4", "absent"),
        ("+trainer.val_only=True", "verl-0.7", "added"),
        ("+trainer.val_only=True", "verl-0.2", ""),
        ("++trainer.val_only=True", "verl-0.7", ""),
        ("+reward_model.of_a_fork=9", "verl-head", ""),
        ("+reward_model.reward_kwargs.max_resp_len=9", "verl-head", ""),  # a free section
        ("critic.model.fsdp_config.param_offload=True", "verl-head", "renamed"),
        ("critic.fsdp.param_offload=True", "verl-head", ""),
        ("critic.model.fsdp_config.grad_offload=True", "verl-head", "absent"),  # gone, and not renamed
        ("actor_rollout_ref.rollout.n_agent=2", "verl-0.4", "renamed"),
        ("data.val_batch_size=8", "verl-0.4", "inert"),
        ("data.val_batch_size=8", "verl-0.2", ""),
        ("algorithm.kl_ctrl.kl_coef=0.1", "verl-0.4", "inert"),
        ("algorithm.kl_ctrl.kl_coef=0.1", "verl-0.2", ""),
        ("trainer.total_epochs", "verl-0.4", "grammar"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=100", "verl-0.4", "uneven"),
        ("data.train_batch_size=100", "verl-0.4", "batch"),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", OURS, "refused"),
        ("actor_rollout_ref.model.lora_rank=8", OURS, ""),
        ("actor_rollout_ref.model.lora_rank=8", "verl-0.4", ""),
        ("algorithm.adv_estimator=remax", "verl-0.4", "inert"),  # the critic's keys
    ],
)
def test_one_word(word: str, target: str, kind: str) -> None:
    kinds = {found for found, _ in remarks(word, target=target)}
    assert (kind in kinds) if kind else (kinds == set())


MEGATRON = "actor_rollout_ref.actor.megatron"
ON = ("actor_rollout_ref.actor.strategy=megatron", "trainer.n_gpus_per_node=8")


@pytest.mark.parametrize("target", ["verl-0.4", "verl-head", OURS])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((*ON, f"{MEGATRON}.tensor_model_parallel_size=4", f"{MEGATRON}.pipeline_model_parallel_size=2"), set()),
        ((*ON, f"{MEGATRON}.sequence_parallel=False", "critic.megatron.use_distributed_optimizer=False"), set()),
        ((*ON, f"{MEGATRON}.tensor_model_parallel_size=3"), {("batch", f"{MEGATRON}.tensor_model_parallel_size")}),
        # Two copies of four ranks: 128 prompts for each, and not 32.
        ((*ON, f"{MEGATRON}.tensor_model_parallel_size=4", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64"),
         set()),
        ((*ON, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64"),
         {("batch", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu")}),
    ],
)  # fmt: skip
def test_megatrons_sizes_are_counted(words: tuple[str, ...], expected: set[tuple[str, str]], target: str) -> None:
    assert set(remarks(*words, target=target)) == expected


@pytest.mark.parametrize("target", ["verl-0.4", "verl-head"])
def test_what_only_verl_knows_of_megatron_is_not_judged(target: str) -> None:
    """Sequences split over ranks, its own switch, a number from the environment, a key that we have not heard of."""
    sizes = ("trainer.n_gpus_per_node=8", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64")
    tensor = f"{MEGATRON}.tensor_model_parallel_size"
    for words in (
        (*ON, f"{MEGATRON}.context_parallel_size=4"),
        (f"{tensor}=4",),  # its configuration file says that this is Megatron
        (*ON, f"{tensor}=4", f"{MEGATRON}.of_a_fork=1"),
    ):
        assert remarks(*sizes, *words, target=target) == []
    assert remarks(*ON, *sizes, target=target, unknown=(f"{tensor}=$TP",)) == []


def test_ours_says_which_keys_of_megatron_do_nothing_and_which_it_cannot_honour() -> None:
    inert, refused = f"{MEGATRON}.param_offload", f"{MEGATRON}.context_parallel_size"
    assert remarks(*ON, f"{inert}=True", target=OURS) == [("inert", inert)]
    assert remarks(*ON, f"{refused}=2", target=OURS) == [("refused", refused)]
    assert remarks(f"{MEGATRON}.dtype=bf16", target=OURS) == [("inert", f"{MEGATRON}.dtype")]


def test_what_acts_in_old_releases_only_is_said_where_the_release_is_a_guess() -> None:
    words = ("+trainer.val_before_train=False", "algorithm.kl_ctrl.kl_coef=0.1")
    assert remarks(*words) == [("shifting", "algorithm.kl_ctrl.kl_coef")]
    assert remarks(*words, target="verl-0.2") == []
    assert remarks(*words, "++algorithm.use_kl_in_reward=True") == []


def test_nothing_is_computed_from_values_that_are_not_known() -> None:
    # given a batch that does not divide over the ranks of 3 nodes
    assert ("batch", "data.train_batch_size") in remarks("trainer.nnodes=3")
    # when the number of nodes is a variable, then only its key is judged
    assert remarks(unknown=("trainer.nnodes=${N}",)) == []
    assert remarks(unknown=("trainer.nnode=${N}",), target="verl-0.4") == [("unknown", "trainer.nnode")]


def test_models_that_are_split_have_fewer_ranks_than_gpus() -> None:
    words = ("critic.ppo_micro_batch_size_per_gpu=64", "critic.ulysses_sequence_parallel_size=2")
    assert remarks(*words) == []


def test_a_config_of_its_own_may_have_any_key() -> None:
    said = audit(["my.own=1", "algorithm.kl_ctrl.kl_coef=0.1"], target="verl-0.4", own_config=True)
    assert [(remark.kind, remark.key) for remark in said.remarks] == [("inert", "algorithm.kl_ctrl.kl_coef")]


def test_the_target_and_how_it_is_known() -> None:
    guessed = audit([*FIT, "+trainer.val_only=True"])
    assert (guessed.target, guessed.certain) == ("verl-0.4", False)
    asked = audit(FIT, target="verl-0.2")
    assert (asked.target, asked.reason, asked.certain) == ("verl-0.2", "asked for", True)
    with pytest.raises(ConfigError, match="no such dialect: verl-9"):
        audit(FIT, target="verl-9")
