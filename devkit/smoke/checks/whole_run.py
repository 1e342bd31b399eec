"""What shows over several steps: learning, a resumed run, an end that is explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devkit.smoke.checks.outcome import Digests, Outcome, different, look_at, mask_of, named, place_of
from trainer import ppo, run
from trainer.data import reading
from trainer.errors import WorkerDied
from trainer.failures import Failure
from trainer.records import LogProbs, TrainBatch
from trainer.roles import Roles

Weights = Mapping[str, Digests]  # by role
MEASURED = ("timing", "perf/", "memory_gb/", "agent/env_seconds")  # what no two runs have alike
OF_ENGINES = ("training/rollout_", "rollout_corr/")  # how far the engine's log-probs are from the trainer's
ROUNDING = 1e-5  # of fp32 sums in other shapes, which differ by 1e-6


def policy_follows_advantages(pairs: Sequence[tuple[TrainBatch, LogProbs]]) -> Outcome:
    """After an update, tokens with a positive advantage are likelier than before, and the others less so."""
    gain = sum(
        float((batch.advantages_BT * (new.logp_BT - batch.experience.old_logp_BT) * mask_of(batch)).sum())
        / float(mask_of(batch).sum())
        for batch, new in pairs
    ) / max(1, len(pairs))
    if not pairs:
        return Outcome(None, "the actor was not updated")
    if all(float(batch.advantages_BT.abs().max()) == 0 for batch, _ in pairs):
        return Outcome(None, "no advantage differs from 0")
    said = f"mean of advantage x change of log-prob: {gain:+.1e} (must be positive)"
    return Outcome(gain > 0, said if gain > 0 else f"{said}: {look_at(ppo.policy_loss)}")


def critic_learns(batches: Sequence[TrainBatch]) -> Outcome:
    """At the end of a run the values are nearer to the returns than 0 is, which is what a new critic says."""
    values = [batch.experience.values_BT for batch in batches]
    if not batches or values[0] is None:
        return Outcome(None, "no critic in this configuration")
    missed = sum(
        float((((value - batch.returns_BT) * mask_of(batch)) ** 2).sum())
        for value, batch in zip(values, batches, strict=True)
        if value is not None
    )
    whole = sum(float(((batch.returns_BT * mask_of(batch)) ** 2).sum()) for batch in batches)
    # An untrained critic's share is 1 or above; a trained one's was below 0.2 in all of the gate's 24 seeds.
    share = missed / max(whole, 1e-12)
    said = f"squared error is {share:.2f} of the constant-zero baseline (limit 0.5)"
    return Outcome(share < 0.5, said if share < 0.5 else f"{said}: {look_at(Roles.update_critic)}")


def resumed_equal(
    before: Mapping[int, Mapping[str, float]],
    after: Mapping[int, Mapping[str, float]],
    engine: str = "hf",
    *,
    by_turns: bool = False,
) -> Outcome:
    """A resumed run repeats the killed run's steps to the bit; times aside.

    `by_turns`: which turns the engine computes together depends on when their environments answer, and so does how its
    log-probs are rounded. Figures of how far they are from the trainer's may differ by that.
    """
    repeated = sorted(set(before) & set(after))
    if not repeated:
        return Outcome(False, f"the resumed run did not repeat a step: {look_at(run.resume)}")
    if engine != "hf":
        return Outcome(None, f"{engine} has its own random generator: step {repeated[0]} has different responses")
    for step in repeated:
        names = [name for name in before[step] if not name.startswith(MEASURED)]
        odd = [name for name in names if repr(before[step][name]) != repr(after[step].get(name))]  # NaN is NaN
        if by_turns:
            odd = [name for name in odd if not _is_rounding(name, before[step][name], after[step].get(name))]
        if odd:
            name = odd[0]
            return Outcome(
                False,
                f"step {step}: {name} was {before[step][name]!r} and is {after[step].get(name)!r} after resuming"
                f" ({len(odd)} of {len(names)} metrics differ): {look_at(Roles.load)}",
            )
    return Outcome(True, f"step {', '.join(map(str, repeated))} repeated bit for bit")


def _is_rounding(name: str, before: float, after: float | None) -> bool:
    return name.startswith(OF_ENGINES) and after is not None and abs(before - after) <= ROUNDING


def resumed_weights(before: Mapping[int, Weights], after: Mapping[int, Weights], engine: str = "hf") -> Outcome:
    """A step that is done again after resuming ends with the very weights: metrics show no optimizer that is new."""
    repeated = sorted(set(before) & set(after))
    if engine != "hf" or not repeated:
        return Outcome(None, "no step was repeated with the same responses")
    for step in repeated:
        for role, digests in before[step].items():
            if odd := different(digests, after[step][role]):
                said = f"step {step} leads to other weights of the {role} after resuming: {named(odd)}"
                return Outcome(False, f"{said}: {look_at(Roles.load)}")
    return Outcome(True, f"step {', '.join(map(str, repeated))} repeated bit for bit, to the same weights")


def steps_done(stage: str, done: Sequence[int], wanted: Sequence[int]) -> Outcome:
    """Which steps a stage did, of those that its configuration asks for."""
    if list(done) == list(wanted):
        return Outcome(True, f"each stage did its steps; the {stage} {len(done)}")
    said = f"the {stage} did steps {_numbers(done)}, and was to do {_numbers(wanted)}"
    return Outcome(False, f"{said}: {look_at(run._train)}, or at {place_of(reading.total_steps)}")


def kept_when_due(what: str, done: Sequence[int], wanted: Sequence[int]) -> Outcome:
    """After which steps checkpoints were saved, or the model was validated."""
    if list(done) == list(wanted):
        return Outcome(True, f"{what} at steps {_numbers(done)}, when they were due")
    said = f"{what} at steps {_numbers(done)}, and due at {_numbers(wanted)}"
    return Outcome(False, f"{said}: {look_at(run.due)}")


def _numbers(steps: Sequence[int]) -> str:
    """
    >>> _numbers([1, 2, 3, 4]), _numbers([2, 5]), _numbers([])
    ('1 to 4', '2, 5', 'none')
    """
    if len(steps) > 2 and list(steps) == list(range(steps[0], steps[-1] + 1)):
        return f"{steps[0]} to {steps[-1]}"
    return ", ".join(map(str, steps)) or "none"


def death_named(error: Exception, victim: str) -> Outcome:
    """The run ended because a rank was killed, and says which one."""
    message = getattr(error, "message", "") or (str(error).strip() or type(error).__name__).splitlines()[0]
    if not isinstance(error, WorkerDied):
        said = f"{victim} was killed, but the run ended with a different error: {message}"
        return Outcome(False, f"{said}: {look_at(Failure.explain)}")
    if victim in message:
        return Outcome(True, message)
    return Outcome(False, f"{message}, though {victim} was killed: {look_at(Failure.explain)}")


def learned(rewards: Sequence[float], margin: float, window: int) -> Outcome:
    """The mean reward of the last steps is above that of the first by a margin that chance doesn't give."""
    first, last = sum(rewards[:window]) / window, sum(rewards[-window:]) / window
    said = f"reward {first:.3f} -> {last:.3f} in {len(rewards)} steps (required: +{margin})"
    rises = last - first >= margin
    return Outcome(rises, said if rises else f"{said}: {look_at(ppo.step)}, which names the phases")
