"""Conversations with SGLang and vLLM themselves: turns beside one another, texts that end them, an engine that dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.conftest import AGREE, ROLLOUT, World, gap
from tests.pace import stretched
from tests.trainer.test_unit_run import Log
from trainer.config.schema import Config
from trainer.data.reading import read_data
from trainer.errors import EngineError
from trainer.interfaces import Request
from trainer.local import LocalPool
from trainer.records import Metrics, Prompts, Rollout, Row
from trainer.rollout.handle import gone
from trainer.rollout.server import Answer
from trainer.rollout.settings import sampling_of
from trainer.rollout.stops import Stops
from trainer.rollout.talk import Talk
from trainer.rows import repeat
from trainer.run import train
from trainer.tracking import Tracker

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
MODEL_PROCESS = {"sglang": 2, "vllm": 0}  # which of an engine's processes holds the model
GAME = '''
class Game:
    """Two to four turns; says what it was told."""

    def reset(self, *, seed):
        self.seed, self.at = seed, 0
        return f"Round {seed % 7}", {}

    def step(self, action):
        self.at += 1
        return f"How many? {len(action)}", float(len(action)), self.at >= 2 + self.seed % 3, False, {}

    def close(self): ...
'''
TAGS = ("</search>", "</answer>")


@pytest.fixture(scope="module")
def world(local_ray: None, config_of: Callable[..., Config], tmp_path_factory: Any) -> Iterator[World]:
    game = tmp_path_factory.mktemp("game") / "game.py"
    game.write_text(GAME)
    config = config_of(
        *(f"agent.env={game}:Game", "agent.episodes=16", "agent.val_episodes=4", "agent.max_turn_tokens=6"),
        *("data.max_prompt_length=64", "data.max_response_length=400", f"{ROLLOUT}.n=2", f"{ROLLOUT}.max_num_seqs=8"),
        *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
    )
    built = World(config, GAME)
    yield built
    built.pool.close()


@pytest.fixture(scope="module")
def texts(local_ray: None, config_of: Callable[..., Config]) -> Iterator[World]:
    """With an engine that knows its tokenizer; it takes the place of the one above."""
    config = config_of(
        *("agent.env=search", "retriever.url=http://127.0.0.1:1/retrieve", "agent.max_turn_tokens=300"),
        *("data.max_prompt_length=64", "data.max_response_length=400", f"{ROLLOUT}.max_num_seqs=8"),
        *("agent.max_turns=3", "agent.max_observation_tokens=40"),
    )
    built = World(config)
    yield built
    built.pool.close()


def games(world: World) -> Prompts:
    return repeat(next(iter(read_data(world.config).train)), 2)


def whole(rollout: Rollout) -> None:
    """Each row has its turns, as many as its seed says."""
    for episode, row in zip(rollout.episodes or (), rollout.prompts.rows, strict=True):
        assert (episode.ended, episode.failure) == ("terminated", None)
        assert len(episode.turns) == 2 + row.extra_info["seed"] % 3
        assert all(0 < turn.tokens <= 6 for turn in episode.turns)


def test_conversations_have_the_trainers_log_probs_turn_by_turn(world: World) -> None:
    rollout = world.workers.generate(games(world), 1, validate=False)
    whole(rollout)
    assert (rollout.context_BT - rollout.mask_BT).sum() > 0 and gap(world.workers, rollout) < AGREE
    world.change_weights(seed=1)
    assert gap(world.workers, world.workers.generate(games(world), 2, validate=False)) > 0.1
    world.workers.sync_weights()
    rollout = world.workers.generate(games(world), 3, validate=False)
    whole(rollout)
    assert gap(world.workers, rollout) < AGREE


def test_a_repeated_step_is_the_same_where_the_engine_takes_seeds(world: World) -> None:
    first, second = (world.workers.generate(games(world), 1, validate=False) for _ in range(2))
    samples = first.response_BT[0::2], first.response_BT[1::2]
    assert not torch.equal(*samples)  # two of a prompt are not drawn alike
    if world.engine.spec.name == "vllm":  # of SGLang, docs/agents.md says what it does
        assert torch.equal(first.response_BT, second.response_BT)
    validated = [world.workers.generate(games(world), 0, validate=True).response_BT for _ in range(2)]
    assert torch.equal(*validated)  # greedily


class Turns:
    """Turns of made-up rows, without environments."""

    def __init__(self, world: World, count: int, **changes: Any) -> None:
        sampling = replace(sampling_of(world.config, 1, validate=False), max_new_tokens=300, **changes)
        ids_B1 = torch.ones(count, 1, dtype=torch.long)
        self.rows = tuple(Row(i, "f", "s", "1") for i in range(count))
        nothing = Prompts(ids_B1, ids_B1, torch.arange(count), torch.zeros(count, dtype=torch.long), self.rows)
        self.talk: Talk = world.engine.talk(nothing, sampling)

    def ask(self, row: int, ids: Sequence[int], most: int, turn: int = 0) -> None:
        self.talk.ask([Request(row, (row, 0), turn, ids, most, self.rows[row])])

    def answers(self, count: int) -> list[Answer]:
        """The next ones."""
        found: list[Answer] = []
        until = time.monotonic() + stretched(60.0)
        while len(found) < count and not self.talk.gone:
            assert time.monotonic() < until, "no answer"
            wait(self.talk.lines, 1.0)
            found += self.talk.take()
        return found


def test_a_row_has_many_turns_while_another_speaks(world: World) -> None:
    turns = Turns(world, 2, ignore_eos=True)
    ids = [5, 6, 7]
    turns.ask(0, ids, most=300)
    for turn in range(5):
        turns.ask(1, ids, most=2, turn=turn)
        (answer,) = turns.answers(1)
        assert answer.index == 1 and len(answer.token_ids) == 2, "the long one was waited for"
        ids = [*ids, *answer.token_ids, 8]
    (answer,) = turns.answers(1)
    assert answer.index == 0 and len(answer.token_ids) == 300
    turns.talk.close()


def test_a_row_that_is_dropped_is_not_answered(world: World) -> None:
    turns = Turns(world, 3, ignore_eos=True)
    turns.ask(0, [5, 6], most=300)
    turns.ask(1, [5, 6], most=20)
    turns.talk.drop(0)
    assert [answer.index for answer in turns.answers(1)] == [1]
    turns.ask(2, [5, 6], most=20)
    assert [answer.index for answer in turns.answers(1)] == [2] and not turns.talk.lines
    turns.ask(1, [5, 6], most=300)
    turns.talk.close()  # with one open
    whole(world.workers.generate(games(world), 1, validate=False))


def test_a_context_that_does_not_fit_is_an_error(world: World) -> None:
    turns = Turns(world, 1)
    turns.ask(0, [5] * 2000, most=2)
    with pytest.raises(EngineError, match=r"engine 0 .* refused a prompt of 2000 tokens"):
        turns.answers(1)
    turns.talk.close()
    whole(world.workers.generate(games(world), 1, validate=False))


def test_an_engine_that_dies_in_conversations_comes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come to its end stands, the others begin anew."""
    kept, take, told = world.engine.handles[0].info, Talk.take, []

    def killing(self: Talk) -> list[Answer]:
        found = take(self)
        told.extend(found)
        if len(told) >= 20 and world.engine.handles[0].info is kept:
            os.kill(kept.pids[MODEL_PROCESS[world.engine.spec.name]], signal.SIGKILL)
        return found

    monkeypatch.setattr(Talk, "take", killing)
    rollout = world.workers.generate(games(world), 1, validate=False)
    whole(rollout)
    assert gap(world.workers, rollout) < AGREE
    assert world.engine.handles[0].info.pids != kept.pids and all(gone(pid, 0) for pid in kept.pids)


