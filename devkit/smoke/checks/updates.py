"""What an update reports, and where it moves the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from devkit.smoke import plain_lora
from devkit.smoke.checks.outcome import AS_COMPUTED, SAME_POLICY_TOLERANCE, Outcome, look_at, named, place_of
from devkit.smoke.plain_adamw import Applied
from devkit.smoke.plain_update import Expected, Furthest
from trainer import ppo
from trainer.group import WorkerGroup
from trainer.learner import head
from trainer.learner.schedule import lr_factor
from trainer.records import TrainBatch, UpdateReport
from trainer.roles import Roles

# Sums of the same fp32 terms in another order: a relative 1e-6. One lost micro-batch of m changes a sum by 1/m.
SPLIT_TOLERANCE = 1e-4
# A norm over all parameters, in fp32; a lost or an added term of the loss changes it by its share.
GRADIENT_AS_COMPUTED = 1e-3
AFTER_A_STEP = 0.02  # and once fp32 and float64 have gone apart by a step: Adam divides small numbers by small ones
# Of one step: fp32 beside float64. Of several, where a gradient is rounding alone, so is its sign.
DIRECTION, DIRECTION_AFTER_A_STEP = 0.01, 0.1
STATE_AS_COMPUTED, MOVED_AS_COMPUTED, MOVED_AFTER_A_STEP = 1e-3, 1e-3, 0.03


def first_values(report: UpdateReport, batch: TrainBatch, rows: Sequence[int]) -> Outcome:
    """The critic's first mini-batch, of these rows, finds the values that the record has: nothing is updated yet."""
    values_BT, mask_BT = batch.experience.values_BT, batch.experience.rollout.mask_BT
    if values_BT is None:
        return Outcome(None, "no critic in this configuration")
    tokens = mask_BT[list(rows)].bool()
    recorded, found = float(values_BT[list(rows)][tokens].double().mean()), report.steps[0]["critic/vpred_mean"]
    said = f"the critic's first mini-batch has a mean value of {found:.5g}, the record of {recorded:.5g}"
    if abs(found - recorded) <= SAME_POLICY_TOLERANCE * max(1.0, abs(recorded)):
        return Outcome(True, said)
    asked = "was it updated before its values were taken, or are its sums of other rows or ranks?"
    return Outcome(False, f"{said}: {asked} {look_at(ppo.step)}, or at {place_of(WorkerGroup.shares)}")


def first_mini_batch(report: UpdateReport) -> Outcome:
    """Nothing is updated yet: the ratio is 1, so its log is 0 and nothing is clipped."""
    first = report.steps[0]
    kl, clipped = abs(first["actor/ppo_kl"]), first["actor/pg_clipfrac"]
    ok = kl <= SAME_POLICY_TOLERANCE and clipped == 0
    said = f"mean log-ratio {kl:.1e}, {clipped:.0%} clipped (limits {SAME_POLICY_TOLERANCE}, none)"
    return Outcome(ok, said if ok else f"{said}: {look_at(ppo.policy_loss)}, or at {place_of(WorkerGroup.shares)}")


def gradients(role: str, report: UpdateReport, batch: TrainBatch, *, unmoved: bool = False) -> Outcome:
    """Every parameter that trains got a gradient, and no step was left out.

    `unmoved`: no update has moved the model yet. The gradient of an adapter's A is 0 as long as its B is.
    """
    if role == "actor" and not bool(batch.advantages_BT.any()):
        return Outcome(None, "no advantage differs from 0")
    untrained = [name for name in report.untrained if not (unmoved and name.endswith(plain_lora.A))]
    if untrained:
        from trainer.learner.build import Builder  # which takes a second, for a failure alone

        said = f"no gradient in the {role}: {named(untrained)}"
        return Outcome(False, f"{said}: {look_at(getattr(Builder, role))}, or at {place_of(ppo.update)}")
    if report.skipped:
        said = f"{report.skipped} steps of the {role} skipped: the gradient was not finite"
        return Outcome(False, f"{said}: {look_at(ppo.update)}")
    return Outcome(True, "every parameter of actor and critic has one")


