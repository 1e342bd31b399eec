"""From turns to rows and back: what is trained and read, where rewards lie, and that one turn is as it always was."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.conversations import IDS, ROWS, Turns, conversations, plain, said_of
from trainer import ppo, shaping, typed_json
from trainer.agent.laying import lay, placed_rewards
from trainer.averages import masked_whiten
from trainer.learner.layout import is_level, packed, padded, trim
from trainer.records import Rollout, Scores
from trainer.rows import concat, runs, split, take
from trainer.samples import conversation
from trainer.shapes import _require_turns
from trainer.transport import pack, unpack

CPU = torch.device("cpu")


@given(ROWS)
def test_what_was_sampled_comes_back_token_for_token(rows: list[tuple[list[int], Turns]]) -> None:
    rollout = conversations(rows)
    for i, (_, turns) in enumerate(rows):
        ids, mask = rollout.response_BT[i], rollout.mask_BT[i].bool()
        assert ids[mask].tolist() == [token for sampled, _, _ in turns for token in sampled]
        assert rollout.logp_BT[i][mask].tolist() == pytest.approx([-0.01 * t for s, _, _ in turns for t in s])
        assert rollout.logp_BT[i][~mask].abs().sum() == 0
        # what is read is all of it, to the last sampled token and no further
        read = [token for sampled, answered, _ in turns for token in (*sampled, *answered)]
        read = read[: len(read) - len(turns[-1][1])]
        assert ids[rollout.context_BT[i].bool()].tolist() == read
        assert bool(mask[len(read) - 1])
        assert rollout.episodes is not None
        episode = rollout.episodes[i]
        assert [ids[t.start : t.end].tolist() for t in episode.turns] == [sampled for sampled, _, _ in turns]
        # and a file of samples says the same
        written = conversation(rollout, episode, i, lambda ids: " ".join(map(str, ids)))
        assert [turn["sampled_ids"] for turn in written["turns"]] == [sampled for sampled, _, _ in turns]
        assert [turn["answered_ids"] for turn in written["turns"]] == [*[a for _, a, _ in turns[:-1]], []]


@given(ROWS)
def test_a_reward_lies_on_its_turns_last_sampled_token(rows: list[tuple[list[int], Turns]]) -> None:
    rollout = conversations(rows)
    assert rollout.episodes is not None
    width = rollout.response_BT.shape[1]
    by_turn, at_last = (placed_rewards(rollout.episodes, width, where) for where in ("turn", "last"))
    for i, (_, turns) in enumerate(rows):
        expected, column = [0.0] * width, 0
        for sampled, answered, reward in turns:
            expected[column + len(sampled) - 1] = reward
            column += len(sampled) + len(answered)
        assert by_turn[i].tolist() == expected
        assert at_last[i].nonzero().flatten().tolist() in ([], [column - len(turns[-1][1]) - 1])
    assert (by_turn * (1 - rollout.mask_BT)).abs().sum() == 0
    torch.testing.assert_close(by_turn.sum(-1), at_last.sum(-1))


@given(st.lists(st.tuples(st.lists(IDS, min_size=1, max_size=4), st.lists(IDS, min_size=1, max_size=5)), min_size=1))
def test_one_turn_is_a_run_without_environments_to_the_bit(rows: list[tuple[list[int], list[int]]]) -> None:
    ours, today = plain(rows)[1], plain(rows)[0]
    for name in ("response_BT", "mask_BT", "logp_BT", "context_BT", "attention_BS", "ids_BS", "lengths_B"):
        assert torch.equal(getattr(ours, name), getattr(today, name)), name
    for lay_out in (padded, packed):
        a, b = lay_out(trim(ours), CPU), lay_out(trim(today), CPU)
        assert torch.equal(a.before_M, b.before_M) and torch.equal(a.labels_M, b.labels_M)
        assert all(torch.equal(torch.as_tensor(a.inputs[k]), torch.as_tensor(b.inputs[k])) for k in b.inputs)
    score_B = torch.ones(len(rows))
    assert ours.episodes is not None
    placed_BT = placed_rewards(ours.episodes, ours.response_BT.shape[1], "turn")
    assert torch.equal(placed_BT, shaping.place_scores(Scores(score_B, {}), today.mask_BT))
    assert is_level(ours) == is_level(today)


@given(ROWS)
def test_each_layout_predicts_the_sampled_tokens_from_all_before_them(rows: list[tuple[list[int], Turns]]) -> None:
    """By counting: of each sampled token, the inputs up to the position that predicts it are its whole context."""
    rollout = trim(conversations(rows))
    contexts = [
        (prompt + lay(said_of(turns)).ids[:column], lay(said_of(turns)).ids[column])
        for prompt, turns in rows
        for column, trained in enumerate(lay(said_of(turns)).mask)
        if trained
    ]
    width = int(rollout.lengths_B.max())
    rows_of = padded(rollout, CPU)
    flat = rows_of.inputs["input_ids"].flatten().tolist()
    for (context, token), at, label in zip(contexts, rows_of.before_M.tolist(), rows_of.labels_M.tolist(), strict=True):
        start = at // width * width
        assert (flat[start : at + 1], label) == (context, token)
        assert rows_of.inputs["position_ids"].flatten().tolist()[at] == len(context) - 1
    together = packed(rollout, CPU)
    ids, positions = together.inputs["input_ids"][0].tolist(), together.inputs["position_ids"][0].tolist()
    assert len(ids) == int(rollout.lengths_B.sum())
    pairs = zip(contexts, together.before_M.tolist(), together.labels_M.tolist(), strict=True)
    for (context, token), at, label in pairs:
        assert (ids[at - positions[at] : at + 1], label) == (context, token)


@given(ROWS, st.integers(0, 3), st.integers(0, 3))
def test_padding_of_other_rows_changes_no_row(rows: list[tuple[list[int], Turns]], left: int, right: int) -> None:
    """`trim` takes away columns that no row has, though a row's mask has gaps."""
    rollout, wider = conversations(rows), conversations(rows)
    pad = torch.nn.functional.pad
    wider = replace(
        wider,
        prompts=replace(
            wider.prompts, ids_BP=pad(wider.prompts.ids_BP, (left, 0)), mask_BP=pad(wider.prompts.mask_BP, (left, 0))
        ),
        response_BT=pad(wider.response_BT, (0, right)),
        mask_BT=pad(wider.mask_BT, (0, right)),
        logp_BT=pad(wider.logp_BT, (0, right)),
        present_BT=pad(wider.context_BT, (0, right)),
    )
    assert torch.equal(trim(wider).ids_BS, rollout.ids_BS) and torch.equal(trim(wider).mask_BT, rollout.mask_BT)
    assert torch.equal(trim(wider).context_BT, rollout.context_BT)