def follow(world: World, text: str) -> None:
    """Makes of the model one that says `text`, a character a token, whatever stands before its first one."""
    tokenizer, actor = world.pool.roles.tokenizer, world.pool.roles.actor.module
    chain = [one for char in text for one in tokenizer(char)["input_ids"]]
    assert len(set(chain)) == len(chain) == len(text)
    dice = torch.Generator().manual_seed(3)
    with torch.no_grad():
        weights = dict(actor.named_parameters())
        embedding = torch.randn(weights["model.embed_tokens.weight"].shape, generator=dice)
        head = torch.zeros_like(embedding)
        for before, after in pairwise(chain):
            head[after] = embedding[before]
        for name, weight in weights.items():
            local = weight.to_local() if hasattr(weight, "to_local") else weight
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                local.zero_()
            elif name == "model.embed_tokens.weight":
                local.copy_(embedding)
            elif name == "lm_head.weight":
                local.copy_(head)
            elif name.endswith("norm.weight"):
                local.fill_(1.0)
    world.workers.sync_weights()


def test_nothing_is_generated_behind_a_tag_however_it_is_spelled(texts: World) -> None:
    """The tokenizer itself spells it in fewer tokens than the model here, which says a character at a time."""
    follow(texts, "X</search>YZ")
    tokenizer = texts.pool.roles.tokenizer
    assert len(tokenizer("</search>")["input_ids"]) < len("</search>")
    for most, expected in ((100, "</search>"), (4, "</se")):
        turns = Turns(texts, 1, do_sample=False, stop=TAGS)
        turns.ask(0, tokenizer("X")["input_ids"], most=most)
        (answer,) = turns.answers(1)
        assert tokenizer.decode(answer.token_ids) == expected and len(answer.token_ids) == len(expected)
        turns.talk.close()


