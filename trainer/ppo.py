"""PPO for language models, read top to bottom: formulas, advantages, losses, the update, the step.

Everything here is plain torch on `[B, T]` tensors; who computes a forward pass, and where, stands behind the
Protocols of `interfaces.py`. `docs/ppo.md` lists each detail with its source.

Legend for names: B sequences, T response columns; `mask` is 1 on response tokens (EOS included) and 0 on padding;
`logp` are natural log-probs of the sampled tokens; `old` is the actor before this step's updates, `ref` the frozen
reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer import finite, scan, shaping, views
from trainer import metrics as report
from trainer.agent import by_turn, keep
from trainer.asked import Asked
from trainer.averages import group_mean_std, masked_whiten, wide, within
from trainer.config.schema import (
    ActorConfig,
    AlgorithmConfig,
    Config,
    CriticConfig,
    KlCtrlConfig,
    RolloutCorrectionConfig,
)
from trainer.interfaces import Clock, Critic, Loss, Policy, Told, Trainable, Workers
from trainer.records import Experience, Metrics, MiniBatch, Prompts, Sample, Scores, Totals, TrainBatch, UpdateReport
from trainer.reports import noted, read
from trainer.rows import repeat, take, to_device

LOG_RATIO_LIMIT = 20.0  # exp(20) = 5e8: beyond it a ratio says nothing and overflows half precision

# ------------------------------------------------------------------------------------------------ loss aggregation


def totals_of(mask: Tensor, horizon: float | None = None) -> Totals:
    """The normalisers of a batch; `horizon` defaults to T."""
    tokens_B = mask.sum(-1)
    return Totals(float(tokens_B.sum()), float((tokens_B > 0).sum()), float(horizon or mask.shape[-1]))


def aggregate(loss: Tensor, mask: Tensor, mode: str, totals: Totals | None = None) -> Tensor:
    """One number from a loss per token.

    With the `totals` of a larger batch, the results of its parts add up to that of the whole: this is what makes a
    step independent of the micro-batch size and of the number of ranks. Modes as in verl's `agg_loss`.
    """
    totals = totals or totals_of(mask)
    loss = within(wide(loss), mask)
    if mode == "token-mean":
        return loss.sum() / totals.tokens
    if mode == "token-sum":
        return loss.sum()
    if mode == "seq-mean-token-mean":
        return (loss.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / totals.sequences
    if mode == "seq-mean-token-sum":
        return loss.sum() / totals.sequences
    if mode == "seq-mean-token-sum-norm":
        return loss.sum() / totals.sequences / totals.horizon
    raise ValueError(f"unknown loss_agg_mode {mode!r}")


# ------------------------------------------------------------------------------------------------------------- KL


def kl_penalty(logp: Tensor, ref_logp: Tensor, kind: str) -> Tensor:
    """Estimate of KL(actor || reference) per token, from the sampled token alone.

    k1 ("kl"), k2 ("mse"), k3 ("low_var_kl") of Schulman, "Approximating KL divergence" (2020), and "abs". A trailing
    "+" keeps the value and takes the gradient of k2, whose expectation is the gradient of the KL.
    """
    if kind.endswith("+"):
        value, slope = kl_penalty(logp, ref_logp, kind[:-1]).detach(), kl_penalty(logp, ref_logp, "k2")
        return value + slope - slope.detach()
    difference = wide(logp) - wide(ref_logp)
    if kind in ("kl", "k1"):
        return difference
    if kind == "abs":
        return difference.abs()
    if kind in ("mse", "k2"):
        return 0.5 * difference.square()
    if kind in ("low_var_kl", "k3"):
        inverse = (-difference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return (inverse.exp() - inverse - 1).clamp(-10.0, 10.0)
    raise ValueError(f"unknown KL estimator {kind!r}")


def next_kl_coef(coef: float, kl: float, samples: int, control: KlCtrlConfig) -> float:
    """The next KL coefficient: constant, or steered to `target_kl` (Ziegler et al. 2019, section 2.2)."""
    if control.type == "fixed":
        return coef
    error = min(max(kl / control.target_kl - 1.0, -0.2), 0.2)
    return coef * (1.0 + error * samples / control.horizon)


# ----------------------------------------------------------------------------------------------------- advantages


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, masked: bool = True
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2015, eq. 16) -> (advantages, returns), [B, T], not whitened.

    `masked` skips the tokens outside the mask: they pass on the next token's value and advantage. Without it every
    column counts, as verl did until July 2025; the two differ only where masked tokens stand between or after others.
    """
    real_BT = mask.bool() if masked else torch.ones_like(values, dtype=torch.bool)
    if values.shape[1] >= scan.LONG and scan.has_no_gaps(real_BT):
        long_BT = scan.gae(wide(rewards), wide(values), real_BT, gamma, lam)
        return long_BT.to(values.dtype), (long_BT + wide(values)).to(values.dtype)
    # Time first: each step of the recursion reads one line.
    rewards_TB, values_TB = wide(rewards).T.contiguous(), wide(values).T.contiguous()
    real_TB = real_BT.T
    advantages_TB = torch.empty_like(values_TB)
    next_value, advantage = torch.zeros_like(values_TB[0]), torch.zeros_like(values_TB[0])
    for t in reversed(range(len(values_TB))):
        delta = rewards_TB[t] + gamma * next_value - values_TB[t]
        advantage = torch.where(real_TB[t], delta + gamma * lam * advantage, advantage)
        next_value = torch.where(real_TB[t], values_TB[t], next_value)
        advantages_TB[t] = advantage
    advantages, returns = advantages_TB.T.contiguous(), (advantages_TB + values_TB).T.contiguous()
    return advantages.to(values.dtype), returns.to(values.dtype)


