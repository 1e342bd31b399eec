"""Whole runs by Search-R1's keys in one process: what is trained by which mask, recorded, replayed and refused."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor

from tests.trainer.conftest import Words
from tests.trainer.conversations import ROWS, conversations
from tests.trainer.search_stub import Stub, retriever
from tests.trainer.test_agent_run import ran
from trainer import config, ppo, replay, shaping, views
from trainer.config.schema import Config
from trainer.data.reading import read_data
from trainer.data.recipes import RECIPES
from trainer.errors import EpisodeError
from trainer.findings import table
from trainer.records import Experience, Rollout
from trainer.retrieval import Retriever, node

A, NO_KL = "actor_rollout_ref.actor", "algorithm.use_kl_in_reward=False"
Search = Callable[..., list[str]]


@pytest.fixture
def stub() -> Iterator[Stub]:
    """With one rank in this process, nobody else gives it its retriever."""
    with retriever(lambda query: [f"{query}\nof {query}"]) as made, node.given(Retriever(made.url, retries=0)):
        yield made


@pytest.fixture
def search(words: Words, tmp_path: Path, stub: Stub) -> Search:
    """`search("key=value", ...)`: two steps of 4 questions, two samples of each, three turns."""
    recipe = RECIPES["nq"].for_search()
    rows = [recipe.row({"question": f"who is number {i}", "answer": [f"n{i}"]}, "train", i) for i in range(12)]
    pq.write_table(pa.Table.from_pylist(rows, schema=recipe.schema), tmp_path / "nq.parquet")

    def command(*changes: str) -> list[str]:
        return words(
            *(f"data.train_files={tmp_path / 'nq.parquet'}", f"data.val_files={tmp_path / 'nq.parquet'}"),
            *("max_turns=2", "data.max_start_length=64", "data.max_prompt_length=160", "data.max_response_length=8"),
            *("data.max_obs_length=20", f"retriever.url={stub.url}", "actor_rollout_ref.rollout.n_agent=2"),
            *("data.train_batch_size=4", f"{A}.ppo_mini_batch_size=2", "trainer.total_training_steps=2"),
            *("algorithm.lam=0.9", f"trainer.default_local_dir={tmp_path / 'run'}", *changes),
            without=("data.max_prompt_length", "data.max_response_length"),
        )

    return command


@pytest.mark.parametrize("masking", ["true", "false"])
def test_a_run_is_recorded_validated_and_replayed(search: Search, tmp_path: Path, masking: str) -> None:
    lines = ran(
        search(
            *(f"{A}.state_masking={masking}", "reward_model.structure_format_score=0.2"),
            *("reward_model.final_format_score=0.1", "trainer.test_freq=2", "trainer.save_freq=2"),
            *(f"trainer.capsule_dir={tmp_path / 'capsules'}", f"trainer.rollout_data_dir={tmp_path / 'samples'}"),
        )
    )
    assert all(line["training/rollout_logp_diff_max"] < 1e-4 for line in lines)
    for line in lines:
        # a model that knows nothing finds no tag: three turns, of which none is valid
        assert (line["env/number_of_actions/mean"], line["env/number_of_actions/max"]) == (3, 3)
        assert line["env/finish_ratio"] == line["env/number_of_valid_action"] == line["env/number_of_valid_search"] == 0
        assert 0 < line["state_tokens/coverage"] < 1 and line["agent/observed_tokens/max"] == 40
        assert line["prompt_length/max"] == 64  # the prompt's end
    assert lines[1]["val-core/nq/reward/mean@1"] == 0
    samples = [json.loads(text) for text in (tmp_path / "samples/1.jsonl").read_text().splitlines()]
    assert len(samples) == 8
    for sample in samples:
        assert sample["prompt"].endswith("?\n") or "Question: who is number" in sample["prompt"]
        assert [turn["answered"] != "" for turn in sample["turns"]] == [True, True, False]
        assert sample["environment"]["env"] == "search" and sample["environment"]["kwargs"]["turns"] == 3
        assert sample["ground_truth"]["target"] and sample["em"] == 0.0
    found = list(replay.replay(tmp_path / "capsules/step_2.capsule"))
    assert [each.stage for each in found if each.verdict == "skipped"] == ["rollout"]
    assert {each.verdict for each in found} == {"same", "skipped"}, "\n".join(table(found))
    assert max(each.difference or 0.0 for each in found) == 0.0, "\n".join(table(found))


def test_native_keys_ask_for_the_same(search: Search, words: Words, tmp_path: Path, stub: Stub) -> None:
    """What Search-R1's command becomes can be written in this trainer's own words."""
    ours = [
        *("agent.env=search", "agent.max_turns=3", "agent.max_turn_tokens=8", "agent.max_observation_tokens=20"),
        *("agent.max_context_tokens=160", "data.max_prompt_length=64", "data.max_response_length=160"),
        *("data.truncation=left", f"{A}.state_masking=False", "actor_rollout_ref.rollout.n=2"),
        f"retriever.url={stub.url}",
    ]
    theirs = config.load(search()).config
    own = config.load(words(*ours)).config
    assert config.load(words(*ours)).dialect == "verl-head"
    assert (own.agent, own.retriever) == (theirs.agent, theirs.retriever)
    names = ("max_prompt_length", "max_response_length", "truncation")
    assert [getattr(own.data, name) for name in names] == [getattr(theirs.data, name) for name in names]
    assert own.actor_rollout_ref.actor.state_masking is theirs.actor_rollout_ref.actor.state_masking is False


def test_without_a_search_it_is_plain_verl(search: Search) -> None:
    command = search("do_search=false", "data.max_prompt_length=600")
    settings = config.load(command).config
    assert settings.agent.env is None and settings.data.max_response_length == 8
    assert read_data(settings).environment is None
    lines = ran(command)
    assert not any(name.startswith(("env/", "agent/")) for name in lines[0])


def test_a_custom_reward_sees_the_turns(search: Search, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    turns = extra_info['turns']\n"
        "    assert all(t['action'] in solution_str for t in turns) and 'My previous' in solution_str\n"
        "    return {'score': float(len(turns)), 'told': float('My previous' in turns[0]['observation'])}\n"
    )
    lines = ran(search(f"custom_reward_function.path={tmp_path / 'mine.py'}"))
    assert lines[0]["critic/score/mean"] == 3.0 and lines[0]["critic/told/mean"] == 1.0


# -- masks


def losses(rollout: Rollout, settings: Config, seed: int = 0) -> dict[str, Tensor]:
    """Of both models, with gradients of their outputs; numbers are a function of a token's place and id."""
    generator = torch.Generator().manual_seed(seed)
    shape = rollout.response_BT.shape

    def drawn(scale: float) -> Tensor:
        return torch.randn(shape, generator=generator) * scale

    noise = {name: drawn(0.3) for name in ("old", "new", "ref", "values", "new values")}
    actors, critics = views.of_actor(rollout, settings), views.of_critic(rollout, settings)
    old, ref = (torch.where(actors.mask_BT.bool(), noise[name], 0.0) for name in ("old", "ref"))
    values = torch.where(critics.mask_BT.bool(), noise["values"], 0.0)
    scores_BT = torch.zeros(shape).scatter(1, (rollout.context_BT.sum(-1) - 1)[:, None], 1.0)
    batch, _ = ppo.train_batch(Experience(rollout, scores_BT, old, ref, values), 0.1, settings)
    new, new_values = noise["new"].requires_grad_(), noise["new values"].requires_grad_()
    policy, _ = ppo.policy_loss(old, new, batch.advantages_BT, actors.mask_BT, 0.2, 0.2, None, "token-mean")
    value, _ = ppo.value_loss(new_values, values, batch.returns_BT, critics.mask_BT, 0.5, "token-mean")
    (policy + value).backward()
    assert new.grad is not None and new_values.grad is not None
    return {
        "policy": policy.detach(),
        "value": value.detach(),
        "policy gradient": new.grad,
        "value gradient": new_values.grad,
        "advantages": batch.advantages_BT,
        "returns": batch.returns_BT,
    }