def losses_as_computed(role: str, report: UpdateReport, expected: Expected) -> Outcome:
    """On a made-up mini-batch, what each optimizer step reports is what the papers' formulas give."""
    steps, wanted = report.steps, expected.steps
    if len(steps) != len(wanted):
        return Outcome(False, f"the {role} did {len(steps)} optimizer steps of {len(wanted)}: {look_at(ppo.update)}")
    for number, (told, step) in enumerate(zip(steps, wanted, strict=True)):
        limit = AS_COMPUTED if number == 0 else AFTER_A_STEP
        for name, should_be in step.items():
            if name != "grad_norm" and not abs(told[name] - should_be) <= limit * max(abs(should_be), 0.1):
                said = f"{name} of a generated mini-batch is {told[name]:.5g} but should be {should_be:.5g}"
                return Outcome(False, f"{said}: {look_at(_formula(role, name))}")
    return Outcome(True, f"{role}: {len(wanted[0]) - 1} figures of a generated mini-batch match the recomputed ones")


def _formula(role: str, figure: str) -> Callable[..., Any]:
    """Where that figure of a loss comes from."""
    if figure.startswith("actor/pg") or figure == "actor/ppo_kl":
        return ppo.policy_loss
    if figure.startswith("critic/vf"):
        return ppo.value_loss
    return {"actor/kl_loss": ppo.kl_penalty}.get(figure, ppo.actor_loss if role == "actor" else ppo.critic_loss)


def forward_as_computed(role: str, report: UpdateReport, expected: Expected) -> Outcome:
    """Log-probs of the actor and values of the critic are those of a plain transformers model with their weights."""
    row, token, is_, should_be = expected.furthest
    what, place = ("log-prob", Roles.log_probs) if role == "actor" else ("value", Roles.values)
    if abs(is_ - should_be) <= AS_COMPUTED * max(1.0, abs(should_be)):
        return Outcome(True, f"{what}s of the {role} as of a plain model, {abs(is_ - should_be):.1e} apart at most")
    said = f"the {role}'s {what} of response {row}, token {token}, is {is_:.5g} but should be {should_be:.5g}"
    from trainer.learner.forward import Forward  # which takes a second, for a failure alone

    inner = Forward.log_probs if role == "actor" else Forward.values
    return Outcome(False, f"{said}: {look_at(inner)}, or at {place_of(place)}")


def reference_as_computed(furthest: Furthest) -> Outcome:
    """After all of the training the reference still says what the weights say that the run began with."""
    row, token, is_, should_be = furthest
    if abs(is_ - should_be) <= AS_COMPUTED * max(1.0, abs(should_be)):
        return Outcome(True, f"unchanged by training, its log-probs {abs(is_ - should_be):.1e} from a plain model's")
    said = f"the reference's log-prob of response {row}, token {token}, is {is_:.5g} but should be {should_be:.5g}"
    return Outcome(False, f"{said}, by the weights that the run began with: {look_at(Roles.ref_log_probs)}")


def gradient_as_computed(role: str, report: UpdateReport, expected: Expected) -> Outcome:
    """So is the gradient, by plain autograd: its norm as it is reported, its direction as the optimizer got it."""
    loss = ppo.actor_loss if role == "actor" else ppo.critic_loss
    inner = f", or at {place_of(head.log_probs)}" if role == "actor" else ""
    where = f"{look_at(loss)}{inner}"
    passes = "its values are right, so check how they are differentiated, or gradients left from before"
    for number, (told, step) in enumerate(zip(report.steps, expected.steps, strict=False)):
        is_, should_be = told["grad_norm"], step["grad_norm"]
        if not abs(is_ - should_be) <= (GRADIENT_AS_COMPUTED if number == 0 else AFTER_A_STEP) * should_be:
            said = f"the {role}'s gradient norm on a generated mini-batch is {is_:.5g} but should be {should_be:.5g}"
            return Outcome(False, f"{said}; {passes}: {where}")
    off = expected.applied.gradients
    worst = max(off, key=lambda name: math.inf if math.isnan(off[name]) else off[name])
    if not off[worst] <= (DIRECTION if expected.applied.steps == 1 else DIRECTION_AFTER_A_STEP):
        count = sum(not each <= DIRECTION for each in off.values())
        said = f"the {role}'s gradient of {worst} on a generated mini-batch is off by {off[worst]:.0%} of its size"
        return Outcome(False, f"{said} ({count} of {len(off)} parameters); {passes}: {where}")
    same = f"{len(off)} gradients match plain autograd"
    return Outcome(True, f"{role}: {same}, a norm of {expected.steps[0]['grad_norm']:.4g} together")