@given(ROWS)
@settings(max_examples=30)
def test_rows_are_taken_joined_sent_and_written_with_their_turns(rows: list[tuple[list[int], Turns]]) -> None:
    rollout = conversations(rows)
    order = torch.arange(len(rollout)).flip(0)
    back = take(take(rollout, order), order)
    halves = concat(runs(rollout, [len(rollout) // 2, len(rollout) - len(rollout) // 2]))
    dealt = split(rollout, [list(range(0, len(rollout), 2)), list(range(1, len(rollout), 2))])
    tensors: dict[str, torch.Tensor] = {}
    data = json.loads(json.dumps(typed_json.encode(rollout, tensors)))
    for other in (back, halves, unpack(pack(rollout)), typed_json.decode(Rollout, data, tensors)):
        assert other.episodes == rollout.episodes
        assert torch.equal(other.context_BT, rollout.context_BT) and torch.equal(other.mask_BT, rollout.mask_BT)
    assert dealt[0].episodes == rollout.episodes[::2]  # type: ignore[index]


def test_a_capsule_with_turns_elsewhere_than_its_mask_is_refused() -> None:
    rollout = conversations([([5, 6], [([7, 8], [9], 1.0), ([10], [], 0.0)])])
    _require_turns(rollout)
    present = rollout.context_BT.clone()
    present[0, 2] = 0
    moved = replace(rollout, mask_BT=rollout.mask_BT.roll(1, -1))
    for wrong in (replace(rollout, present_BT=None), replace(rollout, present_BT=present), moved):
        with pytest.raises(ValueError, match=r"come together|gaps|not where its mask is"):
            _require_turns(wrong)


# The reference's table: response A A o o o B B, values .1 .2 .9 -.5 .4 .3 .6, a reward of 1 at the end.
MASK = torch.tensor([[1, 1, 0, 0, 0, 1, 1]])
VALUES = torch.tensor([[0.1, 0.2, 0.9, -0.5, 0.4, 0.3, 0.6]], dtype=torch.float64)
REWARDS = torch.tensor([[0.0, 0, 0, 0, 0, 0, 1]], dtype=torch.float64)
SAMPLED = MASK[0].bool()


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        (1.0, 1.0, [0.9, 0.8, 0.7, 0.4]),
        (1.0, 0.95, [0.8087, 0.7460, 0.68, 0.4]),
        (0.99, 0.95, [0.7820, 0.7273, 0.6702, 0.4]),
    ],
)
def test_observations_are_one_transition(gamma: float, lam: float, expected: list[float]) -> None:
    advantages, _ = ppo.gae(REWARDS, VALUES, MASK, gamma, lam)
    assert advantages[0, SAMPLED].tolist() == pytest.approx(expected, abs=5e-5)
    # as if the observations were not there
    alone, _ = ppo.gae(REWARDS[:, SAMPLED], VALUES[:, SAMPLED], torch.ones(1, 4), gamma, lam)
    assert advantages[0, SAMPLED].tolist() == pytest.approx(alone[0].tolist(), abs=1e-12)


def test_rewards_of_turns_whitening_and_reinforce_plus_plus() -> None:
    turns = torch.tensor([[0.0, -0.1, 0, 0, 0, 0, 1]], dtype=torch.float64)
    advantages, _ = ppo.gae(turns, VALUES, MASK, 1.0, 0.95)
    assert advantages[0, SAMPLED].tolist() == pytest.approx([0.7137, 0.6460, 0.68, 0.4], abs=5e-5)
    whole, _ = ppo.gae(REWARDS, VALUES, MASK, 1.0, 1.0)
    assert masked_whiten(whole, MASK)[0, SAMPLED].tolist() == pytest.approx([0.9258, 0.4629, 0, -1.3887], abs=5e-5)
    _, returns = ppo.reinforce_plus_plus(REWARDS, MASK, 1.0)
    assert returns[0, SAMPLED].tolist() == [1, 1, 1, 1]  # the reward reaches the turn before the observation
