"""The checks of `devkit smoke --agent`, on conversations that are made up: right ones pass, each mistake is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from devkit.smoke import conversing
from devkit.smoke.checks import conversations
from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.options import LAKE, SEARCH
from tests.trainer.conversations import SAMPLING, Scripted, dice, prompts_of
from trainer.agent import keep
from trainer.agent.homes import Houses
from trainer.agent.loop import Conversations, Limits
from trainer.agent.source import Source
from trainer.agent.speech import CHAT, Speech
from trainer.config.problems import ConfigErrors
from trainer.demo import lake
from trainer.demo.task import PAD
from trainer.records import Experience, Rollout, TrainBatch

SOURCE = Source("frozen_lake", None, {"rows": conversing.BOARD, "terse": True})
LIMITS = Limits(
    turns=3,
    turn_tokens=3,
    prompt_tokens=16,
    response_tokens=48,
    turn_s=None,
    trajectory_s=None,
    at_once=64,
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = lake.make_tokenizer()
    made.chat_template = conversing.TEMPLATE
    return made


@pytest.fixture
def rollout(tokenizer: Any) -> Rollout:
    """Eight games of drawn letters, as the loop plays them; some without an end, some with another special token."""

    def say(context: str, uid: int, sample: int, turn: int) -> str:
        letter = "LDRU"[dice(uid, sample, turn) % 4]
        return letter * 3 if dice(uid, turn) % 5 == 0 else letter + PAD if dice(turn, uid) % 4 == 0 else letter

    engine = Scripted(say)
    engine.tokenizer = _Ends(tokenizer)  # type: ignore[assignment]
    made = Conversations(
        prompts_of([[]] * 8),
        SAMPLING,
        engine=engine,
        speech=Speech(tokenizer, [tokenizer.eos_token_id], CHAT),
        limits=LIMITS,
        home=Houses(SOURCE, isolate=True).home,
        pad_id=tokenizer.pad_token_id,
    )
    return made.play()


class _Ends:
    """The tokenizer, to an engine that writes `|` for the end of a turn."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> Any:
        return self._tokenizer(text.replace("|", self._tokenizer.eos_token), add_special_tokens=False)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids))


def experience(rollout: Rollout) -> Experience:
    scores = keep.scores(rollout, "turn")
    assert scores.placed_BT is not None
    return Experience(rollout, scores.placed_BT, rollout.logp_BT, None, None)


def failed(outcome: Outcome, *words: str) -> None:
    assert outcome.ok is False and "look at trainer/" in outcome.detail, outcome
    assert all(word in outcome.detail for word in words), outcome.detail


def replaced(rollout: Rollout, row: int, **tensors: Tensor) -> Rollout:
    """With other numbers in one row."""
    changed = {}
    for name, values in tensors.items():
        whole = getattr(rollout, name).clone()
        whole[row] = values
        changed[name] = whole
    return dataclasses.replace(rollout, **changed)


def test_what_the_loop_plays_passes(rollout: Rollout, tokenizer: Any) -> None:
    assert rollout.episodes is not None and max(len(each.turns) for each in rollout.episodes) == 3
    for outcome in (
        conversations.turns_as_played(rollout, tokenizer),
        conversations.glue(rollout, tokenizer, CHAT),
        conversations.rewards_of_turns(experience(rollout), SOURCE),
    ):
        assert outcome.ok, outcome
    assert "0 would be other tokens" in conversations.glue(rollout, tokenizer, CHAT).detail


def test_an_observation_in_the_mask_is_named(rollout: Rollout, tokenizer: Any) -> None:
    row = _with_several_turns(rollout)
    found = conversations.turns_as_played(replaced(rollout, row, mask_BT=rollout.context_BT[row]), tokenizer)
    failed(found, f"row {row}", "is trained and was not sampled", "laying.py")


