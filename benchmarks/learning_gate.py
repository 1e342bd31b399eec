"""How far the learning gate's reward rises when the trainer learns, and how far when it can't: where the margin lies.

    python benchmarks/learning_gate.py [--seeds 24] [--estimators gae grpo rloo reinforce_plus_plus]

Each seed is one run of the gate in one process: its own model, problems and draws. The rival is the same run with
the scores shuffled among the responses, which learns from noise. Exit code 1 if a seed that learns stays below the
margin, or one that can't reaches it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from devkit.smoke import gate
from devkit.smoke.problems import word_problems, write_parquet
from devkit.smoke.shrink import make_plan, replaced
from devkit.smoke.tiny import TinySpec, build
from trainer import ppo
from trainer.config import load
from trainer.data.reading import read_data, total_steps
from trainer.group import WorkerGroup
from trainer.local import LocalPool
from trainer.records import Scores
from trainer.run import Observer, train
from trainer.tracking import Tracker

SAMPLES = {"gae": 1, "reinforce_plus_plus": 1, "grpo": 4, "rloo": 4}


class Rise(Observer):
    """Collects the mean reward of each step."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def stepped(self, workers: WorkerGroup, result: ppo.StepResult) -> None:
        self.rewards.append(float(result.metrics["critic/score/mean"]))

    @property
    def value(self) -> float:
        ends = self.rewards[: gate.WINDOW], self.rewards[-gate.WINDOW :]
        return statistics.mean(ends[1]) - statistics.mean(ends[0])


class ShuffledScores(LocalPool):
    """Gives each response the score of another one: the same rewards, and nothing to learn from them."""

    def all(self, phase: str, args: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        answers = super().all(phase, args)
        if phase == "score":
            score_B = answers[0].score_B
            order = torch.randperm(len(score_B), generator=torch.Generator().manual_seed(len(answers)))
            answers[0] = Scores(score_B[order], {})
        return answers


def rise(estimator: str, seed: int, pool: LocalPool) -> float:
    """One run of the gate; how far its reward rose."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train_file, _ = write_parquet(folder, 128, seed)
        texts = tuple(record["question"] for record in word_problems(128, 2 * seed))
        build(TinySpec(str(folder / "model"), None, texts, seed, 512))
        given = (f"algorithm.adv_estimator={estimator}", f"actor_rollout_ref.rollout.n={SAMPLES[estimator]}")
        plan = make_plan(given, None)
        settings = gate.settings(plan.full, load(plan.overrides).config, train_file, folder) | {
            "actor_rollout_ref.model.path": str(folder / "model"),
            "critic.model.path": str(folder / "model"),
            "trainer.seed": seed,
            "trainer.nnodes": 1,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 16,
            "critic.ppo_micro_batch_size_per_gpu": 16,
        }
        config = load(replaced(plan.overrides, settings)).config
        data, observer = read_data(config), Rise()
        assert total_steps(config, data.train) == gate.STEPS
        train(config, pool, data, Tracker(()), observer)
        return observer.value


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--estimators", nargs="+", default=list(SAMPLES), choices=list(SAMPLES))
    options = parser.parse_args(argv)
    print(f"{gate.STEPS} steps, mean of {gate.WINDOW} at each end, margin {gate.MARGIN}, {options.seeds} seeds each")
    print(f"{'estimator':<22}{'learning: lowest':>18}{'median':>9}{'shuffled: median':>19}{'highest':>9}")
    fine = True
    for estimator in options.estimators:
        rises = {}
        for kind, pool_type in (("learning", LocalPool), ("shuffled", ShuffledScores)):
            pool = pool_type()
            rises[kind] = [rise(estimator, seed, pool) for seed in range(options.seeds)]
            pool.close()
        low, high = min(rises["learning"]), max(rises["shuffled"])
        fine &= low >= gate.MARGIN > high
        middle = {kind: statistics.median(values) for kind, values in rises.items()}
        row = f"{low:>18.3f}{middle['learning']:>9.3f}{middle['shuffled']:>19.3f}{high:>9.3f}"
        print(f"{estimator:<22}{row}", flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