@functools.cache
def masks(state_masking: bool, masked_gae: bool) -> Config:
    changes = [f"{A}.state_masking={state_masking}", f"algorithm.masked_gae={masked_gae}"]
    return config.load([*changes, "algorithm.lam=0.95", "algorithm.use_kl_in_reward=True"]).config


ONE = conversations([([4], [([5, 6], [7, 8, 9], 0.0), ([10, 11], [], 1.0)])])  # A A o o o B B
VALUES = torch.tensor([[0.1, 0.2, 0.9, -0.5, 0.4, 0.3, 0.6]])


@pytest.mark.parametrize(
    ("masked", "lam", "advantages", "returns"),
    [
        (True, 1.0, [0.9, 0.8, None, None, None, 0.7, 0.4], [1, 1, None, None, None, 1, 1]),
        (False, 1.0, [0.9, 0.8, 0.1, 1.5, 0.6, 0.7, 0.4], [1, 1, 1, 1, 1, 1, 1]),
        (True, 0.95, [0.8087, 0.7460, None, None, None, 0.68, 0.4], [0.9087, 0.9460, None, None, None, 0.98, 1]),
        (
            False,
            0.95,
            [0.7179, 0.6504, -0.0522, 1.4187, 0.5460, 0.68, 0.4],
            [0.8179, 0.8504, 0.8478, 0.9187, 0.9460, 0.98, 1],
        ),
    ],
)
def test_advantages_over_observations(
    monkeypatch: pytest.MonkeyPatch, masked: bool, lam: float, advantages: list[Any], returns: list[Any]
) -> None:
    """The numbers that verl's own lines give, masked and not (`core_algos.compute_gae_advantage_return`)."""
    monkeypatch.setattr(ppo, "masked_whiten", lambda x, mask: x)
    settings = config.load(
        [f"algorithm.lam={lam}", f"algorithm.masked_gae={masked}", f"{A}.state_masking=True", NO_KL]
    ).config
    view = views.of_critic(ONE, settings)
    values = torch.where(view.mask_BT.bool(), VALUES, 0.0)
    scores_BT = torch.tensor([[0.0] * 6 + [1.0]])
    batch, _ = ppo.train_batch(Experience(ONE, scores_BT, torch.zeros(1, 7), None, values), 0.0, settings)
    for found, expected in ((batch.advantages_BT, advantages), (batch.returns_BT, returns)):
        for number, wanted in zip(found[0].tolist(), expected, strict=True):
            assert wanted is None or number == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("masked", "whitened"), [(True, [0.9258, 0.4629, 0.0, -1.3887]), (False, [0.4245, 0.1959, -0.0327, -0.7183])]
)
def test_advantages_are_whitened_over_the_steps(masked: bool, whitened: list[float]) -> None:
    settings = config.load(["algorithm.lam=1", f"algorithm.masked_gae={masked}", NO_KL]).config
    view = views.of_critic(ONE, settings)
    values = torch.where(view.mask_BT.bool(), VALUES, 0.0)
    scores_BT = torch.tensor([[0.0] * 6 + [1.0]])
    batch, _ = ppo.train_batch(Experience(ONE, scores_BT, torch.zeros(1, 7), None, values), 0.0, settings)
    assert batch.advantages_BT[0][ONE.mask_BT[0].bool()].tolist() == pytest.approx(whitened, abs=1e-4)


