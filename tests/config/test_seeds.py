"""The six launch commands of the seeds, word for word: each passes, and each of their keys acts or is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.config import check_command, resolve, search_r1, tree
from trainer.config.overrides import parse
from trainer.config.upstream import no_effect, rename

from .conftest import SEED_SCRIPTS

Words = Callable[[Path], list[str]]
DIALECT_OF = {
    "000_two_nodes": "verl-0.7",  # critic.model.fsdp_config is gone today
    "001_dstack": "verl-head",
    "001_slurm": "verl-0.7",
    "002_check": "verl-0.2",  # +trainer.val_before_train
    "002_eight_gpus": "verl-0.2",
    "003_search_r1": "search-r1",
}
each_seed = pytest.mark.parametrize("script", SEED_SCRIPTS, ids=lambda script: script.stem)


def test_there_are_six() -> None:
    assert {script.stem for script in SEED_SCRIPTS} == set(DIALECT_OF)


@each_seed
def test_a_seed_command_passes(script: Path, local_seed: Words) -> None:
    report = check_command(local_seed(script))
    assert report.problems == ()
    assert report.facts is not None


@each_seed
def test_a_seed_as_written_lacks_only_its_data(script: Path, seed_words: Words) -> None:
    report = check_command(seed_words(script))
    root_alone = "trainer.default_local_dir"  # /checkpoints
    assert {problem.key for problem in report.problems} - {root_alone} == {"data.train_files", "data.val_files"}


@each_seed
def test_the_generation_of_a_seed_is_told_from_its_keys(script: Path, seed_words: Words) -> None:
    resolved = resolve(seed_words(script))
    assert resolved.dialect == DIALECT_OF[script.stem]
    assert [note for note in resolved.notes if "refuses" in note.message] == []


@each_seed
def test_every_key_of_a_seed_acts_or_is_reported_with_its_reason(script: Path, seed_words: Words) -> None:
    overrides, problems = parse(seed_words(script))
    resolved = resolve(seed_words(script))
    assert problems == []
    reported = {note.key: note.message for note in resolved.notes if note.kind == "inert"}
    warned = [word.split("=")[0] for note in resolved.notes if note.kind == "unmet" for word in note.message.split()]
    searching = search_r1.searches(resolved.dialect, overrides)
    for override in overrides:
        acts = (searching and search_r1.meanings(override.key, override.value)) or (
            rename(override.key, override.value),
        )
        if all(tree.is_key(key) for key, _ in acts):
            assert all(resolved.origins[key].startswith("command line") for key, _ in acts)
        elif override.key not in warned:
            assert override.key in reported, override.key
            assert reported[override.key].endswith(no_effect(override.key).why)  # type: ignore[union-attr]


def test_the_seeds_use_73_keys(seed_words: Words) -> None:
    used = {override.key for script in SEED_SCRIPTS for override in parse(seed_words(script))[0]}
    assert "trainer.resume_mode" not in used  # 001_dstack hands it to tee
    assert len(used | {"trainer.resume_mode"}) == 73


def test_kl_in_the_reward_is_on_where_the_generation_had_it_on(local_seed: Words) -> None:
    on = {script.stem: resolve(local_seed(script)).config.algorithm.use_kl_in_reward for script in SEED_SCRIPTS}
    assert {name for name, value in on.items() if value} == {"002_check", "002_eight_gpus", "003_search_r1"}


def test_a_coefficient_without_effect_is_told(local_seed: Words) -> None:
    two_nodes = SEED_SCRIPTS[0]
    messages = [note.message for note in resolve(local_seed(two_nodes)).notes]
    assert any("kl_coef has no effect in verl-0.7" in message and "verl-0.2" in message for message in messages)


def test_a_key_given_twice_with_two_values_is_told(local_seed: Words) -> None:
    slurm = next(script for script in SEED_SCRIPTS if script.stem == "001_slurm")
    resolved = resolve(local_seed(slurm))
    doubled = [note.key for note in resolved.notes if note.kind == "duplicate"]
    assert doubled == ["actor_rollout_ref.model.enable_gradient_checkpointing"]
    assert resolved.config.actor_rollout_ref.model.enable_gradient_checkpointing is True
    twice_the_same = resolve(local_seed(SEED_SCRIPTS[0]))
    assert [note for note in twice_the_same.notes if note.kind == "duplicate"] == []


def test_the_micro_batches_of_the_seeds(local_seed: Words) -> None:
    sizes = {script.stem: check_command(local_seed(script)).facts.micro_batches for script in SEED_SCRIPTS}  # type: ignore[union-attr]
    check = sizes["002_check"]  # global ref and critic sizes of 16 over 4 ranks, the actor's per rank
    assert [check.actor_update.rows, check.ref_log_prob.rows, check.critic_update.rows] == [16, 4, 4]
    dynamic = sizes["002_eight_gpus"]
    assert [dynamic.actor_update.tokens, dynamic.old_log_prob.tokens] == [24000, 24000]
    assert [dynamic.critic_update.tokens, dynamic.critic_forward.tokens] == [98304, 98304]
    search = sizes["003_search_r1"]  # global 64, 128 and 16 over 16 ranks
    passes = (search.actor_update, search.old_log_prob, search.ref_log_prob, search.critic_update)
    assert [limit.rows for limit in passes] == [4, 8, 8, 1]
