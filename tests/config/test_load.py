"""From words to a typed configuration, and the account that goes with it."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.config import ConfigErrors, Resolved, load, resolve, tree
from trainer.config.absolute import absolute
from trainer.config.audit import audit
from trainer.config.choices import CHOICES, RANGES, value_problem
from trainer.config.overrides import format_value
from trainer.config.schema import Config
from trainer.config.tree import flatten
from trainer.errors import ConfigError

Command = Callable[..., list[str]]
A = "actor_rollout_ref.actor"


def only_problem(*words: str) -> tuple[str, str]:
    (problem,) = resolve(words).problems
    return problem.message, problem.hint


def kinds(resolved: Resolved, kind: str) -> list[str]:
    return [note.key for note in resolved.notes if note.kind == kind]


def test_without_overrides_every_value_is_the_schemas() -> None:
    resolved = load([])
    assert resolved.config == tree.to_config(tree.build({})[0])
    assert resolved.config.trainer.default_local_dir == "checkpoints/ppo/default"
    assert {origin.split()[0] for origin in resolved.origins.values()} == {"default", "follows"}
    assert set(resolved.origins) == set(tree.all_keys())


def test_the_configuration_is_frozen_through_and_through() -> None:
    config = load(["trainer.nnodes=2"]).config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.trainer.nnodes = 3  # type: ignore[misc]


def test_defaults_are_within_choices_and_ranges() -> None:
    built, _ = tree.build({})
    assert set(CHOICES) | set(RANGES) <= set(tree.all_keys())
    assert [p for key in tree.all_keys() if (p := value_problem(key, tree.value_of(built, key)))] == []


def test_a_key_that_follows_another_changes_with_it_until_it_is_set() -> None:
    resolved = load([f"{A}.clip_ratio=0.3", f"{A}.clip_ratio_high=0.28"])
    actor = resolved.config.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.3, 0.28)
    assert resolved.origins[f"{A}.clip_ratio_low"] == f"follows {A}.clip_ratio"
    assert resolved.origins[f"{A}.clip_ratio_high"] == "command line"


def test_a_value_may_refer_to_another_key() -> None:
    resolved = load(["trainer.experiment_name=${trainer.project_name}-2", "trainer.project_name=p"])
    assert resolved.config.trainer.default_local_dir == "checkpoints/p/p-2"


@pytest.mark.parametrize("word", ["data.train_files=/a.parquet", "data.train_files=[/a.parquet]"])
def test_a_list_may_be_one_text(word: str) -> None:
    assert load([word]).config.data.train_files == ["/a.parquet"]


def test_a_section_may_be_one_value() -> None:
    config = load([f"{A}.optim={{lr:0.5,weight_decay:0.25}}"]).config
    assert (config.actor_rollout_ref.actor.optim.lr, config.actor_rollout_ref.actor.optim.weight_decay) == (0.5, 0.25)


@pytest.mark.parametrize("word", ["trainer.val_only=true", "+trainer.val_only=true", "++trainer.val_only=true"])
def test_plus_signs_are_welcome(word: str) -> None:
    assert load([word]).config.trainer.val_only is True


def test_of_two_values_the_last_counts_and_a_note_says_so() -> None:
    resolved = load(["trainer.nnodes=1", "trainer.nnodes=2", "trainer.save_freq=5", "trainer.save_freq=5"])
    assert resolved.config.trainer.nnodes == 2
    assert kinds(resolved, "duplicate") == ["trainer.nnodes"]


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("data.train_data_num=null", "data.train_max_samples", -1),
        ("data.val_data_num=7", "data.val_max_samples", 7),
        ("data.shuffle_train_dataloader=False", "data.shuffle", False),
        ("actor_rollout_ref.rollout.n_agent=5", "actor_rollout_ref.rollout.n", 5),
        ("critic.fsdp.reshard_after_forward=False", "critic.model.fsdp_config.reshard_after_forward", False),
        (f"{A}.optim.warmup_style=cosine", f"{A}.optim.lr_scheduler_type", "cosine"),
        (f"{A}.optim.clip_grad=0.5", f"{A}.grad_clip", 0.5),
        (f"{A}.checkpoint.contents=[model,hf_model]", f"{A}.checkpoint.save_contents", ["model", "hf_model"]),
        ("reward.custom_reward_function.path=/r.py", "custom_reward_function.path", "/r.py"),
        ("ray_init.num_cpus=4", "ray_kwargs.ray_init.num_cpus", 4),
        ("trainer.remove_previous_ckpt_in_save=True", "trainer.max_actor_ckpt_to_keep", 1),
    ],
)
def test_other_names_of_a_key(word: str, key: str, value: object) -> None:
    resolved = load([word])
    written = word.partition("=")[0]
    assert tree.flatten(resolved.config)[key] == value
    assert resolved.origins[key] == f"command line, as {written}"
    assert kinds(resolved, "renamed") == [written]


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("algorithm.kl_penalty=k3", "algorithm.kl_penalty", "low_var_kl"),
        (f"{A}.fsdp_config.dtype=bfloat16", f"{A}.fsdp_config.dtype", "bf16"),
        (f"+{A}.fsdp_config.mixed_precision.param_dtype=float16", f"{A}.fsdp_config.dtype", "fp16"),
        ("critic.fsdp.optimizer_offload=True", "critic.model.fsdp_config.optimizer_offload", True),
        (f"{A}.fsdp_config.grad_offload=True", f"{A}.fsdp_config.grad_offload", True),
        (f"{A}.optim.min_lr_ratio=null", f"{A}.optim.min_lr_ratio", 0.0),
        ("trainer.resume_from_path=False", "trainer.resume_from_path", None),
        ("trainer.rollout_data_dir=", "trainer.rollout_data_dir", None),
        ("trainer.validation_data_dir=''", "trainer.validation_data_dir", None),
        ("trainer.capsule_dir=", "trainer.capsule_dir", None),
        ("custom_reward_function.path=", "custom_reward_function.path", None),
    ],
)
def test_other_spellings_of_a_value(word: str, key: str, value: object) -> None:
    assert tree.flatten(load([word]).config)[key] == value


def test_two_names_of_one_key_must_agree() -> None:
    n = "actor_rollout_ref.rollout.n"
    assert load([f"{n}=4", f"{n}_agent=4"]).config.actor_rollout_ref.rollout.n == 4
    message, hint = only_problem(f"{n}=4", f"{n}_agent=5")
    assert f"{n}=4 and {n}_agent=5 are one key" in message and n in hint


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("data.train_batchsize=8", "data.train_batch_size"),
        ("trainer.nnode=2", "trainer.nnodes"),
        ("actor.optim.lr=1", f"{A}.optim.lr"),
        ("critic.lr=1", "critic.optim.lr"),
        ("data.train_data_nums=1", "data.train_data_num"),
        ("actor_rollout_ref.rollout.gpu_memory_utilisation=0.5", "actor_rollout_ref.rollout.gpu_memory_utilization"),
    ],
)
def test_an_unknown_key_gets_its_nearest_name(word: str, nearest: str) -> None:
    message, hint = only_problem(word)
    assert message == f"there is no key {word.partition('=')[0]}"
    assert hint == f"did you mean {nearest}?"


def test_a_section_is_no_key() -> None:
    assert only_problem("trainer=5")[0] == "trainer is a section, not a key"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("trainer.nnodes=two", "an integer"),
        ("trainer.nnodes=1.5", "an integer"),
        ("trainer.nnodes=null", "an integer"),
        ("data.seed=x", "an integer or null"),
        (f"{A}.optim.lr=fast", "a number"),
        ("data.shuffle=maybe", "True or False"),
        ("data.prompt_key=[a]", "a text"),
        (f"{A}.optim.betas=[x]", "a list, each item a number"),
        ("data.train_files=null", "a list, each item a text"),
    ],
)
def test_a_wrong_type_names_key_value_and_type(word: str, expected: str) -> None:
    message, hint = only_problem(word)
    assert message.startswith(word.partition("=")[0] + "=") and message.endswith(f" is not {expected}")
    assert "default" in hint


@pytest.mark.parametrize("key", sorted(CHOICES))
def test_a_wrong_choice_names_the_choices(key: str) -> None:
    message, hint = only_problem(f"{key}=nonsense")
    assert message == f"{key}=nonsense is not one of its choices"
    assert hint == f"choose from {', '.join(CHOICES[key])}"
    for choice in CHOICES[key]:
        assert resolve([f"{key}={choice}"]).problems == ()


@pytest.mark.parametrize("key", sorted(RANGES))
def test_a_number_out_of_range_is_refused(key: str) -> None:
    low = RANGES[key].low
    assert "out of range" in only_problem(f"{key}={min(int(low) - 1, 2 * int(low))}")[0]
    if RANGES[key].open_low:
        assert "out of range" in only_problem(f"{key}={int(low)}")[0]


def test_a_value_left_open_is_refused() -> None:
    assert "Missing mandatory value" in only_problem("trainer.nnodes=???")[0]


def test_a_reference_to_nowhere_is_told_once() -> None:
    message, _ = only_problem(f"{A}.ppo_mini_batch_size=${{data.batch}}")
    assert "data.batch" in message


def test_a_deletion_is_refused() -> None:
    assert "cannot be deleted" in only_problem("~trainer.logger")[0]
    assert "there is no key" in only_problem("~trainer.loggers")[0]


def test_all_problems_come_at_once() -> None:
    words = ["data.seed=1,2", "trainer.nnode=1", "trainer.nnodes=x", "trainer.device=tpu"]
    words += ["critic.model.external_lib=x"]
    with pytest.raises(ConfigErrors) as caught:
        load(words)
    assert [problem.key for problem in caught.value.problems] == [
        "data.seed",
        "trainer.nnode",
        "critic.model.external_lib",
        "trainer.nnodes",
        "trainer.device",
    ]
    assert caught.value.exit_code == 2
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.problems == caught.value.problems and str(again) == str(caught.value)


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        load([], "verl-x")
    assert "verl-0." in caught.value.hint


def test_a_command_printed_is_the_command_again(command: Command) -> None:
    first = load(command("trainer.experiment_name=a b", f"{A}.optim.lr=3e-7"))
    words = [f"{key}={format_value(value)}" for key, value in tree.flatten(first.config).items()]
    assert load(words, "verl-head").config == first.config


@pytest.mark.parametrize("key", ["a", "+x.y", "~x.y", "+x.y.z", "Ω"])
def test_a_key_that_is_like_no_other_has_a_hint(key: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load([f"{key}=1" if key[0] != "~" else key], None)
    assert all(problem.hint for problem in caught.value.problems) and caught.value.hint
    assert all(remark.hint for remark in audit([f"{key}=1" if key[0] != "~" else key]).remarks)


_MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
PATHS = {  # every key whose value is a path, and whether it is read or written
    "data.train_files": "read",
    "data.val_files": "read",
    "actor_rollout_ref.model.path": "read",
    "actor_rollout_ref.model.tokenizer_path": "read",
    "actor_rollout_ref.model.lora_adapter_path": "read",
    "critic.model.path": "read",
    "custom_reward_function.path": "read",
    f"{_MULTI_TURN}.tool_config_path": "read",
    f"{_MULTI_TURN}.function_tool_path": "read",
    "trainer.resume_from_path": "read",
    "trainer.default_local_dir": "written",
    "trainer.rollout_data_dir": "written",
    "trainer.validation_data_dir": "written",
    "trainer.capsule_dir": "written",
    "global_profiler.save_path": "written",
}


@pytest.mark.parametrize("key", PATHS)
def test_a_path_is_made_absolute_where_the_driver_runs(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "org").mkdir()
    (tmp_path / "org/name").touch()

    def after(path: str) -> object:
        value = flatten(absolute(load([f"{key}='{path}'"]).config))[key]
        return value[0] if isinstance(value, list) else value

    there = str(tmp_path / "org/name")
    assert [after(path) for path in ("org/name", "./org/name", "~/org/name", there)] == [there] * 4
    # What is not there: a name on the hub, or a folder that will be made.
    hub = "Qwen/Qwen2.5-0.5B"
    assert after(hub) == (hub if PATHS[key] == "read" else str(tmp_path / hub))
    assert after("~nobody-at-all/x") == "~nobody-at-all/x"
    assert after("x" * 5000) in ("x" * 5000, f"{tmp_path}/{'x' * 5000}")


def test_every_key_that_names_a_path_is_among_those() -> None:
    ending = ("path", "_dir", "_files", "folder", "file")
    assert {key for key in flatten(Config()) if key.endswith(ending)} == PATHS.keys()
