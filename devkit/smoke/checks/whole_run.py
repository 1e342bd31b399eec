"""What shows over several steps: learning, a resumed run, an end that is explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devkit.smoke.checks.outcome import Outcome, look_at, mask_of
from trainer.errors import WorkerDied
from trainer.records import LogProbs, TrainBatch
from trainer.roles import Roles


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
    return Outcome(gain > 0, f"mean of advantage x change of log-prob: {gain:+.1e} (must be positive)")


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
    return Outcome(share < 0.5, f"squared error is {share:.2f} of the constant-zero baseline (limit 0.5)")


def resumed_equal(
    before: Mapping[int, Mapping[str, float]], after: Mapping[int, Mapping[str, float]], engine: str = "hf"
) -> Outcome:
    """A resumed run repeats the killed run's steps to the bit; times aside."""
    repeated = sorted(set(before) & set(after))
    if not repeated:
        return Outcome(False, "the resumed run did not repeat a step")
    if engine != "hf":
        return Outcome(None, f"{engine} has its own random generator: step {repeated[0]} has different responses")
    for step in repeated:
        names = [name for name in before[step] if not name.startswith(("timing", "perf/", "memory_gb/"))]
        odd = [name for name in names if repr(before[step][name]) != repr(after[step].get(name))]  # NaN is NaN
        if odd:
            name = odd[0]
            return Outcome(
                False,
                f"step {step}: {name} was {before[step][name]!r} and is {after[step].get(name)!r} after resuming"
                f" ({len(odd)} of {len(names)} metrics differ): {look_at(Roles.load)}",
            )
    return Outcome(True, f"step {', '.join(map(str, repeated))} repeated bit for bit")


def death_named(error: Exception, victim: str) -> Outcome:
    """The run ended because a rank was killed, and says which one."""
    message = getattr(error, "message", "") or (str(error).strip() or type(error).__name__).splitlines()[0]
    if not isinstance(error, WorkerDied):
        return Outcome(False, f"{victim} was killed, but the run ended with a different error: {message}")
    return Outcome(victim in message, message)


def learned(rewards: Sequence[float], margin: float, window: int) -> Outcome:
    """The mean reward of the last steps is above that of the first by a margin that chance doesn't give."""
    first, last = sum(rewards[:window]) / window, sum(rewards[-window:]) / window
    return Outcome(
        last - first >= margin,
        f"reward {first:.3f} -> {last:.3f} in {len(rewards)} steps (required: +{margin})",
    )