def test_a_search_is_played_turn_by_turn(texts: World) -> None:
    """A tag that opens nothing is answered with a hint, whose last character here makes the model say it again."""
    follow(texts, " </search>YZ")
    ids = texts.pool.roles.tokenizer("Who? ")["input_ids"]
    rows = tuple(Row(i, "f", "nq", {"target": ["b"]}) for i in range(6))
    ids_BP = torch.tensor([ids] * 6)
    uid_B = torch.arange(6)
    prompts = Prompts(ids_BP, torch.ones_like(ids_BP), uid_B, torch.zeros_like(uid_B), rows)
    rollout = texts.workers.generate(prompts, 1, validate=False)
    assert len(rollout.episodes or ()) == 6
    for episode in rollout.episodes or ():
        assert [turn.action for turn in episode.turns] == ["</search>"] * 3 and episode.ended == "turns"
    assert rollout.mask_BT.sum(-1).tolist() == [3 * len("</search>")] * 6
    assert gap(texts.workers, rollout) < AGREE


def test_turns_end_where_those_of_hf_do(texts: World) -> None:
    """With tokens of several characters, of which the last one may hold more than the text's end."""
    follow(texts, "X</search>YZ")
    texts.change_weights(seed=9)
    texts.workers.sync_weights()
    tokenizer = texts.pool.roles.tokenizer
    stop = tuple(f"{a}{b}" for a in "etano" for b in "nrsx ")
    turns = Turns(texts, 8, temperature=2.0, ignore_eos=True, stop=stop)
    for row in range(8):
        turns.ask(row, [5 + row, 6], most=300)
    ended = 0
    for answer in turns.answers(8):
        stops = Stops(stop, tokenizer.decode, 1)
        ends = [stops.after(torch.tensor([t]), torch.tensor([True])).item() for t in answer.token_ids]
        assert not any(ends[:-1])
        ended += ends[-1]
        assert ends[-1] or len(answer.token_ids) == 300
        assert len(answer.logprobs) == len(answer.token_ids)
    assert ended
    turns.talk.close()


def test_a_lake_is_trained_validated_and_resumed(
    local_ray: None, config_of: Callable[..., Config], tmp_path: Path
) -> None:
    """Given a run of two steps, when it is to do three, then the third follows upon its checkpoint."""

    def ran(steps: int) -> dict[int, Metrics]:
        config = config_of(
            *("agent.env=frozen_lake", "agent.env_kwargs={size:3,terse:True}", "agent.episodes=32"),
            *("agent.val_episodes=4", "agent.max_turns=4", "agent.max_turn_tokens=3", "data.train_batch_size=4"),
            *("data.max_prompt_length=128", "data.max_response_length=400", f"{ROLLOUT}.n=2"),
            *(f"{ROLLOUT}.max_num_seqs=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
            *("trainer.test_freq=1", "trainer.save_freq=1", f"trainer.total_training_steps={steps}"),
            *("trainer.val_before_train=False", f"trainer.default_local_dir={tmp_path / 'run'}"),
            *("algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.optim.lr=1e-3"),
        )
        log = Log()
        with closing(LocalPool()) as pool:
            train(config, pool, read_data(config), Tracker([log]))
        return {step: metrics for step, metrics in log.lines if "agent/kept" in metrics}

    first, second = ran(2), ran(3)
    assert (list(first), list(second)) == ([1, 2], [3])
    for metrics in (*first.values(), *second.values()):
        assert metrics["training/rollout_logp_diff_max"] < AGREE and metrics["agent/kept"] == 1
        assert metrics["agent/turns/mean"] >= 1 and "val-agent/success/mean" in metrics
