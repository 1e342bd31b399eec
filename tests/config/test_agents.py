"""The keys `agent.*`: what a command with an environment needs, what it may not have, and what has no effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.config import check_command, load
from trainer.config.agents import env_kwargs

Command = Callable[..., list[str]]
ROLLOUT = "actor_rollout_ref.rollout"
FILES = ("data.train_files", "data.val_files")


@pytest.fixture
def lake(command: Command) -> Command:
    """A command on the lake, without data files."""

    def words(*more: str) -> list[str]:
        given = [word for word in command("agent.env=frozen_lake", *more) if not word.startswith(FILES)]
        return given + [word for word in more if word.startswith(FILES)]

    return words


def problems(words: list[str]) -> dict[str, tuple[str, str]]:
    found = check_command(words).problems
    assert all("\n" not in problem.message + problem.hint and problem.hint for problem in found)
    return {problem.key: (problem.message, problem.hint) for problem in found}


def notes(words: list[str]) -> dict[str, str]:
    return {note.key: note.message for note in check_command(words).notes}


def test_an_environment_needs_no_files_and_has_its_own_rows(lake: Command) -> None:
    report = check_command(lake("agent.episodes=40", "agent.val_episodes=7", "trainer.total_epochs=2"))
    assert report.ok and report.facts is not None, report.problems
    assert (report.facts.rows.train, report.facts.rows.val) == (40, 7)
    assert report.facts.total_steps == 2 * (40 // load(lake()).config.data.train_batch_size)
    assert "data.val_files" not in {note.key for note in report.notes}
    assert notes(lake("agent.val_episodes=0"))["agent.val_episodes"] == "agent.val_episodes is 0: validation is off"


def test_a_template_names_what_there_is(lake: Command) -> None:
    assert check_command(lake("agent.template='Turn {turn_idx}: {observation} {{}}'", "agent.system_template=Play")).ok
    said, hint = problems(lake("agent.template='{observatoin}'"))["agent.template"]
    assert said == "agent.template has {observatoin}, which stands for nothing" and "{observation}" in hint
    assert "is no template" in problems(lake("agent.template='{'"))["agent.template"][0]


def test_its_arguments_are_a_mapping_or_a_list(lake: Command) -> None:
    for word in ("agent.env_kwargs={size:3,p:0.9,rows:SF/FG,deep:{a:1}}", "agent.env_kwargs=[size:3,p:0.9,rows:SF/FG]"):
        assert check_command(lake(word)).ok
        given = env_kwargs(load(lake(word)).config.agent)
        assert {name: given[name] for name in ("size", "p", "rows")} == {"size": 3, "p": 0.9, "rows": "SF/FG"}
    assert env_kwargs(load(lake("agent.env_kwargs={deep:{a:1}}")).config.agent) == {"deep": {"a": 1}}
    said, _ = problems(lake("agent.env_kwargs=[size]"))["agent.env_kwargs"]
    assert "'size' is not NAME:VALUE" in said
    for wrong in ("9x:1", "day:2026-01-01", "a:{b", "a:!!python/object:os.system x"):
        assert "agent.env_kwargs" in problems(lake(f"agent.env_kwargs=['{wrong}']")), wrong


@pytest.mark.parametrize(
    ("words", "key", "said", "hint"),
    [
        (("agent.env=frozen_lak",), "agent.env", "is no environment", "did you mean frozen_lake?"),
        (("agent.env=lake.py",), "agent.env", "names no class of that file", "agent.env=lake.py:CLASS"),
        (("agent.env=gone.py:Lake",), "agent.env", "gone.py is not a file", "a Python file"),
        (("custom_reward_function.path={file}",), "custom_reward_function.path", "beside agent.env", "leave out"),
        (
            ("actor_rollout_ref.actor.state_masking=False",),
            "actor_rollout_ref.actor.state_masking",
            "have no advantages",
            "algorithm.masked_gae=False",
        ),
        (("agent.max_turn_tokens=999",), "agent.max_turn_tokens", "more than data.max_response_length", "lower"),
        (("agent.episodes=1",), "data.train_batch_size", "is more than agent.episodes=1", "not one step"),
        (("agent.val_episodes=0", "trainer.val_only=True"), "agent.val_episodes", "nothing else to do", "give"),
        (("agent.max_turns=0",), "agent.max_turns", "out of range", "at least 1"),
        (("agent.min_kept=1.5",), "agent.min_kept", "out of range", "at most 1"),
        (("agent.turn_timeout=0",), "agent.turn_timeout", "out of range", "more than 0"),
        (("agent.reward=best",), "agent.reward", "not one of its choices", "turn, last"),
        (("agent.on_failure=score",), "agent.on_failure", "not one of its choices", "drop_row, drop_group"),
        (("agent.env_kwarg=1",), "agent.env_kwarg", "there is no key", "agent.env_kwargs"),
    ],
)
def test_what_cannot_be_is_said_with_what_can(
    lake: Command, tmp_path: Path, words: tuple[str, ...], key: str, said: str, hint: str
) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def compute_score(**_): return 0.0")
    found = problems(lake(*(word.replace("{file}", str(file)) for word in words)))
    assert list(found) == [key], found
    assert said in found[key][0] and hint in found[key][1], found


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_every_engine_plays(lake: Command, engine: str) -> None:
    assert problems(lake(f"{ROLLOUT}.name={engine}", f"{ROLLOUT}.tensor_model_parallel_size=1")) == {}


def test_data_files_are_refused(lake: Command, command: Command) -> None:
    found = problems(command("agent.env=frozen_lake"))
    assert set(found) == set(FILES)
    assert "agent.episodes" in found["data.train_files"][1]


def test_a_file_is_read_and_never_run(lake: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("raise SystemExit\nclass Lake: ...\nclass Pond: ...")
    assert problems(lake(f"agent.env={path}:Lake")) == {}
    said, hint = problems(lake(f"agent.env={path}:Sea"))["agent.env"]
    assert "has no class Sea" in said and hint == "it has Lake, Pond"
    path.write_text("from elsewhere import Sea")  # it may come from there
    assert problems(lake(f"agent.env={path}:Sea")) == {}
    path.write_text("class Lake(:")
    said, hint = problems(lake(f"agent.env={path}:Lake"))["agent.env"]
    assert "is not Python (line 1)" in said and "py_compile" in hint


def test_what_has_no_effect_is_noted(lake: Command, command: Command) -> None:
    assert notes(command("agent.max_turns=3"))["agent.max_turns"] == "agent.max_turns has no effect: agent.env is null"
    assert "comes with the trainer" in notes(lake("agent.turn_timeout=5"))["agent.turn_timeout"]
    assert "agent.turn_timeout" not in notes(lake("agent.turn_timeout=null"))
    assert "agent.trajectory_timeout" not in notes(lake("agent.trajectory_timeout=5"))
    in_rank = notes(lake("agent.trajectory_timeout=5", "agent.isolate=False"))
    assert "has no effect" in in_rank["agent.trajectory_timeout"]