def grpo(score_B: Tensor, uid_B: Tensor, scale_by_std: bool = True) -> Tensor:
    """Score less its group's mean, over its deviation (Shao et al. 2024); without the latter, Dr. GRPO. [B]"""
    mean_B, std_B, _ = group_mean_std(score_B, uid_B)
    return (score_B - mean_B) / (std_B + 1e-6) if scale_by_std else score_B - mean_B


def rloo(score_B: Tensor, uid_B: Tensor) -> Tensor:
    """Score less the mean of the *other* samples of its group (Ahmadian et al. 2024). [B]"""
    mean_B, _, size_B = group_mean_std(score_B, uid_B)
    return torch.where(size_B > 1, (score_B - mean_B) * size_B / (size_B - 1).clamp(min=1), score_B)


def reinforce(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Discounted return of each token (Williams 1992), [B, T].

    Tokens outside the mask are passed over: a reward reaches the tokens before them.
    """
    returns = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        running = torch.where(mask[:, t].bool(), rewards[:, t] + gamma * running, running)
        returns[:, t] = within(running, mask[:, t])
    return returns


def reinforce_plus_plus(rewards: Tensor, mask: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Returns of `reinforce` (Hu 2025) -> (whitened over the batch, as they are), [B, T]."""
    returns = reinforce(rewards, mask, gamma)
    return within(masked_whiten(returns, mask), mask), returns


def estimate(experience: Experience, rewards_BT: Tensor, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Advantages and returns [B, T] of `algorithm.adv_estimator`; GAE's advantages are whitened over the batch."""
    mask, uid_B = experience.rollout.mask_BT, experience.rollout.prompts.uid_B
    if config.adv_estimator == "gae":
        assert experience.values_BT is not None
        advantages, returns = gae(
            rewards_BT, experience.values_BT, mask, config.gamma, config.lam, masked=config.masked_gae
        )
        if config.whiten_advantages is False:
            return advantages, returns
        return masked_whiten(advantages, mask), returns
    if config.adv_estimator == "reinforce_plus_plus":
        return reinforce_plus_plus(rewards_BT, mask, config.gamma)
    if config.adv_estimator == "reinforce":
        return (returns := reinforce(rewards_BT, mask, config.gamma)), returns
    score_B = rewards_BT.sum(-1)
    if config.adv_estimator == "grpo":
        advantage_B = grpo(score_B, uid_B, config.norm_adv_by_std_in_grpo)
    elif config.adv_estimator == "rloo":
        advantage_B = rloo(score_B, uid_B)
    else:
        return (returns := by_turn.returns_of(experience.rollout, rewards_BT, config)), returns
    advantages = advantage_B[:, None] * mask
    return advantages, advantages


def importance_weights(
    old_logp: Tensor, rollout_logp: Tensor, mask: Tensor, config: RolloutCorrectionConfig
) -> Tensor | None:
    """Truncated importance sampling: min(pi_old / pi_engine, cap) of each token or response -> [B, T], no gradient.

    The engine samples from a policy that is not quite the trainer's; the weights make up for it (Yao et al. 2025, "Your
    efficient RL framework secretly brings you off-policy RL training"). None where `rollout_is` is off.
    """
    if config.rollout_is is None:
        return None
    log_ratio = within(wide(old_logp) - wide(rollout_logp), mask)
    if config.rollout_is == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    weights = within(ratio.clamp(max=config.rollout_is_threshold), mask).detach()
    if config.rollout_is_batch_normalize:
        weights = weights / aggregate(
            weights, mask, "token-mean" if config.rollout_is == "token" else "seq-mean-token-mean"
        )
    return weights


# --------------------------------------------------------------------------------------------------------- losses


def policy_loss(
    old_logp: Tensor,
    logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    mode: str,
    totals: Totals | None = None,
    weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7), with a floor for bad actions (Ye et al. 2020, eq. 5).

    `dual_clip` is that floor's factor, None for none; `weights` [B, T] multiply each token's loss. The metrics
    `clip_fraction`, `approx_kl` and `dual_clip_fraction` are token means; with `totals` they add up as the loss does.
    """
    old_logp, logp, advantages = wide(old_logp), wide(logp), wide(advantages)
    log_ratio = (logp - old_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, clipped)
    floored = torch.zeros_like(mask, dtype=torch.bool)
    if dual_clip is not None:
        floor = -advantages * dual_clip
        floored = (advantages < 0) & (loss > floor)
        loss = torch.where(floored, floor, loss)
    if weights is not None:
        loss = loss * weights

    def token_mean(x: Tensor) -> Tensor:
        return aggregate(x.detach().to(logp.dtype), mask, "token-mean", totals)

    metrics = {
        "clip_fraction": token_mean(clipped > plain),
        "approx_kl": token_mean(-log_ratio),
        "dual_clip_fraction": token_mean(floored),
    }
    return aggregate(loss, mask, mode, totals), metrics


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip: float,
    mode: str,
    totals: Totals | None = None,
) -> tuple[Tensor, Tensor]:
    """Half the squared error of the values, clipped around the old ones -> (loss, clip_fraction)."""
    values, old_values, returns = wide(values), wide(old_values), wide(returns)
    clipped = values.clamp(old_values - clip, old_values + clip)  # to the bit the value itself where nothing is clipped
    error, clipped_error = (values - returns) ** 2, (clipped - returns) ** 2
    loss = 0.5 * aggregate(torch.maximum(error, clipped_error), mask, mode, totals)
    clip_fraction = aggregate((clipped_error > error).to(values.dtype), mask, "token-mean", totals)
    return loss, clip_fraction


def actor_loss(policy: Policy, batch: TrainBatch, totals: Totals, config: ActorConfig) -> tuple[Tensor, Told]:
    """The actor's loss on one micro-batch: surrogate - entropy bonus + KL loss, and what to report of it."""
    seen = batch.experience
    mask, mode = seen.rollout.mask_BT, config.loss_agg_mode
    new = policy.log_probs(seen.rollout, entropy=config.entropy_coeff != 0)
    loss, parts = policy_loss(
        seen.old_logp_BT,
        new.logp_BT,
        batch.advantages_BT,
        mask,
        config.clip_ratio_low,
        config.clip_ratio_high,
        config.clip_ratio_c,
        mode,
        totals,
        batch.weights_BT,
    )
    figures = {
        "actor/pg_loss": loss.detach(),
        "actor/pg_clipfrac": parts["clip_fraction"],
        "actor/pg_clipfrac_lower": parts["dual_clip_fraction"],
        "actor/ppo_kl": parts["approx_kl"],
    }
    if config.entropy_coeff != 0:
        loss = loss - config.entropy_coeff * aggregate(new.entropy_BT, mask, mode, totals)
    if config.use_kl_loss:
        assert seen.ref_logp_BT is not None
        kl = aggregate(kl_penalty(new.logp_BT, seen.ref_logp_BT, config.kl_loss_type), mask, mode, totals)
        loss = loss + config.kl_loss_coef * kl
        figures["actor/kl_loss"] = kl.detach()
    parts = {"log_prob": new.logp_BT, "entropy": new.entropy_BT, "advantages": batch.advantages_BT}
    return loss, Told(figures, finite.of_loss("the actor's loss", loss, seen.rollout, parts))


def critic_loss(critic: Critic, batch: TrainBatch, totals: Totals, config: CriticConfig) -> tuple[Tensor, Told]:
    """The critic's loss on one micro-batch, and what to report of it."""
    old_values, mask = batch.experience.values_BT, batch.experience.rollout.mask_BT
    assert old_values is not None
    values = critic.values(batch.experience.rollout)
    loss, clip_fraction = value_loss(
        values, old_values, batch.returns_BT, mask, config.cliprange_value, config.loss_agg_mode, totals
    )
    figures = {
        "critic/vf_loss": loss.detach(),
        "critic/vf_clipfrac": clip_fraction.detach(),
        "critic/vpred_mean": aggregate(values.detach(), mask, "token-mean", totals),
    }
    parts = {"vpred": values, "returns": batch.returns_BT}
    return loss, Told(figures, finite.of_loss("critic/vf_loss", loss, batch.experience.rollout, parts))


# ------------------------------------------------------------------------------------------------------ the update


def mini_batches(batch: TrainBatch, size: int, epochs: int, shuffle_seed: int | None) -> Iterator[Tensor]:
    """Row numbers of each optimizer step, `epochs` times over the batch; shuffled anew each time if a seed is given."""
    generator = torch.Generator().manual_seed(shuffle_seed or 0)
    for _ in range(epochs):
        order = torch.arange(len(batch)) if shuffle_seed is None else torch.randperm(len(batch), generator=generator)
        yield from order.split(size)


def update(model: Trainable, shares: Sequence[MiniBatch], loss: Loss) -> UpdateReport:
    """One optimizer step per mini-batch, its gradient summed over the micro-batches of its `passes`.

    Runs on every rank with that rank's share. The losses are normalised by the whole mini-batch, so gradients add up
    over micro-batches and ranks alike. A step whose gradient is not finite is left out and counted. What the passes
    tell is read after the step, so that nothing waits between them; NotFinite is raised then.
    """
    steps, skipped, trained = [], 0, set[str]()
    samples: list[tuple[tuple[Sample, ...]]] = []  # of each step; this rank knows of one copy of the model
    for share in shares:
        seen: list[Sample] = []
        passes = (to_device(take(share.batch, index), model.device) for index in share.passes)
        told = list(model.accumulate(passes, share.totals, noted(loss, seen)))
        outcome = model.optimizer_step()
        skipped += not outcome.finite
        trained |= outcome.with_gradient
        steps.append(read(told) | {"grad_norm": outcome.grad_norm})
        samples.append((tuple(seen),))
    lr, untrained = model.advance_schedule(), tuple(sorted(model.parameter_names - trained))
    return UpdateReport(tuple(steps), untrained, lr, skipped, outcome.loss_scale, tuple(samples))


# -------------------------------------------------------------------------------------------------------- the step


@dataclass(frozen=True)
class Progress:
    """What a run carries from step to step, beside weights and data position."""

    step: int = 0  # steps done
    kl_coef: float = 0.0


@dataclass(frozen=True)
class StepResult:
    """All that one step saw and did."""

    progress: Progress  # after it
    batch: TrainBatch
    actor: UpdateReport | None  # None during critic warm-up
    critic: UpdateReport | None
    scores: Scores
    metrics: Metrics
    kept: keep.Kept | None = None  # of conversations


def penalised_rewards(experience: Experience, kl_coef: float, config: AlgorithmConfig) -> tuple[Tensor, float]:
    """Scores less `kl_coef` times the KL to the reference, per token -> (rewards [B, T], mean KL of a sequence)."""
    if not config.use_kl_in_reward:
        return experience.scores_BT, 0.0
    assert experience.ref_logp_BT is not None
    mask = experience.rollout.mask_BT
    kl_BT = within(kl_penalty(experience.old_logp_BT, experience.ref_logp_BT, config.kl_penalty), mask)
    mean_kl = (kl_BT.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    return experience.scores_BT - kl_coef * kl_BT, float(mean_kl)


def train_batch(experience: Experience, kl_coef: float, config: Config) -> tuple[TrainBatch, float]:
    """Rewards, advantages and importance weights of what was seen -> (batch, mean KL of a sequence)."""
    seen, algorithm = experience.rollout, config.algorithm
    rewards_BT, mean_kl = penalised_rewards(shaping.shaped(experience, algorithm), kl_coef, algorithm)
    estimated = views.of_estimator(experience, config)
    advantages_BT, returns_BT = estimate(estimated, rewards_BT, algorithm)
    advantages_BT = shaping.finished(advantages_BT, estimated.rollout.mask_BT, algorithm)
    weights_BT = importance_weights(experience.old_logp_BT, seen.logp_BT, seen.mask_BT, algorithm.rollout_correction)
    return TrainBatch(experience, rewards_BT, advantages_BT, returns_BT, weights_BT), mean_kl


def step(workers: Workers, prompts: Prompts, progress: Progress, config: Config, clock: Clock) -> StepResult:
    """One PPO step on a batch of prompts: ARCHITECTURE's data flow, phase after phase."""
    algorithm = config.algorithm
    number = progress.step + 1
    with clock("gen"):
        played = workers.generate(repeat(prompts, config.actor_rollout_ref.rollout.n), number, validate=False)
        kept = keep.kept(played, config)
        rollout = kept.rows
    with clock("reward"):
        scores = workers.score(rollout)
    actors, critics = views.of_actor(rollout, config), views.of_critic(rollout, config)
    asked: dict[str, Asked[Any]] = {"old_log_prob": workers.log_probs(actors)}
    if config.uses_reference:
        asked["ref"] = workers.ref_log_probs(actors)
    if config.uses_critic:
        asked["values"] = workers.values(critics)
    seen = workers.together(asked, clock)
    with clock("adv"):
        old, scores_BT = seen["old_log_prob"], shaping.place_scores(scores, rollout.mask_BT)
        experience = Experience(rollout, scores_BT, old.logp_BT, seen.get("ref"), seen.get("values"))
        batch, mean_kl = train_batch(experience, progress.kl_coef, config)
        finite.require_batch(batch)
    updates: dict[str, Asked[UpdateReport]] = {}
    if config.uses_critic:
        updates["update_critic"] = workers.update_critic(views.seen_as(critics, batch), number)
    if number >= config.trainer.critic_warmup:  # verl's condition: a warm-up of N leaves out N - 1 updates
        updates["update_actor"] = workers.update_actor(views.seen_as(actors, batch), number)
    reports = workers.together(updates, clock)
    actor_report, critic_report = reports.get("update_actor"), reports.get("update_critic")
    if actor_report is not None:
        with clock("update_weights"):
            workers.sync_weights()
    with clock("metrics"):
        metrics = report.step_metrics(batch, old, scores, actor_report, critic_report, config)
        metrics |= keep.metrics(played, kept.whole)
    if algorithm.use_kl_in_reward:
        metrics |= {"actor/reward_kl_penalty": mean_kl, "actor/reward_kl_penalty_coeff": progress.kl_coef}
    kl_coef = next_kl_coef(progress.kl_coef, mean_kl, len(batch), algorithm.kl_ctrl)
    progress = dataclasses.replace(progress, step=number, kl_coef=kl_coef)
    return StepResult(progress, batch, actor_report, critic_report, scores, metrics, kept)
