"""ROLL's YAML: what each key becomes, has no effect on, or asks for in vain, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer import main_agentic
from trainer.config import Resolved, check
from trainer.config.agents import env_kwargs, shares_of
from trainer.config.roll import _flat
from trainer.config.roll_devices import device_numbers
from trainer.config.roll_envs import VARIABLES, WHOLE
from trainer.config.roll_file import read
from trainer.env.several import Several
from trainer.errors import ConfigError

ROLL = Path(__file__).parent / "roll"
DEMO = str(ROLL / "agentic_demo")
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def resolved(name: str, *overrides: str) -> Resolved:
    return main_agentic.resolved(DEMO, name, overrides)


@pytest.fixture
def changed(tmp_path: Path) -> Any:
    """`changed(file, key=value)`: the problems and notes of a file with these keys over it."""
    (tmp_path / "config").mkdir()
    for path in [*ROLL.glob("config/*.yaml"), *ROLL.glob("agentic_demo/*.yaml")]:
        target = tmp_path / path.relative_to(ROLL)
        target.parent.mkdir(exist_ok=True)
        target.write_text(path.read_text())

    def one(name: str, **keys: Any) -> Resolved:
        text = yaml.safe_dump({"defaults": [f"{name}@_here_"], **keys})
        (tmp_path / "agentic_demo/changed.yaml").write_text(text)
        return main_agentic.resolved(str(tmp_path / "agentic_demo"), "changed", ())

    return one


def problem(found: Resolved, key: str) -> str:
    return next(f"{each.message}; {each.hint}" for each in found.problems if each.key == key)


def test_seed_004s_list_is_taken_as_it_stands() -> None:
    """Two nodes of two V100s: `device_mapping` up to 3 with two GPUs a node, one group, 64 trajectories a step."""
    found = resolved("004_v100")
    report = check(found)
    assert report.ok, report.problems
    assert report.facts is not None and (report.facts.ranks, report.facts.total_steps) == (4, 100)
    config = found.config
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node, config.trainer.seed) == (2, 2, 42)
    assert config.trainer.device_mapping.actor is None  # each role is everywhere
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (64, 1)
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 1 * 16 * 4
    assert config.actor_rollout_ref.actor.fsdp_config.dtype == "fp16"
    assert config.data.max_prompt_length + config.data.max_response_length == 4096
    assert (config.agent.max_turns, config.agent.max_turn_tokens) == (10, 32)
    assert (config.agent.env, config.agent.tags) == ("several", ["FrozenLake:1"])
    assert config.agent.val_tags == ["SimpleSokoban:1", "FrozenLake:1"]
    assert config.algorithm.adv_estimator == "reinforce" and config.algorithm.whiten_advantages is True
    assert config.algorithm.reward_normalization.norm_mean_type is None
    made = Several(env_kwargs(config.agent)["envs"])
    assert made.reset(seed=0)[1]["env_instruction"].startswith("You are solving the FrozenLake puzzle.")
    # today's names of keys that today's ROLL does not know
    said = {note.key: note.message for note in report.notes}
    for old, new in (
        ("train_env_manager.env_groups", "num_env_groups"),
        ("val_env_manager.n_groups", "num_groups_partition"),
        ("actor_train.model_args.flash_attn", "attn_implementation"),
        ("strategy_name", "actor_train.strategy_args.strategy_name"),
    ):
        assert new in said[old] and "ignores the old name without a word" in said[old]
    warnings = [note.message for note in report.notes if note.kind == "risk"]
    assert any("megatron_train in fp16 is fsdp2 here" in each for each in warnings)


def test_every_key_of_a_file_is_accounted_for() -> None:
    """A line for each: what it is here, or why it has no effect. Only what the file refers to itself has none."""
    for name in ("frozen_lake", "004_v100", "sokoban_gigpo"):
        found, file = resolved(name), read(DEMO, name)
        assert found.problems == ()
        said = {note.key for note in found.notes}
        said |= {origin.removeprefix("ROLL's ") for origin in found.origins.values()}
        for section, value in file.values.items():
            if section in (*WHOLE, "hydra", *file.variables, *VARIABLES):
                continue
            assert [key for key, _ in _flat({section: value}) if key not in said] == []


def test_megatron_in_bf16_stays_megatron() -> None:
    found = resolved("frozen_lake")
    actor = found.config.actor_rollout_ref.actor
    assert check(found).ok and actor.strategy == "megatron" and actor.megatron.dtype == "bf16"
    transformer = actor.megatron.override_transformer_config
    assert (transformer.recompute_granularity, transformer.recompute_method) == ("full", "uniform")


def test_rows_of_turns_and_gigpo() -> None:
    found = resolved("sokoban_gigpo")
    config = found.config
    assert check(found).ok
    assert (config.agent.rows, config.agent.history_length, config.agent.reward) == ("turn", 3, "turn")
    assert (config.data.max_prompt_length, config.data.max_response_length) == (896, 128)
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (128, 8)
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 16 * 8 * 8 // 8
    norm = config.algorithm.reward_normalization
    assert (norm.grouping, norm.norm_mean_type, norm.norm_std_type) == ("traj_group_id", "group", None)
    assert config.agent.val_tags == ["SimpleSokoban:3", "FrozenLake:1"] and shares_of(config.agent.val_tags) is not None
    assert config.agent.template is not None and "{history}" in config.agent.template


def test_words_of_the_command_count_more() -> None:
    found = resolved("frozen_lake", "trainer.total_training_steps=2", "trainer.device=cpu")
    assert found.config.trainer.total_training_steps == 2
    assert found.origins["trainer.total_training_steps"] == "command line"
    assert found.origins["trainer.seed"] == "ROLL's seed" and found.origins["algorithm.lam"] == "ROLL's default"
    assert not any("given twice" in note.message for note in found.notes)


@pytest.mark.parametrize(
    ("keys", "key", "says"),
    [
        ({"rollout_batch_sise": 3}, "rollout_batch_sise", "did you mean rollout_batch_size"),
        ({"async_generation_ratio": 1}, "async_generation_ratio", "steps are synchronous"),
        ({"ratio_type": "segment"}, "ratio_type", "set it to token"),
        ({"adv_estimator": "opo"}, "adv_estimator", "choose from gae, reinforce, grpo"),
        ({"train_env_manager.group_size": 3}, "rollout_batch_size", "no multiple of train_env_manager.group_size=3"),
        ({"train_env_manager.num_groups_partition": [1, 2]}, "train_env_manager.num_groups_partition", "for each tag"),
        ({"train_env_manager.tags": ["Maze"]}, "custom_envs", "tags name Maze, and custom_envs has SimpleSokoban"),
        ({"custom_envs": {"FrozenLake": {"env_type": "webshop"}}}, "custom_envs.FrozenLake.env_type", "webshop"),
        ({"custom_envs": {"FrozenLake": {"max_steps": 3}}}, "custom_envs.TAG.max_steps", "one for all of a run"),
        ({"custom_envs": {"FrozenLake": {"maxsteps": 3}}}, "custom_envs.FrozenLake.maxsteps", "no key maxsteps"),
        ({"actor_train.device_mapping": "exec('x')"}, "actor_train.device_mapping", "list of numbers"),
        ({"num_gpus_per_node": 3}, "num_gpus_per_node", "not whole"),
        ({"sequence_length": None}, "sequence_length", "is missing"),
        ({"reward_normalization.method": "median"}, "reward_normalization.method", "choose from identity"),
        ({"reward_normalization.grouping": "state"}, "algorithm.reward_normalization.grouping", "choose from batch"),
        ({"actor_train.strategy_args.strategy_name": "deepspeed"}, "actor_train.strategy_args.strategy_name", "train"),
        ({"actor_infer.generating_args.num_beams": 4}, "actor_infer.generating_args.num_beams", "set it to 1"),
        ({"train_env_manager.group_size_redundancy": 2}, "train_env_manager.group_size_redundancy", "short"),
    ],
)
def test_what_is_not_there_is_refused(changed: Any, keys: dict[str, Any], key: str, says: str) -> None:
    assert says in problem(changed("frozen_lake", **keys), key)


def test_what_is_suggested_would_be_taken(changed: Any) -> None:
    [found] = [each for each in changed("frozen_lake", sequence_length=1).problems if each.key == "sequence_length"]
    assert (found.message, found.hint) == ("sequence_length=1 is not a whole number from 2", "such as 2")


def test_roles_apart_get_their_ranks(changed: Any) -> None:
    found = changed(
        "frozen_lake",
        **{"actor_train.device_mapping": "[0, 1]", "actor_infer.device_mapping": "list(range(2,4))"},
        **{"reference.device_mapping": "[0, 1]", "use_kl_loss": True},
    )
    mapping = found.config.trainer.device_mapping
    assert (mapping.actor, mapping.rollout, mapping.ref) == ([0, 1], [2, 3], None)
    assert found.config.actor_rollout_ref.actor.ppo_mini_batch_size == 1 * 16 * 2


def test_gae_clips_and_kl(changed: Any) -> None:
    found = changed(
        "frozen_lake",
        **{"adv_estimator": "gae", "dual_clip_loss": True, "pg_clip": 0.1, "whiten_advantages": False},
        **{"add_token_level_kl": True, "init_kl_coef": 0.3, "target_kl": 0.1},
    )
    config = found.config
    actor = config.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.1, 0.1, 1.2)
    assert (config.algorithm.lam, config.algorithm.whiten_advantages) == (0.95, False)
    control = config.algorithm.kl_ctrl
    assert (config.algorithm.use_kl_in_reward, control.type, control.kl_coef, control.target_kl) == (
        *(True, "adaptive", 0.3),
        0.1,
    )
    assert config.critic.cliprange_value == 1e6


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("list(range(0,8))", list(range(8))),
        ("list(range(0, 2)) + list(range(6,8))", [0, 1, 6, 7]),
        ([4, 5], [4, 5]),
        ("range(3)", [0, 1, 2]),
    ],
)
def test_devices_are_read_and_never_evaluated(text: Any, numbers: list[int]) -> None:
    assert device_numbers(text) == numbers


@pytest.mark.parametrize(
    "text", ["", "8", "__import__('os')", "list(range(0, 10**9))", "[0, 0]", "[-1]", "[True]", "[0,", "range(0)"]
)
def test_devices_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="it "):
        device_numbers(text)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("none", None, "Cannot find primary config"),
        ("away", "defaults: [../config/nowhere@_here_]", "Could not load"),
        ("lost", "exp_name: ${nobody}", "nobody"),
        ("odd", "a: [1\nb: 2", "while parsing"),
        ("flat", "actor_train: 3\nactor_train.device_mapping: 4", "is no section"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_a_line(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        read(str(tmp_path), name)
    assert "\n" not in caught.value.message and caught.value.hint


def test_a_folder_below_examples_is_found_as_roll_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples/demo").mkdir(parents=True)
    (tmp_path / "examples/demo/x.yaml").write_text("seed: 3")
    monkeypatch.chdir(tmp_path)
    assert read("demo", "x.yaml").values == {"seed": 3}
    with pytest.raises(ConfigError, match="no such folder"):
        read("elsewhere", "x")


def test_the_command_checks_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--config_path", DEMO, "--config_name", "004_v100"]
    assert main_agentic.main([*where, "--check"]) == 0
    out, err = capsys.readouterr()
    assert "ranks = 4" in out and "note: seed is trainer.seed=42 here" in err
    assert main_agentic.main([*where, "--print-config"]) == 0
    out, _ = capsys.readouterr()
    lines = [line for line in out.splitlines() if line.startswith("agent.template ")]
    assert len(lines) == 1 and "Turn {turn_idx}:\\n" in lines[0] and "# ROLL's custom_envs" in lines[0]
    assert main_agentic.main(["--config_path", DEMO, "--config_name", "nobody", "--check"]) == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"lora_target": "all-linear"}, (8, 16, ["all-linear"])),
        ({"lora_target": "all", "lora_rank": 32}, (32, 64, ["all-linear"])),
        ({"lora_target": "q_proj, v_proj", "lora_rank": 16, "lora_alpha": 8}, (16, 8, ["q_proj", "v_proj"])),
        ({"lora_target": r".*\.(q|v)_proj"}, (8, 16, [r".*\.(q|v)_proj"])),
        ({"lora_rank": 32, "lora_alpha": 64}, (0, 16, ["all-linear"])),
    ],
)
def test_adapters(changed: Any, given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """ROLL's are on where they have a target."""
    found = changed("frozen_lake", actor_train={"model_args": given})
    assert [each for each in found.problems if "lora" in each.key] == []
    model = found.config.actor_rollout_ref.model
    assert (model.lora_rank, model.lora_alpha, model.target_modules) == expected
    inert = {each.key for each in found.notes if each.kind == "inert" and "lora" in each.key}
    assert bool(inert) == ("lora_target" not in given)


def test_dropout_in_adapters_is_refused(changed: Any) -> None:
    args = {"lora_target": "all-linear", "lora_dropout": 0.1, "additional_target": "lm_head"}
    found = changed("frozen_lake", actor_train={"model_args": args})
    assert "dropout is off" in problem(found, "actor_train.model_args.lora_dropout")
    assert "leave it out" in problem(found, "actor_train.model_args.additional_target")
