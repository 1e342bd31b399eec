"""What a step's own record shows: rollouts, masks, scores, advantages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from devkit.smoke import recompute
from devkit.smoke.checks.outcome import AS_COMPUTED, SAME_POLICY_TOLERANCE, Outcome, look_at, place_of
from devkit.smoke.recompute import tokens_of
from trainer import ppo, shaping
from trainer.agent import by_turn, by_turn_names
from trainer.config.schema import AlgorithmConfig
from trainer.group import WorkerGroup
from trainer.records import Experience, Rollout, TrainBatch
from trainer.roles import Roles
from trainer.rollout import answers
from trainer.rollout.settings import sampling_of

# Engine and trainer compute the same fp32 log-probs in batches of different shapes: about 1e-6 apart. Weights one
# update old, a temperature on one side or a shift by one token put them 1e-3 to several nats apart.
LOGP_TOLERANCE = 1e-4
FORMULAS: dict[str, Callable[..., object]] = {  # of those that are not in ppo.py
    **dict.fromkeys(by_turn_names.COMPARE_TURNS, shaping.shaped),
    by_turn_names.AGENTIC_REINFORCE: by_turn.from_turn_to_turn,
}
OF_RESPONSES = ("grpo", "rloo")  # one advantage for all tokens of a response; what is called its return is the same


def rollout_logprobs(rollout: Rollout, old_logp_BT: Tensor) -> Outcome:
    """The engine's log-probs are those of the trainer's policy at the same temperature."""
    gap = (rollout.logp_BT - old_logp_BT)[rollout.mask_BT.bool()].abs().max().item()
    said = f"engine and trainer differ by {gap:.1e} nats at most (limit {LOGP_TOLERANCE})"
    if gap <= LOGP_TOLERANCE:
        return Outcome(True, said)
    return Outcome(False, f"{said}: {look_at(Roles.log_probs)}, or at {place_of(Roles.sync_weights)}")


def masks(batch: TrainBatch, eos_id: int, longest: int) -> Outcome:
    """Masks cover the response up to and including the first EOS, and nothing is set outside them.

    A response without EOS has `longest` tokens.
    """
    rollout = batch.experience.rollout
    is_eos_BT = rollout.response_BT == eos_id
    before_BT = is_eos_BT.cumsum(-1) - is_eos_BT.long()  # number of EOS tokens before each token
    expected_BT = (before_BT == 0).long()
    wrong = int((expected_BT != rollout.mask_BT).any(-1).sum())
    if wrong:
        said = f"{wrong} of {len(batch)} response masks don't end at the first EOS"
        return Outcome(False, f"{said}: {look_at(answers.assemble)}")
    lengths_B = rollout.mask_BT.sum(-1)
    short_B = (lengths_B < longest) & ~is_eos_BT.any(-1)
    if odd := lengths_B[short_B | (lengths_B > longest)].tolist():
        said = f"a response has {odd[0]} tokens and no EOS" if odd[0] < longest else f"a response has {odd[0]} tokens"
        return Outcome(False, f"{said}, and data.max_response_length={longest}: {look_at(sampling_of)}")
    seen = batch.experience
    for name, tensor, place in (
        ("old log-probs", seen.old_logp_BT, Roles.log_probs),
        ("reference log-probs", seen.ref_logp_BT, Roles.ref_log_probs),
        ("values", seen.values_BT, Roles.values),
        ("rewards", batch.rewards_BT, ppo.penalised_rewards),
    ):
        if tensor is not None and bool(((tensor != 0) & (rollout.mask_BT == 0)).any()):
            return Outcome(False, f"{name} are set outside the response: {look_at(place)}")
    # Of a token that is certain it is 0, by the engine's account too.
    if bool(((seen.old_logp_BT == 0) & (rollout.logp_BT < -LOGP_TOLERANCE) & (rollout.mask_BT == 1)).any()):
        return Outcome(False, f"old log-probs are missing on response tokens: {look_at(Roles.log_probs)}")
    return Outcome(True, f"{int(rollout.mask_BT.sum())} response tokens masked exactly")


def rewards(experience: Experience, expected_B: Tensor) -> Outcome:
    """Each row has its own score, at its last response token. `expected_B`: scored anew, row by row."""
    mask_BT = experience.rollout.mask_BT
    rows, last_B = torch.arange(len(mask_BT)), mask_BT.sum(-1) - 1
    placed_B = experience.scores_BT[rows, last_B]
    wrong = int(((placed_B - expected_B).abs() > 1e-6).sum())
    if wrong:
        said = f"{wrong} of {len(rows)} rows have a score that does not match their response"
        return Outcome(False, f"{said}: {look_at(WorkerGroup.score)}, or at {place_of(shaping.place_scores)}")
    elsewhere_BT = experience.scores_BT.index_put((rows, last_B), torch.zeros(len(rows)))
    strewn = int(elsewhere_BT.any(-1).sum())
    if strewn:
        said = f"{strewn} of {len(rows)} rows have scores before the last token"
        return Outcome(False, f"{said}: {look_at(shaping.place_scores)}")
    return Outcome(True, f"{len(rows)} scores match their rows")


def kl_in_reward(batch: TrainBatch, kl_coef: float, config: AlgorithmConfig) -> Outcome:
    """Rewards are scores less `kl_coef` times the KL estimate, written out here once more."""
    seen = batch.experience
    if not config.use_kl_in_reward or seen.ref_logp_BT is None:
        return Outcome(None, "no KL in the reward")
    pairs = zip(
        *(tokens_of(x_BT, seen) for x_BT in (seen.scores_BT, batch.rewards_BT)),
        recompute.rewards(seen, kl_coef, config),
        strict=True,
    )
    gap = size = 0.0
    for row in pairs:
        for score, is_, should_be in zip(*row, strict=True):
            gap, size = max(gap, abs(is_ - should_be)), max(size, abs(score - should_be))
    if size < 1e-9:
        return Outcome(None, "actor and reference are still identical")
    said = f"penalty within {gap:.1e} of {kl_coef:g} x KL (up to {size:.1e})"
    if gap <= 1e-3 * size + 1e-7:
        return Outcome(True, said)
    return Outcome(False, f"{said}: {look_at(ppo.penalised_rewards)}, or at {place_of(ppo.kl_penalty)}")


def kl_coef_as_configured(step: int, is_: float, should_be: float) -> Outcome:
    """The coefficient that a step ends with. `should_be`: by the formula, from the one it began with."""
    if math.isclose(is_, should_be, rel_tol=AS_COMPUTED):
        return Outcome(None, "the next KL coefficient is as configured")
    said = f"step {step} ends with a KL coefficient of {is_:.5g} but it should be {should_be:.5g}"
    return Outcome(False, f"{said}: {look_at(ppo.next_kl_coef)}, or at {place_of(ppo.penalised_rewards)}")


def weights_as_computed(batch: TrainBatch, expected: recompute.Rows | None) -> Outcome:
    """The importance weight of each token. `expected`: computed once more."""
    given = batch.weights_BT
    if expected is None or given is None:
        if (expected is None) != (given is None):
            said = "there are no importance weights" if given is None else "there are importance weights, unasked for"
            return Outcome(False, f"{said}: {look_at(ppo.importance_weights)}")
        return Outcome(None, "no importance weights in this configuration")
    for row, (weights, wanted) in enumerate(zip(tokens_of(given, batch.experience), expected, strict=True)):
        for token, (is_, should_be) in enumerate(zip(weights, wanted, strict=True)):
            if not abs(is_ - should_be) <= AS_COMPUTED * max(1.0, abs(should_be)):
                said = f"the importance weight of response {row}, token {token}, is {is_:.5g}"
                return Outcome(False, f"{said} but should be {should_be:.5g}: {look_at(ppo.importance_weights)}")
    return Outcome(True, f"{sum(map(len, expected))} importance weights match the recomputed ones")


def reference_at_start(experience: Experience) -> Outcome:
    """Before the first update actor and reference are the same model: KL is 0."""
    if experience.ref_logp_BT is None:
        return Outcome(None, "no reference model in this configuration")
    gap = (experience.ref_logp_BT - experience.old_logp_BT).abs().max().item()
    said = f"reference and untrained actor differ by {gap:.1e} nats"
    if gap <= SAME_POLICY_TOLERANCE:
        return Outcome(True, said)
    return Outcome(False, f"{said}: {look_at(Roles.ref_log_probs)}")


def advantages_as_computed(batch: TrainBatch, expected: recompute.Advantages | None) -> Outcome:
    """Advantage and return of each token are what the estimator's formula gives. `expected`: computed once more."""
    if expected is None:
        return Outcome(None, "devkit has no formula for this estimator")
    seen, count = batch.experience, 0
    formula = FORMULAS.get(expected.estimator, getattr(ppo, expected.estimator, ppo.estimate))
    whitening = ppo.estimate if expected.estimator == "gae" else formula
    returns = ("return", batch.returns_BT, expected.returns, formula)
    advantages = ("advantage", batch.advantages_BT, expected.advantages, whitening)
    both = (advantages, returns) if expected.estimator in OF_RESPONSES else (returns, advantages)
    for what, given_BT, wanted, place in both:
        for row, given in enumerate(tokens_of(given_BT, seen)):
            for token, (is_, should_be) in enumerate(zip(given, wanted[row], strict=True)):
                count += 1
                if not abs(is_ - should_be) <= AS_COMPUTED * max(1.0, abs(should_be)) + expected.slack[row]:
                    said = f"the {what} of response {row}, token {token}, is {is_:.5g} but should be {should_be:.5g}"
                    return Outcome(False, f"{expected.estimator}: {said}: {look_at(place)}")
    return Outcome(True, f"{count // 2} advantages and returns match the recomputed ones")


def advantages_differ(batches: Sequence[TrainBatch]) -> Outcome:
    """Over a whole run some advantage is not 0, or nothing is learned from."""
    if any(bool(batch.advantages_BT.any()) for batch in batches):
        return Outcome(True, "advantages match the recomputed ones and are not all 0")
    return Outcome(False, f"no advantage of {len(batches)} steps differs from 0: {look_at(ppo.estimate)}")
