"""A step's numbers computed once more, in float64 and one row after the other: nothing here is the trainer's code.

What `trainer/ppo.py` writes with tensors stands here in plain loops over the tokens of a response, from the papers'
formulas, so that a mistake there is not made twice. Only tokens inside the response mask are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from devkit.smoke import recompute_turns
from devkit.smoke.recompute_turns import discounted, shaped
from trainer.config.schema import AlgorithmConfig, RolloutCorrectionConfig
from trainer.records import Experience, TrainBatch

Rows = list[list[float]]  # a number for each token of each response

ROUNDING = 2.0**-20  # relative: some sums of fp32 terms; what is shifted and scaled carries it from its largest term


@dataclass(frozen=True)
class Advantages:
    """What the estimator should have given; `slack`: how far fp32 may be off, by row."""

    advantages: Rows
    returns: Rows
    slack: list[float]
    scale: float = 1.0  # that whitening multiplied by
    estimator: str = ""


def rewards(seen: Experience, kl_coef: float, config: AlgorithmConfig) -> Rows:
    """Scores, as the estimator takes them, less the KL penalty of each token."""
    scores = shaped(tokens_of(seen.scores_BT, seen), seen, config).rows
    if not config.use_kl_in_reward or seen.ref_logp_BT is None:
        return scores
    pairs = zip(scores, tokens_of(seen.old_logp_BT, seen), tokens_of(seen.ref_logp_BT, seen), strict=True)
    return [
        [score - kl_coef * kl(new - ref, config.kl_penalty) for score, new, ref in zip(*row, strict=True)]
        for row in pairs
    ]


def kl(d: float, kind: str) -> float:
    """Schulman, "Approximating KL divergence" (2020); `d` = log p(actor) - log p(reference) of the token.

    With "+", its gradient alone is another one.
    """
    kind = kind.removesuffix("+")
    if kind in ("kl", "k1"):
        return d
    if kind == "abs":
        return abs(d)
    if kind in ("mse", "k2"):
        return d * d / 2
    return min(max(math.expm1(min(-d, 20.0)) + d, -10.0), 10.0)


def kl_slope(d: float, kind: str) -> float:
    """Of that by `d`, as a loss has it."""
    if kind.endswith("+") or kind in ("mse", "k2"):
        return d
    if kind in ("kl", "k1"):
        return 1.0
    if kind == "abs":
        return math.copysign(1.0, d) if d else 0.0
    return 1 - math.exp(-d) if kl(d, kind) < 10 else 0.0


def next_kl_coef(coef: float, seen: Experience, config: AlgorithmConfig) -> float:
    """Of the step after this one: the same, or steered to a KL per token (Ziegler et al. 2019, section 2.2)."""
    control = config.kl_ctrl
    if control.type == "fixed" or not config.use_kl_in_reward or seen.ref_logp_BT is None:
        return control.kl_coef if control.type == "fixed" else coef
    pairs = zip(tokens_of(seen.old_logp_BT, seen), tokens_of(seen.ref_logp_BT, seen), strict=True)
    means = [
        math.fsum(kl(new - ref, config.kl_penalty) for new, ref in zip(*row, strict=True)) / len(row[0])
        for row in pairs
    ]
    error = math.fsum(means) / len(means) / control.target_kl - 1
    return coef * (1 + max(-0.2, min(0.2, error)) * len(means) / control.horizon)


def importance_weights(seen: Experience, config: RolloutCorrectionConfig) -> Rows | None:
    """min(p(trainer) / p(engine), threshold) of each token, or of its response (Yao et al. 2025); None: off."""
    if config.rollout_is is None:
        return None
    pairs = zip(tokens_of(seen.old_logp_BT, seen), tokens_of(seen.rollout.logp_BT, seen), strict=True)
    logs = [[old - engine for old, engine in zip(*row, strict=True)] for row in pairs]
    if config.rollout_is == "sequence":
        logs = [[math.fsum(row)] * len(row) for row in logs]
    weights = [[min(math.exp(max(-20.0, min(20.0, x))), config.rollout_is_threshold) for x in row] for row in logs]
    if config.rollout_is_batch_normalize:
        mode = "token-mean" if config.rollout_is == "token" else "seq-mean-token-mean"
        mean = aggregated(weights, mode, 1.0)
        weights = [[x / mean for x in row] for row in weights]
    return weights


def aggregated(rows: Rows, mode: str, horizon: float) -> float:
    """A number for each token of each response -> one, as `loss_agg_mode` says."""
    sums = [math.fsum(row) for row in rows]
    if mode in ("token-mean", "token-sum"):
        return math.fsum(sums) / (sum(map(len, rows)) if mode == "token-mean" else 1)
    if mode == "seq-mean-token-mean":
        sums = [total / len(row) for total, row in zip(sums, rows, strict=True)]
    return math.fsum(sums) / len(rows) / (horizon if mode == "seq-mean-token-sum-norm" else 1)


def advantages(batch: TrainBatch, kl_coef: float, config: AlgorithmConfig) -> Advantages | None:
    """Of the estimators that are known here; None for another one."""
    found = _estimated(batch, kl_coef, config)
    return (
        None if found is None else replace(_finished(found, batch.experience, config), estimator=config.adv_estimator)
    )


def _finished(found: Advantages, seen: Experience, config: AlgorithmConfig) -> Advantages:
    """Whitened, if it is asked for and not done yet, and clipped."""
    size = shaped(tokens_of(seen.scores_BT, seen), seen, config).size
    slack = [x + ROUNDING * size for x in found.slack]
    if config.whiten_advantages and config.adv_estimator not in ("gae", "reinforce_plus_plus"):
        white = _whitened(found.advantages, found.returns)
        most = max(slack) * white.scale
        found, slack = replace(found, advantages=white.advantages), [x + most for x in white.slack]
    limit = config.advantage_clip
    if limit is not None:
        found = replace(found, advantages=[[max(-limit, min(limit, x)) for x in row] for row in found.advantages])
    return replace(found, slack=slack)


def _estimated(batch: TrainBatch, kl_coef: float, config: AlgorithmConfig) -> Advantages | None:
    seen = batch.experience
    rewarded = rewards(seen, kl_coef, config)
    if config.adv_estimator == "gae" and seen.values_BT is not None:
        return _gae(rewarded, tokens_of(seen.values_BT, seen), config)
    if config.adv_estimator in ("reinforce", "reinforce_plus_plus"):
        returns = [discounted(row, config.gamma) for row in rewarded]
        return _plain(returns) if config.adv_estimator == "reinforce" else _whitened(returns, returns)
    if config.adv_estimator in (*recompute_turns.OF_TURNS, "agentic_reinforce") and seen.rollout.episodes is not None:
        return _plain(recompute_turns.returns(rewarded, seen, config))
    groups = seen.rollout.prompts.uid_B.tolist()
    if config.adv_estimator in ("grpo", "rloo"):
        return _by_group(rewarded, groups, config)
    return None


def _gae(rewarded: Rows, values: Rows, config: AlgorithmConfig) -> Advantages:
    """Schulman et al. 2015, eq. 16: the sum over l of (gamma lambda)^l times the TD error l tokens later."""
    raw = []
    for reward, value in zip(rewarded, values, strict=True):
        after = [*value[1:], 0.0]
        errors = [r + config.gamma * v_next - v for r, v, v_next in zip(reward, value, after, strict=True)]
        raw.append(discounted(errors, config.gamma * config.lam))
    returns = [[a + v for a, v in zip(*row, strict=True)] for row in zip(raw, values, strict=True)]
    if config.whiten_advantages is False:
        return replace(_plain(raw), returns=returns)
    return _whitened(raw, returns)


def _plain(returns: Rows) -> Advantages:
    """Of estimators whose advantages are returns."""
    return Advantages(returns, returns, [ROUNDING * _largest([returns])] * len(returns))


def _whitened(raw: Rows, returns: Rows) -> Advantages:
    """Shifted and scaled to mean 0 and variance 1 over all tokens; Bessel's correction, and 1e-8 under the root."""
    tokens = [x for row in raw for x in row]
    mean = math.fsum(tokens) / len(tokens)
    variance = math.fsum((x - mean) ** 2 for x in tokens) / (len(tokens) - 1)
    scale = 1 / math.sqrt(variance + 1e-8)
    slack = ROUNDING * _largest([raw, returns]) * scale
    return Advantages([[(x - mean) * scale for x in row] for row in raw], returns, [slack] * len(raw), scale)


