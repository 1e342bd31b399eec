"""How far the engine's log-probs are from the trainer's: what is logged each step, and when a run must stop.

Both are of the same tokens under the same weights, so only precision and kernels should part them. Names as in verl's
`calculate_debug_metrics` and `compute_offpolicy_metrics`; rho = pi_trainer / pi_engine, log-probs in nats.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from trainer.averages import masked_mean, within
from trainer.config.schema import Config, RolloutCorrectionConfig
from trainer.errors import DriftError
from trainer.records import Metrics, Rollout, TrainBatch

LOG_RATIO_LIMIT = 20.0  # as in `ppo.py`
SHOWN = 3  # sequences that an error names


def agreement(rollout: Rollout, old_logp_BT: Tensor) -> Metrics:
    """The differences over response tokens, as probabilities, as log-probs, and as perplexities of sequences."""
    valid = rollout.mask_BT.bool()
    engine, trainer = rollout.logp_BT[valid].double(), old_logp_BT[valid].double()
    apart, off = (engine - trainer).abs(), (engine.exp() - trainer.exp()).abs()
    metrics = {
        "training/rollout_probs_diff_mean": float(off.mean()),
        "training/rollout_probs_diff_max": float(off.max()),
        "training/rollout_probs_diff_std": float(off.std()) if len(off) > 1 else 0.0,
        "training/rollout_logp_diff_mean": float(apart.mean()),
        "training/rollout_logp_diff_max": float(apart.max()),
    }
    if len(off) > 1 and engine.std() > 0 and trainer.std() > 0:
        alike = torch.corrcoef(torch.stack([engine.exp(), trainer.exp()]))[0, 1]
        metrics["training/rollout_actor_probs_pearson_corr"] = float(alike)
    return metrics | _divergences(trainer - engine) | _perplexities(rollout, old_logp_BT)


def _divergences(log_rho: Tensor) -> Metrics:
    """KL(engine || trainer) by its estimators k1 and k3 (Schulman 2020), and chi squared, over tokens [N]."""
    rho = log_rho.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return {
        "rollout_corr/kl": float(-log_rho.mean()),
        "rollout_corr/k3_kl": float((rho - log_rho - 1).mean()),
        "rollout_corr/chi2_token": float(rho.square().mean() - 1),
    }


def _perplexities(rollout: Rollout, old_logp_BT: Tensor) -> Metrics:
    """Each sequence's perplexity under both, averaged over the sequences that have a token."""
    mask = rollout.mask_BT
    some_B = mask.sum(-1) > 0
    tokens_B = mask.sum(-1)[some_B]
    sums = [within(logp.double(), mask).sum(-1)[some_B] for logp in (old_logp_BT, rollout.logp_BT)]
    trainer_B, engine_B = (-total / tokens_B for total in sums)  # log-perplexities
    more_B = trainer_B - engine_B
    log_rho_B = (sums[0] - sums[1]).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return {
        "rollout_corr/training_ppl": float(trainer_B.exp().mean()),
        "rollout_corr/rollout_ppl": float(engine_B.exp().mean()),
        "rollout_corr/training_log_ppl": float(trainer_B.mean()),
        "rollout_corr/rollout_log_ppl": float(engine_B.mean()),
        "rollout_corr/log_ppl_diff": float(more_B.mean()),
        "rollout_corr/log_ppl_abs_diff": float(more_B.abs().mean()),
        "rollout_corr/log_ppl_diff_max": float(more_B.max()),
        "rollout_corr/log_ppl_diff_min": float(more_B.min()),
        "rollout_corr/ppl_ratio": float(more_B.exp().mean()),
        "rollout_corr/chi2_seq": float((2 * log_rho_B).exp().mean() - 1),
    }


