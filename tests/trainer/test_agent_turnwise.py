"""Rows of single turns: each with its own prompt, and together what the conversation was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.conversations import SAMPLING, Characters, Scripted, prompts_of
from tests.trainer.test_agent_loop import LIMITS, Echo
from tests.trainer.test_agent_run import GAME as GAME
from tests.trainer.test_agent_run import play as play
from tests.trainer.test_agent_run import ran
from trainer import config, replay
from trainer.agent.homes import Inline
from trainer.agent.loop import Conversations, Limits
from trainer.agent.messages import Messages
from trainer.agent.source import Source
from trainer.agent.speech import Speech
from trainer.agent.turnwise import rows_of_turns
from trainer.errors import EpisodeError
from trainer.findings import table
from trainer.records import Rollout
from trainer.shapes import _require_turns

TEMPLATE = "{step_count}[{history}]{current_observation}:"


def played(engine: Scripted, limits: Limits = LIMITS, template: str | None = TEMPLATE, history: int = 2) -> Rollout:
    """Of seeds 100, 101, 102: two turns, three turns, one turn."""
    return Conversations(
        prompts_of([[]] * 3),
        SAMPLING,
        engine=engine,
        speech=Speech(Characters(), [1]),
        limits=replace(limits, turnwise=True, prompt_tokens=90),
        home=lambda: Inline(Source("frozen_lake"), Echo),
        pad_id=0,
        messages=Messages(template, turns=4, history=history),
    ).play()


def shown(rollout: Rollout) -> list[tuple[str, str]]:
    """Each row's prompt and response."""
    decode, prompts = Characters().decode, rollout.prompts
    read = [decode(ids[mask.bool()].tolist()) for ids, mask in zip(prompts.ids_BP, prompts.mask_BP, strict=True)]
    said = [decode(ids[mask.bool()].tolist()) for ids, mask in zip(rollout.response_BT, rollout.mask_BT, strict=True)]
    return list(zip(read, said, strict=True))


def test_each_turn_has_a_prompt_of_its_own() -> None:
    engine = Scripted(lambda context, uid, sample, turn: f"{uid}.{turn}")
    whole = played(engine)
    rows = rows_of_turns(whole, even=1)
    past = "(step: {}, observation: {}, action: {}, reward: 0.5)"
    assert shown(rows) == [
        ("0[]#100:", "0.0|"),
        (f"1[{past.format(1, '#100', '0.0')}]<0.0>:", "0.1|"),
        ("0[]#101:", "1.0|"),
        (f"1[{past.format(1, '#101', '1.0')}]<1.0>:", "1.1|"),
        (f"2[{past.format(2, '<1.0>', '1.1')}]<1.1>:", "1.2|"),  # history=2: its own turn, and one before it
        ("0[]#102:", "2.0|"),
    ]
    # the engine read these prompts, and nothing before them
    assert [Characters().decode(ids) for ids in engine.contexts[-1:]] == [shown(rows)[4][0]]
    assert rows.mask_BT.sum().item() == 6 * 4 and bool((rows.mask_BT == rows.present_BT).all())
    assert rows.logp_BT[rows.mask_BT.bool()].eq(-0.5).all()
    _require_turns(rows)
    # what is known of each
    assert rows.prompts.uid_B.tolist() == [0, 0, 1, 1, 1, 2]
    assert len(set(rows.prompts.samples)) == 6
    known = [(each.step, each.rewards, each.reward, each.turns[0].action) for each in rows.episodes or ()]
    assert known[3:] == [(1, (0.5, 0.5, 0.5), 0.5, "1.1"), (2, (0.5, 0.5, 0.5), 0.5, "1.2"), (0, (0.5,), 0.5, "2.0")]
    assert [row.index for row in rows.prompts.rows] == [0, 0, 1, 1, 1, 2]
    # ranks share rows evenly: what is left over goes
    assert shown(rows_of_turns(whole, even=4)) == shown(rows)[:4]
    with pytest.raises(EpisodeError, match="fewer than 8 turns"):
        rows_of_turns(whole, even=8)


def test_without_a_template_a_turn_sees_its_observation_alone() -> None:
    rows = rows_of_turns(played(Scripted(lambda *_: "x"), template=None), even=1)
    assert [prompt for prompt, _ in shown(rows)] == ["#100", "<x>", "#101", "<x>", "<x>", "#102"]


def test_limits_are_of_each_turn() -> None:
    """A prompt that is too long ends the conversation; a response has all of its room in each turn."""
    engine = Scripted(lambda context, uid, sample, turn: "abc")
    whole = played(engine, replace(LIMITS, response_tokens=4), template=None)
    assert [(each.ended, len(each.turns)) for each in whole.episodes or ()] == [
        ("terminated", 2),
        ("terminated", 3),
        ("terminated", 1),
    ]
    engine = Scripted(lambda context, uid, sample, turn: "abcdef"[: 3 + turn])
    whole = Conversations(
        prompts_of([[]] * 2),
        SAMPLING,
        engine=engine,
        speech=Speech(Characters(), [1]),
        limits=replace(LIMITS, turnwise=True, prompt_tokens=5),  # "<abc>", and not "<abcd>"
        home=lambda: Inline(Source("frozen_lake"), Echo),
        pad_id=0,
        messages=Messages(history=5),
    ).play()
    assert [(each.ended, len(each.turns)) for each in whole.episodes or ()] == [("terminated", 2), ("length", 2)]


@pytest.mark.parametrize("estimator", ["gigpo", "step_reinforce", "gae"])
def test_a_run_trains_on_turns(play: Callable[..., list[str]], tmp_path: Path, estimator: str) -> None:
    command = play(
        f"algorithm.adv_estimator={estimator}",
        *("agent.rows=turn", "agent.template='{history} {current_observation}'", "data.max_prompt_length=120"),
        "algorithm.reward_normalization={grouping:traj_group_id,norm_mean_type:group,norm_std_type:group}",
        *("trainer.test_freq=1", "trainer.save_freq=2", f"trainer.capsule_dir={tmp_path / 'capsules'}"),
        f"trainer.rollout_data_dir={tmp_path / 'samples'}",
    )
    lines = ran(command)
    assert all(line["training/rollout_logp_diff_max"] < 1e-4 for line in lines)
    assert all(2 <= line["agent/turns/mean"] <= 3 and line["agent/dropped"] == 0 for line in lines)
    assert all("val-agent/success/mean" in line for line in lines)
    # each sample is a whole conversation, which can be played again
    samples = [json.loads(text) for text in (tmp_path / "samples/2.jsonl").read_text().splitlines()]
    assert len(samples) == 8 and all(len(sample["turns"]) >= 2 for sample in samples)
    found = list(replay.replay(tmp_path / "capsules/step_2.capsule"))
    assert {each.verdict for each in found} == {"same", "skipped"}, "\n".join(table(found))
    assert max(each.difference or 0.0 for each in found) == 0.0, "\n".join(table(found))


def test_searching_has_no_rows_of_turns(play: Callable[..., list[str]]) -> None:
    problems = {problem.key for problem in config.check_command(["agent.env=search", "agent.rows=turn"]).problems}
    assert "agent.rows" in problems