def test_a_last_turn_that_is_cut_is_named(rollout: Rollout, tokenizer: Any) -> None:
    row = _with_several_turns(rollout)
    assert rollout.episodes is not None
    present, mask = rollout.context_BT[row].clone(), rollout.mask_BT[row].clone()
    start = rollout.episodes[row].turns[-1].start
    present[start:], mask[start:] = 0, 0
    found = conversations.turns_as_played(replaced(rollout, row, present_BT=present, mask_BT=mask), tokenizer)
    failed(found, f"row {row}", "turns end at")


def test_an_action_that_was_not_sampled_is_named(rollout: Rollout, tokenizer: Any) -> None:
    assert rollout.episodes is not None
    turn = rollout.episodes[0].turns[0]
    ids = rollout.response_BT[0].clone()
    ids[turn.start] = tokenizer.convert_tokens_to_ids("U" if turn.action[0] != "U" else "D")
    failed(conversations.turns_as_played(replaced(rollout, 0, response_BT=ids), tokenizer), "was sampled", "speech.py")


def test_an_observation_that_was_cut_is_right_where_that_was_asked_for(rollout: Rollout, tokenizer: Any) -> None:
    assert rollout.episodes is not None
    longer = [
        dataclasses.replace(
            each, turns=tuple(dataclasses.replace(t, observation=t.observation + "L") for t in each.turns)
        )
        for each in rollout.episodes
    ]
    changed = dataclasses.replace(rollout, episodes=tuple(longer))
    most = len(rollout.episodes[0].observation)
    assert conversations.glue(changed, tokenizer, CHAT, most).ok
    failed(conversations.glue(changed, tokenizer, CHAT), "stands where")


@pytest.mark.parametrize("place", [0, 1, -1])
def test_glue_that_is_lost_or_other_is_named(rollout: Rollout, tokenizer: Any, place: int) -> None:
    """Any token between two turns."""
    row = _with_several_turns(rollout)
    assert rollout.episodes is not None
    first, second = rollout.episodes[row].turns[:2]
    column = second.start - 1 if place < 0 else first.end + place
    ids = rollout.response_BT[row].clone()
    ids[column] = 3 + (int(ids[column]) - 3 + 1) % (len(tokenizer) - 3)
    failed(conversations.glue(replaced(rollout, row, response_BT=ids), tokenizer, CHAT), f"row {row}", "stands where")


def test_a_reward_elsewhere_is_named(rollout: Rollout) -> None:
    seen = experience(rollout)
    row, column = (int(index) for index in seen.scores_BT.nonzero()[0])
    for to in (column - 1, min(column + 1, seen.scores_BT.shape[1] - 1)):
        scores = seen.scores_BT.clone()
        scores[row, to], scores[row, column] = (scores[row, column], 0.0) if to != column else (0.5, 0.5)
        moved = dataclasses.replace(seen, scores_BT=scores)
        failed(conversations.rewards_of_turns(moved, SOURCE), f"row {row}", "has the reward", "laying.py")


def test_a_reward_that_the_environment_does_not_give_is_named(rollout: Rollout) -> None:
    assert rollout.episodes is not None
    turns = rollout.episodes[0].turns
    other = dataclasses.replace(rollout.episodes[0], turns=(dataclasses.replace(turns[0], reward=0.5), *turns[1:]))
    changed = dataclasses.replace(rollout, episodes=(other, *rollout.episodes[1:]))
    found = conversations.rewards_of_turns(experience(changed), SOURCE)
    failed(found, "row 0: turn 1: reward was 0.5, and played again 0.0")


def test_of_scores_as_a_whole_each_lies_on_the_last_sampled_token(rollout: Rollout) -> None:
    last_B = (rollout.mask_BT * torch.arange(1, rollout.mask_BT.shape[1] + 1)).argmax(-1)
    scores_BT = torch.zeros(rollout.mask_BT.shape).scatter(1, last_B[:, None], torch.ones(8, 1))
    whole = dataclasses.replace(experience(rollout), scores_BT=scores_BT)
    assert conversations.rewards_of_turns(whole, None).ok
    failed(
        conversations.rewards_of_turns(dataclasses.replace(whole, scores_BT=scores_BT.roll(-1, 1)), None),
        "has the reward 1, and should have 0",
    )