def _by_group(rewarded: Rows, groups: Sequence[int], config: AlgorithmConfig) -> Advantages:
    """One number for all tokens of a response: its score beside those of its prompt's other samples.

    GRPO (Shao et al. 2024), with Dr. GRPO's choice to leave the deviation out; RLOO (Ahmadian et al. 2024).
    """
    totals = [math.fsum(row) for row in rewarded]
    found, slack = [], []
    for row, (total, group) in enumerate(zip(totals, groups, strict=True)):
        others = [each for i, each in enumerate(totals) if groups[i] == group and i != row]
        scale = 1.0
        if not others:
            found.append(total / (1 + 1e-6) if _divides(config) else total)
        elif config.adv_estimator == "rloo":
            found.append(total - math.fsum(others) / len(others))
        else:
            members = [*others, total]
            mean = math.fsum(members) / len(members)
            if _divides(config):
                scale = 1 / (math.sqrt(math.fsum((x - mean) ** 2 for x in members) / len(others)) + 1e-6)
            found.append((total - mean) * scale)
        slack.append(ROUNDING * max(map(abs, [*others, total])) * scale)
    rows = [[advantage] * len(row) for advantage, row in zip(found, rewarded, strict=True)]
    return Advantages(rows, rows, slack)


def _divides(config: AlgorithmConfig) -> bool:
    return config.adv_estimator == "grpo" and config.norm_adv_by_std_in_grpo


def tokens_of(x_BT: Tensor, seen: Experience) -> Rows:
    """Of each response, what stands at its tokens."""
    pairs = zip(x_BT.tolist(), seen.rollout.mask_BT.tolist(), strict=True)
    return [[x for x, real in zip(row, mask, strict=True) if real] for row, mask in pairs]


def _largest(rows: Iterable[Rows]) -> float:
    return max((abs(x) for each in rows for row in each for x in row), default=0.0)