def test_who_learns_from_what_was_retrieved() -> None:
    """Search-R1's table: the policy's loss by its state masking, the critic's over all of it; the KL over neither."""
    own, observed = ONE.mask_BT.bool(), (ONE.context_BT - ONE.mask_BT).bool()
    for state_masking, masked_gae in ((True, True), (True, False), (False, False)):
        found = losses(ONE, masks(state_masking, masked_gae))
        assert (found["policy gradient"][observed] != 0).all() == (not state_masking)
        assert (found["value gradient"][observed] != 0).any() == (not masked_gae)
        assert (found["policy gradient"][own] != 0).any() and (found["value gradient"][own] != 0).any()
        if state_masking:
            assert not found["policy gradient"][observed].any()
        if masked_gae:
            assert not found["value gradient"][observed].any()


@settings(max_examples=30)
@given(ROWS)
def test_without_gaps_the_masks_are_one(rows: Any) -> None:
    """Responses of one turn give the same numbers to the bit, whatever the masks say."""
    rollout = conversations([(prompt, turns[:1]) for prompt, turns in rows])
    own = rollout.mask_BT.bool()
    assume(int(own.sum()) > 1)  # of one token alone, nothing can be whitened
    expected, found = losses(rollout, masks(True, True)), losses(rollout, masks(False, False))
    for name, tensor in expected.items():
        inside = own if tensor.dim() else ...
        assert torch.equal(found[name][inside], tensor[inside]), name


@settings(max_examples=30)
@given(ROWS)
def test_a_score_lies_on_the_last_sampled_token(rows: Any) -> None:
    rollout = conversations(rows)
    scores = ppo.Scores(torch.arange(1.0, len(rollout) + 1), {})
    placed = shaping.place_scores(scores, rollout.mask_BT)
    for row, mask, wanted in zip(placed, rollout.mask_BT.tolist(), scores.score_B.tolist(), strict=True):
        last = max(i for i, is_own in enumerate(mask) if is_own)
        assert row[last] == wanted and int((row != 0).sum()) == 1


# -- a retriever that is not there


def test_a_dead_retriever_ends_the_run_with_its_url(
    search: Search, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is said, the environment searches for it."""
    from trainer.env import search as environment

    monkeypatch.setattr(environment, "action_in", lambda text: ("search", "x"))
    stub.status = 503
    with pytest.raises(
        EpisodeError, match=r"0 of 8 trajectories can be used.*8 retriever.*the retriever at http"
    ) as caught:
        ran(search())
    assert stub.url in caught.value.message and "answered 503" in caught.value.message
    assert "asked from" in caught.value.message and "docs/search.md" in caught.value.hint


def test_searches_reach_the_retriever_and_what_is_found_is_read(
    search: Search, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.env import search as environment

    monkeypatch.setattr(environment, "action_in", lambda text: ("search", "x"))
    ran(search(f"trainer.rollout_data_dir={tmp_path / 'samples'}", "trainer.total_training_steps=1"))
    assert stub.queries == ["x"] * 16  # two of three turns of eight conversations
    sample = json.loads((tmp_path / "samples/1.jsonl").read_text().splitlines()[0])
    assert [turn["observation"] for turn in sample["turns"]] == [
        *["\n\n<information>Doc 1(Title: x) of x</information>\n\n"] * 2,
        "\n\n<information></information>\n\n",
    ]
    assert "<information>Doc" in sample["turns"][0]["answered"] and sample["turns"][2]["answered"] == ""