def importance_metrics(batch: TrainBatch, config: RolloutCorrectionConfig) -> Metrics:
    """What `ppo.importance_weights` did: the weights before normalisation, the share that was cut, the widest ratios.

    `rollout_is_eff_sample_size` is 1 / E[(w / E[w])^2] of the weights (Kish 1965): 1 where all are equal.
    """
    if batch.weights_BT is None:
        return {}
    rollout, cap = batch.experience.rollout, config.rollout_is_threshold
    mask = rollout.mask_BT
    log_rho_BT = within(batch.experience.old_logp_BT - rollout.logp_BT, mask)
    if config.rollout_is == "sequence":
        log_rho_BT = log_rho_BT.sum(-1, keepdim=True).expand_as(log_rho_BT)
    rho_BT = log_rho_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    rho = rho_BT[mask.bool()]
    weights = rho.clamp(max=cap)
    return {
        "rollout_corr/rollout_is_mean": float(weights.mean()),
        "rollout_corr/rollout_is_max": float(rho.max()),
        "rollout_corr/rollout_is_min": float(rho.min()),
        "rollout_corr/rollout_is_std": float(weights.std(correction=0)),
        "rollout_corr/rollout_is_ratio_fraction_high": float((rho > cap).float().mean()),
        "rollout_corr/rollout_is_ratio_fraction_low": float((rho < 1 / cap).float().mean()),
        "rollout_corr/rollout_is_eff_sample_size": float(weights.mean() ** 2 / weights.square().mean()),
    }


def excess(step: int, batch: TrainBatch, config: Config) -> DriftError | None:
    """The error of a step whose mean |difference| of log-probs is over `trainer.max_rollout_drift`, or not a number."""
    limit, rollout = config.trainer.max_rollout_drift, batch.experience.rollout
    if limit is None:
        return None
    apart_BT = within((rollout.logp_BT - batch.experience.old_logp_BT).abs(), rollout.mask_BT)
    mean = float(masked_mean(apart_BT, rollout.mask_BT))
    if mean <= limit:
        return None
    seen = agreement(rollout, batch.experience.old_logp_BT)
    return DriftError(
        f"step {step}: the engine's log-probs are {mean:.3g} nats per token from the trainer's, over the limit of "
        f"{limit:g}; at most {seen['training/rollout_logp_diff_max']:.3g}, KL (k3) {seen['rollout_corr/k3_kl']:.3g}, "
        f"perplexity ratio {seen['rollout_corr/ppl_ratio']:.3g}; worst: {'; '.join(_worst(rollout, apart_BT))}",
        hint=f"usual causes: {', '.join(_causes(config))}; trainer.max_rollout_drift is the limit, "
        "trainer.rollout_drift_action=warn continues",
    )


def _worst(rollout: Rollout, apart_BT: Tensor) -> Iterator[str]:
    """The sequences that are furthest apart in the mean, not-a-number first."""
    mean_B = (apart_BT.sum(-1) / rollout.mask_BT.sum(-1).clamp(min=1)).nan_to_num(nan=torch.inf)
    for i in mean_B.argsort(descending=True, stable=True)[:SHOWN].tolist():
        label, sample = rollout.prompts.rows[i].label, int(rollout.prompts.sample_B[i])
        token = int(apart_BT[i].nan_to_num(nan=torch.inf).argmax())
        yield f"{label}, sample {sample} ({float(mean_B[i]):.3g}, most at token {token})"


def _causes(config: Config) -> Iterator[str]:
    """What usually parts the two; what this configuration makes likely comes with its value."""
    rollout = config.actor_rollout_ref.rollout
    yield "weights that did not reach the engine"
    yield f"a temperature ({rollout.temperature:g} here) that one side alone applies"
    cut = [f"top_p={rollout.top_p:g}"] * (rollout.top_p < 1) + [f"top_k={rollout.top_k}"] * (rollout.top_k > 0)
    yield f"log-probs taken after {' and '.join(cut) or 'top_p or top_k'}"
    yield "a lower precision in the engine (its dtype, quantization, kernels)"
