"""Search-R1's keys: what each becomes, when, and what is said of lengths that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer import main_ppo
from trainer.config import check_command, load, warning_lines

from .conftest import SEED_SCRIPTS

Command = Callable[..., list[str]]
A, O = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"  # noqa: E741
(SEED,) = (script for script in SEED_SCRIPTS if script.stem == "003_search_r1")
LENGTHS = ("data.max_start_length=2048", "data.max_response_length=500", "data.max_obs_length=500")


def warnings(words: list[str]) -> list[str]:
    return list(warning_lines(check_command(words).notes))


def test_the_seeds_command_searches(local_seed: Callable[[Path], list[str]]) -> None:
    config = load(local_seed(SEED)).config
    agent, data = config.agent, config.data
    assert (agent.env, agent.max_turns, agent.max_turn_tokens) == ("search", 5, 500)
    assert (agent.max_observation_tokens, agent.max_context_tokens) == (500, 4096)
    assert (data.max_prompt_length, data.max_response_length, data.truncation) == (2048, 4096, "left")
    assert (config.retriever.url, config.retriever.topk) == ("http://127.0.0.1:8000/retrieve", 3)
    assert config.actor_rollout_ref.actor.state_masking is True and config.algorithm.masked_gae is False
    assert config.actor_rollout_ref.rollout.name == "vllm"


def test_the_seeds_command_is_taken_and_told_of_its_lengths(
    local_seed: Callable[[Path], list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main_ppo.main(["--check", *local_seed(SEED)]) == 0
    lines = capfd.readouterr().err.splitlines()
    (said,) = [line for line in lines if "its formula" in line]
    assert said.startswith("warning: ") and "2048 + 500 * 3 + 500 * 4 = 5548" in said and "=4096" in said
    assert "Of 5 turns at their limits, 3 fit" in said and "Raise data.max_prompt_length to 5548" in said
    # a line for each key that is another here
    for key in ("max_turns", "data.max_start_length", "data.max_obs_length", "data.max_prompt_length"):
        assert [line for line in lines if line.startswith(f"note: {key} is ")], key
    # each node has a retriever of its own
    assert any("one must run on every node" in line for line in lines)


@pytest.mark.parametrize(("limit", "fits"), [(5547, False), (5548, True)])
def test_the_formula(command: Command, limit: int, fits: bool) -> None:
    said = warnings(command(*LENGTHS, "max_turns=4", f"data.max_prompt_length={limit}"))
    assert (said == []) == fits
    native = command(
        *("agent.env=search", "agent.max_turns=5", "agent.max_turn_tokens=500", "agent.max_observation_tokens=500"),
        *("data.max_prompt_length=2048", "data.max_response_length=8000", f"agent.max_context_tokens={limit}"),
        "retriever.url=http://10.0.0.1:8000/retrieve",
    )
    assert (warnings(native) == []) == fits


def test_one_turn_alone_needs_no_room_for_others(command: Command) -> None:
    assert warnings(command(*LENGTHS, "max_turns=0", "data.max_prompt_length=2048")) == []


def test_a_context_below_the_prompt_is_refused(command: Command) -> None:
    report = check_command(command(*LENGTHS, "max_turns=1", "data.max_prompt_length=2047"))
    assert [problem.key for problem in report.problems] == ["agent.max_context_tokens"]
    assert "less than data.max_prompt_length=2048" in report.problems[0].message


def test_defaults_are_the_originals() -> None:
    config = load(["max_turns=4"]).config
    assert (config.agent.max_turn_tokens, config.agent.max_observation_tokens) == (512, 512)
    assert (config.data.max_prompt_length, config.agent.max_context_tokens) == (256, 512)
    assert config.retriever.url == "http://127.0.0.1:8000/retrieve"
    assert config.actor_rollout_ref.actor.state_masking is False
    assert load(["data.max_start_length=300"]).config.agent.max_turns == 11  # ten, and one without a search


def test_without_a_search_lengths_are_verls(command: Command) -> None:
    words = command("do_search=false", *LENGTHS, "max_turns=4", "retriever.topk=5", "data.max_prompt_length=4096")
    resolved, report = load(words), check_command(words)
    assert report.ok and resolved.config.agent.env is None
    assert (resolved.config.data.max_prompt_length, resolved.config.data.max_response_length) == (4096, 500)
    inert = {note.key: note.message for note in report.notes if note.kind == "inert"}
    assert {"do_search", "max_turns", "data.max_start_length", "data.max_obs_length", "retriever.topk"} <= inert.keys()


def test_in_our_own_words_nothing_else_changes(command: Command) -> None:
    """A retriever does not make a command Search-R1's, whose defaults are others."""
    ours = ("agent.env=search", "agent.max_turns=3", "retriever.url=http://10.0.0.1:8000/retrieve")
    resolved = load(command(*ours, f"{A}.state_masking=True"))
    assert resolved.dialect == "verl-head" and [note for note in resolved.notes if "refuses" in note.message] == []
    assert resolved.config.algorithm.masked_gae and resolved.config.agent.max_observation_tokens is None
    assert resolved.config.data.max_prompt_length == 512
    assert check_command(command(*ours)).ok


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        (("agent.speech=chat",), "agent.speech", "is one text"),
        (("algorithm.no_think_rl=true",), "algorithm.no_think_rl", "there is no such variant"),
        (("retriever.url=10.0.0.1",), "retriever.url", "is not http://HOST:PORT/PATH"),
        (("reward_model.match=exact",), "reward_model.match", "not one of its choices"),
        (("max_turns=many",), "agent.max_turns", "agent.max_turns=many"),
        (("max_turns=-2",), "agent.max_turns", "out of range"),
        (("agent.max_turn_tokens=7", "data.max_response_length=8"), "data.max_response_length", "are one key here"),
        ((f"{A}.state_masking=false", "algorithm.masked_gae=true"), f"{A}.state_masking", "have no advantages"),
    ],
)
def test_what_cannot_be(command: Command, words: tuple[str, ...], key: str, said: str) -> None:
    problems = check_command(command("do_search=true", "data.max_prompt_length=20000", *words)).problems
    assert [problem.key for problem in problems] == [key], problems
    assert said in problems[0].message and problems[0].hint


def test_what_has_no_effect_is_noted(command: Command) -> None:
    words = command("do_search=true", "agent.episodes=7", "data.max_prompt_length=20000", "algorithm.state_masking.x=1")
    notes = {note.key: note.message for note in check_command(words).notes if note.kind == "inert"}
    assert "rows of data.train_files" in notes["agent.episodes"]
    assert notes["algorithm.state_masking.x"].endswith("Search-R1 itself reads it nowhere")
    masked = {
        note.key: note.message for note in check_command(command(f"{A}.state_masking=false", "do_search=false")).notes
    }
    assert "all of a response is sampled" in masked[f"{A}.state_masking"]
