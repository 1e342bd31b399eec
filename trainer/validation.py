"""Validation: responses to all of its prompts, scored, and what is reported of them by data source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trainer.agent import keep
from trainer.config.schema import Config
from trainer.data.reading import Data
from trainer.group import WorkerGroup
from trainer.records import Metrics, Rollout, Scores
from trainer.rows import repeat
from trainer.samples import dump


def validate(workers: WorkerGroup, data: Data, config: Config, step: int) -> Metrics:
    """Mean scores over the validation set, by data source."""
    rollouts: list[Rollout] = []
    scores: list[Scores] = []
    assert data.validation is not None
    told: list[Metrics] = []  # of conversations
    for prompts in data.validation:
        asked = repeat(prompts, config.actor_rollout_ref.rollout.val_kwargs.n)
        played = workers.generate(asked, 0, validate=True)
        rollouts.append(keep.whole(played, config, validate=True))
        scores.append(plain(workers.score(rollouts[-1]), config))
        told.append(keep.metrics(played, rollouts[-1]))
    samples = list(zip(rollouts, scores, strict=True))
    dump(config.trainer.validation_data_dir, step, samples, data.decode, environment=data.environment)
    return validation_metrics(rollouts, scores) | keep.of_validation(rollouts, told)


def plain(scores: Scores, config: Config) -> Scores:
    """As Search-R1 validates: rewards for form are for training, and what counts is a right answer, `em`.

    Of an environment that scores, or a reward function of the user's, `em` is another number.
    """
    right_B = scores.extras.get("em")
    theirs = config.custom_reward_function.path is not None or config.environment_scores
    if right_B is None or theirs:
        return scores
    return replace(scores, score_B=torch.where(right_B.isnan(), scores.score_B, right_B))


def validation_metrics(rollouts: Sequence[Rollout], scores: Sequence[Scores]) -> Metrics:
    """Mean score per data source: `val-core/{source}/reward/mean@{n}`, and `val/test_score/{source}` as older verl."""
    sources: dict[str, list[float]] = {}
    samples = 1
    for rollout, score in zip(rollouts, scores, strict=True):
        samples = max(samples, int(rollout.prompts.sample_B.max()) + 1)
        for row, value in zip(rollout.prompts.rows, score.score_B.tolist(), strict=True):
            sources.setdefault(row.data_source, []).append(value)
    metrics: Metrics = {}
    for source, values in sources.items():
        mean = sum(values) / len(values)
        metrics[f"val-core/{source}/reward/mean@{samples}"] = mean
        metrics[f"val/test_score/{source}"] = mean
    return metrics