# -- the mask proof


def cut(rollout: Rollout, tokenizer: Any) -> tuple[TrainBatch, TrainBatch]:
    seen = experience(rollout)
    batch = TrainBatch(seen, seen.scores_BT, seen.scores_BT, seen.scores_BT)
    pair = conversations.cut_behind_first_answer(batch, len(tokenizer))
    assert pair is not None
    return pair


def test_the_proofs_rows_end_with_an_observation_that_differs(rollout: Rollout, tokenizer: Any) -> None:
    before, after = (each.experience.rollout for each in cut(rollout, tokenizer))
    assert torch.equal(before.mask_BT, after.mask_BT) and torch.equal(before.context_BT, after.context_BT)
    differs = before.response_BT != after.response_BT
    assert differs.any(-1).all() and not (differs & before.mask_BT.bool()).any()
    assert ((before.context_BT - before.mask_BT).bool() == differs).all()  # every token of it, and no other


def test_a_change_is_named_and_none_is_none(rollout: Rollout) -> None:
    same = ({"actor/pg_loss": 0.5, "actor/entropy": 1.0}, 2.0)
    assert conversations.mask_proof(same, same, 4).ok
    failed(conversations.mask_proof(same, ({**same[0], "actor/pg_loss": 0.51}, 2.0), 4), "actor/pg_loss is 0.5")
    failed(conversations.mask_proof(same, (same[0], 2.1), 4), "the gradient is 2")


def test_conversations_of_one_turn_prove_nothing(rollout: Rollout, tokenizer: Any) -> None:
    assert rollout.episodes is not None
    short = [dataclasses.replace(each, turns=each.turns[:1]) for each in rollout.episodes]
    seen = experience(dataclasses.replace(rollout, episodes=tuple(short)))
    batch = TrainBatch(seen, seen.scores_BT, seen.scores_BT, seen.scores_BT)
    assert conversations.cut_behind_first_answer(batch, len(tokenizer)) is None


def _with_several_turns(rollout: Rollout) -> int:
    assert rollout.episodes is not None
    return next(row for row, each in enumerate(rollout.episodes) if len(each.turns) > 1)


# -- the command


@pytest.mark.parametrize("agent", [LAKE, SEARCH])
def test_its_own_command_takes_the_users_words_last(agent: str) -> None:
    plan = conversing.make_plan(agent, ["actor_rollout_ref.rollout.n=4", "algorithm.adv_estimator=gae"], None)
    assert plan.full.actor_rollout_ref.rollout.n == 4 and plan.full.uses_critic
    assert plan.full.trainer.total_training_steps == conversing.LAST
    with pytest.raises(ConfigErrors, match=r"actor_rollout_ref\.rollout\.m"):
        conversing.make_plan(agent, ["actor_rollout_ref.rollout.m=4"], None)


@pytest.mark.parametrize("agent", [LAKE, SEARCH])
def test_its_own_command_can_be_read_in_a_folder_of_any_name(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "Über uns, mit 'Platz'"
    folder.mkdir()
    monkeypatch.chdir(folder)
    full = conversing.make_plan(agent, [], None).full
    assert full.trainer.default_local_dir == str(folder / "smoke" / "run")
    assert full.actor_rollout_ref.model.path == str(folder / "smoke" / "model")


def test_what_is_taught_are_games_as_the_loop_plays_them(tokenizer: Any) -> None:
    import random

    ids, own = next(conversing.games(tokenizer, random.Random(0)))
    assert len(ids) == len(own) and tokenizer.unk_token_id not in ids
    said = tokenizer.decode([each for each, is_own in zip(ids, own, strict=True) if is_own])
    assert set(said.replace(tokenizer.eos_token, "")) <= set("LDRU")
