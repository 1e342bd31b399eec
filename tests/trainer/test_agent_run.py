"""Whole runs with environments in one process: steps, validation, samples, capsules, failures; the same on ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import Words
from tests.trainer.test_unit_run import Log, Pool
from trainer import config, replay
from trainer.agent.player import Player
from trainer.config.schema import Config
from trainer.data.episodes import TRAIN, VALIDATION, seed_of
from trainer.data.reading import read_data
from trainer.errors import ConfigError, EpisodeError
from trainer.findings import table
from trainer.group import WorkerGroup
from trainer.learner.models import Source
from trainer.local import LocalPool
from trainer.records import Metrics, Rollout
from trainer.rollout.build import build_engine, eos_ids
from trainer.rows import repeat
from trainer.run import train
from trainer.spec import RunSpec
from trainer.tokenizer import load_tokenizer
from trainer.tracking import Tracker

GAME = '''
class Game:
    """Two to four turns; a reward for each letter e; some seeds fail as they are told to."""

    def __init__(self, fails=0, how="raise"):
        self.fails, self.how = fails, how

    def reset(self, *, seed):
        self.seed, self.at = seed, 0
        return f"Round {seed % 7}", {}

    def step(self, action):
        self.at += 1
        if self.fails and self.seed % self.fails == 0 and self.at == 2:
            if self.how == "die": import os; os._exit(9)
            raise ValueError(f"no more of {self.seed}")
        done = self.at >= 2 + self.seed % 3
        info = {"success": done, "metrics": {"at": self.at}}
        return f"How many? {len(action)}", float(action.count("e")), done, False, info

    def close(self): ...
'''


@pytest.fixture
def play(words: Words, tmp_path: Path) -> Callable[..., list[str]]:
    """`play("key=value", ...)`: a run of 8 games a step, two of each."""
    (tmp_path / "game.py").write_text(GAME)

    def command(*changes: str) -> list[str]:
        return words(
            f"agent.env={tmp_path / 'game.py'}:Game",
            *("agent.episodes=16", "agent.val_episodes=5", "agent.max_turns=3", "agent.max_turn_tokens=6"),
            *("data.train_batch_size=4", "actor_rollout_ref.rollout.n=2", "data.max_response_length=72"),
            *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.total_training_steps=2"),
            f"trainer.default_local_dir={tmp_path / 'run'}",
            *changes,
            without=("data.train_files", "data.val_files"),
        )

    return command


def ran(command: Sequence[str], notes: list[str] | None = None) -> list[Metrics]:
    """The metrics of a run in this process, by step."""
    settings, log = config.load(command).config, Log()
    assert config.check_command(command).problems == ()
    tracker = Tracker([log])
    if notes is not None:
        tracker.note = notes.append  # type: ignore[method-assign]
    with closing(LocalPool()) as pool:
        train(settings, pool, read_data(settings), tracker)
    return [metrics for _, metrics in log.lines]


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_run_is_recorded_validated_and_replayed(
    play: Callable[..., list[str]], tmp_path: Path, estimator: str
) -> None:
    lines = ran(
        play(
            f"algorithm.adv_estimator={estimator}",
            *("algorithm.lam=0.9", "actor_rollout_ref.actor.use_kl_loss=True", "agent.reward=turn"),
            *("trainer.test_freq=1", "trainer.save_freq=2", f"trainer.capsule_dir={tmp_path / 'capsules'}"),
            *(f"trainer.rollout_data_dir={tmp_path / 'samples'}", f"trainer.validation_data_dir={tmp_path / 'val'}"),
        )
    )
    # the engine's log-probs, turn by turn with a cache, are those of one pass over all of it
    assert all(line["training/rollout_logp_diff_max"] < 1e-4 for line in lines)
    assert [line["agent/dropped"] for line in lines] == [0, 0]
    assert all(2 <= line["agent/turns/mean"] <= 3 and line["agent/observed_tokens/min"] > 0 for line in lines)
    assert all(line["response_length/mean"] > line["agent/sampled_tokens/mean"] for line in lines)
    assert all(line["perf/total_num_tokens"] > 0 and "val-agent/success/mean" in line for line in lines)
    assert "val-core/game.py:Game/reward/mean@1" in lines[0]
    # each sample is a line with its turns
    samples = [json.loads(text) for text in (tmp_path / "samples/1.jsonl").read_text().splitlines()]
    assert len(samples) == 8 and len((tmp_path / "val/1.jsonl").read_text().splitlines()) == 5
    for sample in samples:
        assert sample["response"] == "".join(turn["sampled"] + turn["answered"] for turn in sample["turns"])
        assert sample["score"] == pytest.approx(sum(turn["reward"] for turn in sample["turns"]))
        assert sample["turns"][-1]["answered"] == ""
    # and the step is done again from its capsule, without the file
    (tmp_path / "game.py").unlink()
    found = list(replay.replay(tmp_path / "capsules/step_2.capsule"))
    assert [each.stage for each in found if each.verdict == "skipped"] == ["rollout"]
    assert {each.verdict for each in found} == {"same", "skipped"}, "\n".join(table(found))
    assert max(each.difference or 0.0 for each in found) == 0.0, "\n".join(table(found))


def test_what_fails_is_left_out_and_told(play: Callable[..., list[str]]) -> None:
    seeds = [seed_of(1, TRAIN, i) for i in range(16)]
    fails = next(n for n in range(2, 60) if 1 <= sum(seed % n == 0 for seed in seeds) <= 2)
    notes: list[str] = []
    settings = (f"agent.env_kwargs={{fails:{fails}}}", "agent.min_kept=0.4", "trainer.total_training_steps=4")
    lines = ran(play(*settings, "algorithm.adv_estimator=grpo"), notes)
    dropped = [int(line["agent/dropped"]) for line in lines]
    assert sum(dropped) == 2 * sum(seed % fails == 0 for seed in seeds)
    assert [line.get("agent/failed/raised", 0) for line in lines] == dropped
    told = [note for note in notes if "failed and w" in note]
    assert len(told) == sum(count > 0 for count in dropped)
    assert ", turn 2: step raised ValueError: no more of " in told[0] and "game.py:16 in step" in told[0]


def test_a_resumed_run_is_the_one_that_went_on(play: Callable[..., list[str]], tmp_path: Path) -> None:
    """Tasks, seeds and draws of turns are functions of the step: nothing of them is saved."""

    def steps(folder: str, last: int) -> list[Metrics]:
        where = (f"trainer.default_local_dir={tmp_path / folder}", "trainer.save_freq=2")
        return ran(play(*where, f"trainer.total_training_steps={last}"))

    whole = steps("whole", 3)
    steps("parts", 1)
    resumed = steps("parts", 3)  # two more: the second shows what the first has done with the optimizer's state
    for found, expected in zip(resumed, whole[1:], strict=True):
        kept = {
            name for name in expected if not name.startswith(("timing", "perf/", "memory")) and "seconds" not in name
        }
        assert {name: found[name] for name in kept} == {name: expected[name] for name in kept}


def test_too_many_that_fail_end_the_run(play: Callable[..., list[str]]) -> None:
    with pytest.raises(EpisodeError, match=r"0 of 8 trajectories can be used.*8 died") as caught:
        ran(play("agent.env_kwargs={fails:1,how:die}"))
    assert "worker's log" in caught.value.hint


def test_an_environment_that_cannot_be_loaded_is_told_before_the_first_step(
    play: Callable[..., list[str]], tmp_path: Path
) -> None:
    command = play()
    (tmp_path / "game.py").write_text("import nowhere\nclass Game: ...")
    with pytest.raises(ConfigError, match=r"raised while it was loaded: ModuleNotFoundError.*game.py:1"):
        ran(command)


class Rank:
    """A rank with an engine and environments, and nothing else."""

    def __init__(self, settings: Config, source_text: str) -> None:
        tokenizer = load_tokenizer(settings.actor_rollout_ref.model)
        model = settings.actor_rollout_ref.model
        source = Source(model.path, False, 1)
        engine: Any = build_engine(settings, source, torch.device("cpu"), tokenizer)
        torch.manual_seed(7)  # the engine's weights come from the trainer, which is not here
        for parameter in engine.model.parameters():
            parameter.data.normal_(std=0.3)
        self.player = Player(RunSpec(settings, None, 1, source_text), engine, tokenizer, eos_ids(tokenizer, source))

    def generate(self, *args: Any) -> Rollout:
        return self.player.play(*args)


def test_one_two_and_four_ranks_play_the_same(play: Callable[..., list[str]]) -> None:
    made = []
    for ranks in (1, 2, 4):
        settings = config.load(play(f"trainer.n_gpus_per_node={ranks}", "agent.isolate=False")).config
        data = read_data(settings)
        group = WorkerGroup(Pool([Rank(settings, GAME) for _ in range(ranks)]), settings)
        made.append(group.generate(repeat(next(iter(data.train)), 2), 1, validate=False))
    for other in made[1:]:
        for name in ("response_BT", "mask_BT", "context_BT", "ids_BS"):
            assert torch.equal(getattr(other, name), getattr(made[0], name)), name
        torch.testing.assert_close(other.logp_BT, made[0].logp_BT, atol=1e-5, rtol=1e-5)
        assert [plain(each) for each in other.episodes or ()] == [plain(each) for each in made[0].episodes or ()]
    # two samples of a game see the same beginning, and go on differently
    assert made[0].prompts.ids_BP[0].tolist() == made[0].prompts.ids_BP[1].tolist()
    assert made[0].response_BT[0].tolist() != made[0].response_BT[1].tolist()


def plain(episode: Any) -> Any:
    """Without what a clock says."""
    turns = tuple(dataclasses.replace(turn, seconds=0.0) for turn in episode.turns)
    return dataclasses.replace(episode, seconds=0.0, turns=turns)


def test_tasks_come_from_the_runs_seed(play: Callable[..., list[str]]) -> None:
    data = read_data(config.load(play()).config)
    batch = next(iter(data.train))
    assert batch.ids_BP.shape == (4, 0)  # what is asked, the environment says
    assert [row.extra_info["seed"] for row in batch.rows] == [seed_of(1, TRAIN, row.index) for row in batch.rows]
    assert batch.rows[0].label == f"row {batch.rows[0].index} of game.py:Game"
    assert data.validation is not None and len(next(iter(data.validation))) == 5
    seeds = {(split, seed): seed_of(seed, split, 0) for split in (TRAIN, VALIDATION) for seed in (1, 2)}
    assert len(set(seeds.values())) == 4