def moved_as_computed(role: str, report: UpdateReport, expected: Expected) -> Outcome:
    """So is what AdamW makes of it: its two means, and the parameters' way by them."""
    from trainer.learner.fsdp import Trained  # which takes a second, for a failure alone

    seen = expected.applied
    rate = rate_as_configured(role, report, expected.lr)
    if not rate.ok:
        return rate
    if wrong := _of_means(seen):
        return Outcome(False, f"the {role}'s AdamW: {wrong}: {look_at(Trained.__init__)}")
    if seen.strayed:
        from trainer.learner.lora import adapt  # as above

        said = f"weights of the {role} changed beside its adapters: {named(seen.strayed)}"
        return Outcome(False, f"{said}: {look_at(adapt)}")
    limit = MOVED_AS_COMPUTED if seen.steps == 1 else MOVED_AFTER_A_STEP
    odd = {name: off for name, off in seen.ways.items() if not off <= limit}
    if odd:
        name = max(odd, key=lambda each: math.inf if math.isnan(odd[each]) else odd[each])
        said = f"{name} of the {role} did not move as AdamW would: off by {odd[name]:.1%} of the way"
        return Outcome(False, f"{said} ({len(odd)} of {len(seen.ways)} parameters): {look_at(Trained.__init__)}")
    return Outcome(True, f"{role}: {len(seen.ways)} parameters and their moments moved as AdamW computes")


def _of_means(seen: Applied) -> str:
    """What is wrong with the optimizer's running means."""
    limit = STATE_AS_COMPUTED if seen.steps == 1 else AFTER_A_STEP
    if not abs(seen.kept - seen.kept_wanted) <= limit:
        return f"beta1: {seen.kept:.4g} of the mean gradient is left after an update, not {seen.kept_wanted:.4g}"
    if not abs(seen.taken - 1) <= (0.01 if seen.steps == 1 else DIRECTION_AFTER_A_STEP):
        return f"the gradient came in {seen.taken:.4g} times what it is after clipping (grad_clip, beta1)"
    if not abs(seen.decay) <= 1e-4:
        return "weight decay goes through the gradient, as in Adam with an L2 penalty, and not beside it"
    name = max(seen.squares, key=lambda each: seen.squares[each])
    if not seen.squares[name] <= (0.01 if seen.steps == 1 else DIRECTION_AFTER_A_STEP):
        return f"beta2: the mean square of {name} is off by {seen.squares[name]:.0%} of its way"
    return ""


def rate_as_configured(role: str, report: UpdateReport, rate: float) -> Outcome:
    """Each update has the learning rate that warm-up and schedule give its number. `rate`: by the formula."""
    if math.isclose(report.lr, rate, rel_tol=1e-6, abs_tol=1e-12):
        return Outcome(True, f"{role}: {rate:.3g} in this update, as warm-up and schedule require")
    return Outcome(
        False, f"the {role}'s learning rate is {report.lr:.5g} but should be {rate:.5g}: {look_at(lr_factor)}"
    )


def settings_act(role: str, inert: Sequence[str], *, asked: bool) -> Outcome:
    """What the configuration asks for did not switch itself off. `inert`: what did, and why; `asked`: by the command,
    and not by a default, which suits most models."""
    if not inert:
        return Outcome(True, f"{role}: no setting switched itself off")
    if not asked:
        return Outcome(None, f"{role}: {inert[0]}")
    from trainer.learner.forward import Forward  # which takes a second, for a failure alone

    return Outcome(False, f"{role}: {inert[0]}: {look_at(Forward.lay_out)}")


Probe = tuple[dict[str, float], float]  # losses, and the norm of the gradient


def split_invariance(role: str, parts: Probe, whole: Probe) -> Outcome:
    """Losses and gradient norm don't depend on how a mini-batch is cut into micro-batches."""
    said, ok = _equal(role, parts, whole)
    return Outcome(ok, said if ok else f"{said}: {look_at(ppo.update)}, or at {place_of(ppo.aggregate)}")


def sharing_invariance(role: str, other: Probe, whole: Probe) -> Outcome:
    """Nor on which rank has which rows of it."""
    said, ok = _equal(role, other, whole)
    why = "when ranks have other rows of the same mini-batch: are gradients and losses summed over all ranks?"
    return Outcome(ok, said if ok else f"{said} {why} {look_at(ppo.update)}")


def _equal(role: str, parts: Probe, whole: Probe) -> tuple[str, bool]:
    pairs = {name: (parts[0][name], whole[0][name]) for name in whole[0]} | {"grad_norm": (parts[1], whole[1])}
    gaps = {name: abs(a - b) / max(abs(a), abs(b), 1e-2) for name, (a, b) in pairs.items()}
    worst = max(gaps, key=lambda name: gaps[name])
    ok = gaps[worst] <= SPLIT_TOLERANCE
    return f"{role}: {worst} differs by a relative {gaps[worst]:.1e} (limit {SPLIT_TOLERANCE})", ok
