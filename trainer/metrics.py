"""What a step reports, under verl's metric names, so that dashboards that people have keep working."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainer import drift
from trainer.balance import balance_metrics
from trainer.config.schema import Config
from trainer.records import LogProbs, Metrics, Rollout, Scores, TrainBatch, UpdateReport
from trainer.teams import ranks_of


def summary(name: str, x: Tensor) -> Metrics:
    """`name/mean`, `name/max` and `name/min` of a tensor."""
    x = x.float()
    return {f"{name}/mean": float(x.mean()), f"{name}/max": float(x.max()), f"{name}/min": float(x.min())}


def step_metrics(
    batch: TrainBatch,
    old: LogProbs,
    scores: Scores,
    actor: UpdateReport | None,
    critic: UpdateReport | None,
    config: Config,
) -> Metrics:
    """Everything that one step has to say, timings aside."""
    rollout = batch.experience.rollout
    # A reward function may give a number for some responses only; the others are NaN. Of two of one name, ours stands.
    extras = {name: values[~values.isnan()] for name, values in scores.extras.items()}
    metrics = {f"critic/{name}/mean": float(values.mean()) for name, values in extras.items() if len(values)}
    metrics |= data_metrics(batch, config)
    metrics |= drift.agreement(rollout, old.logp_BT)
    metrics |= drift.importance_metrics(batch, config.algorithm.rollout_correction)
    valid = rollout.mask_BT.bool()
    metrics["actor/entropy"] = float(old.entropy_BT[valid].mean())
    if actor is not None:
        metrics |= update_metrics("actor", actor)
        if config.actor_rollout_ref.actor.use_kl_loss:
            metrics["actor/kl_coef"] = config.actor_rollout_ref.actor.kl_loss_coef
    if critic is not None:
        metrics |= update_metrics("critic", critic)
    return metrics


def data_metrics(batch: TrainBatch, config: Config) -> Metrics:
    """Scores, rewards, advantages, returns, values and lengths of a batch."""
    seen = batch.experience
    rollout = seen.rollout
    valid = rollout.mask_BT.bool()
    metrics = summary("critic/score", seen.scores_BT.sum(-1))
    metrics |= summary("critic/rewards", batch.rewards_BT.sum(-1))
    metrics |= summary("critic/advantages", batch.advantages_BT[valid])
    metrics |= summary("critic/returns", batch.returns_BT[valid])
    if seen.values_BT is not None:
        values, returns = seen.values_BT[valid], batch.returns_BT[valid]
        metrics |= summary("critic/values", values)
        unexplained = torch.var(returns - values) / (torch.var(returns) + 1e-5)
        metrics["critic/vf_explained_var"] = float(1 - unexplained)
    lengths, prompt_lengths = rollout.context_BT.sum(-1), rollout.prompts.mask_BP.sum(-1)
    metrics |= summary("response_length", lengths)
    metrics["response_length/clip_ratio"] = float((lengths == config.data.max_response_length).float().mean())
    metrics |= summary("prompt_length", prompt_lengths)
    metrics["prompt_length/clip_ratio"] = float((prompt_lengths == config.data.max_prompt_length).float().mean())
    metrics["perf/total_num_tokens"] = float(lengths.sum() + prompt_lengths.sum())
    return metrics | balance_metrics(rollout.lengths_B.tolist(), len(ranks_of(config, "actor")))


def update_metrics(role: str, update: UpdateReport) -> Metrics:
    """Means over the optimizer steps of one update."""
    metrics = {
        name if "/" in name else f"{role}/{name}": sum(step[name] for step in update.steps) / len(update.steps)
        for name in update.steps[0]
    }
    if update.loss_scale is not None:
        metrics[f"{role}/loss_scale"] = update.loss_scale
    return metrics | {f"{role}/lr": update.lr, f"{role}/skipped_steps": float(update.skipped)}


def timing_metrics(seconds: Mapping[str, float], rollout: Rollout, world_size: int) -> Metrics:
    """`timing_s/*`, `timing_per_token_ms/*` and throughput, from the seconds of each phase."""
    response_tokens = float(rollout.mask_BT.sum())
    tokens = float(rollout.lengths_B.sum())
    metrics = {f"timing_s/{name}": value for name, value in seconds.items()}
    for name in ("gen", "ref", "values", "adv", "update_critic", "update_actor"):
        if name in seconds:
            share = response_tokens if name == "gen" else tokens
            metrics[f"timing_per_token_ms/{name}"] = seconds[name] * 1000 / share
    if "step" in seconds:
        metrics["perf/time_per_step"] = seconds["step"]
        metrics["perf/throughput"] = tokens / (seconds["step"] * world_size)
    return metrics
