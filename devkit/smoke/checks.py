"""The checks of the smoke test: each looks at what a run shows and names one thing that can be broken.

Functions here are pure: records and figures in, an `Outcome` out. Each threshold is explained where it stands.
`watch.py` feeds them while the trainer runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config.schema import AlgorithmConfig
from trainer.errors import WorkerDied
from trainer.ppo import StepResult
from trainer.records import Experience, LogProbs, Rollout, TrainBatch, UpdateReport

Digests = Sequence[Mapping[str, str]]  # by rank: tensor name -> digest

# Engine and trainer compute the same fp32 log-probs in batches of different shapes: about 1e-6 apart. Weights one
# update old, a temperature on one side or a shift by one token put them 1e-3 to several nats apart.
LOGP_TOLERANCE = 1e-4
# Sums of the same fp32 terms in another order: a relative 1e-6. One lost micro-batch of m changes a sum by 1/m.
SPLIT_TOLERANCE = 1e-4
# The very same forward pass twice, old and new policy being the same: 0 up to the order of sums.
SAME_POLICY_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Outcome:
    """What a check found; `ok` None: there was nothing to check."""

    ok: bool | None
    detail: str


def rollout_logprobs(rollout: Rollout, old_logp_BT: Tensor) -> Outcome:
    """The engine's log-probs are those of the trainer's policy at the same temperature."""
    gap = (rollout.logp_BT - old_logp_BT)[rollout.mask_BT.bool()].abs().max().item()
    return Outcome(
        gap <= LOGP_TOLERANCE, f"engine and trainer differ by {gap:.1e} nats at most (limit {LOGP_TOLERANCE})"
    )


def masks(batch: TrainBatch, eos_id: int) -> Outcome:
    """Masks cover the response up to and including the first EOS, and nothing is set outside them."""
    rollout = batch.experience.rollout
    is_eos_BT = rollout.response_BT == eos_id
    before_BT = is_eos_BT.cumsum(-1) - is_eos_BT.long()  # number of EOS tokens before each token
    expected_BT = (before_BT == 0).long()
    wrong = int((expected_BT != rollout.mask_BT).any(-1).sum())
    if wrong:
        return Outcome(False, f"{wrong} of {len(batch)} response masks don't end at the first EOS")
    seen = batch.experience
    for name, tensor in {
        "old log-probs": seen.old_logp_BT,
        "reference log-probs": seen.ref_logp_BT,
        "values": seen.values_BT,
        "rewards": batch.rewards_BT,
    }.items():
        if tensor is not None and bool(((tensor != 0) & (rollout.mask_BT == 0)).any()):
            return Outcome(False, f"{name} are set outside the response")
    if bool(((seen.old_logp_BT == 0) & (rollout.mask_BT == 1)).any()):
        return Outcome(False, "old log-probs are missing on response tokens")
    return Outcome(True, f"{int(rollout.mask_BT.sum())} response tokens masked exactly")


def rewards(experience: Experience, expected_B: Tensor) -> Outcome:
    """Each row has its own score, at its last response token. `expected_B`: scored anew, row by row."""
    mask_BT = experience.rollout.mask_BT
    rows, last_B = torch.arange(len(mask_BT)), mask_BT.sum(-1) - 1
    placed_B = experience.scores_BT[rows, last_B]
    wrong = int(((placed_B - expected_B).abs() > 1e-6).sum())
    if wrong:
        return Outcome(False, f"{wrong} of {len(rows)} rows have another score than their response earns")
    elsewhere_BT = experience.scores_BT.index_put((rows, last_B), torch.zeros(len(rows)))
    strewn = int(elsewhere_BT.any(-1).sum())
    if strewn:
        return Outcome(False, f"{strewn} of {len(rows)} rows have scores before their last token")
    return Outcome(True, f"{len(rows)} scores belong to their rows")


def kl_in_reward(batch: TrainBatch, kl_coef: float, config: AlgorithmConfig) -> Outcome:
    """Rewards are scores less `kl_coef` times the KL estimate, written out here once more."""
    seen = batch.experience
    if not config.use_kl_in_reward or seen.ref_logp_BT is None:
        return Outcome(None, "no KL in the reward")
    d_BT = seen.old_logp_BT - seen.ref_logp_BT
    kind = config.kl_penalty.removesuffix("+")
    kl_BT = {
        "kl": d_BT,
        "k1": d_BT,
        "abs": d_BT.abs(),
        "mse": d_BT**2 / 2,
        "k2": d_BT**2 / 2,
    }.get(kind, torch.exp(-d_BT) - 1 + d_BT)
    penalty_BT = (seen.scores_BT - batch.rewards_BT) * seen.rollout.mask_BT
    gap = (penalty_BT - kl_coef * kl_BT * seen.rollout.mask_BT).abs().max().item()
    size = (kl_coef * kl_BT).abs().max().item()
    if size < 1e-9:
        return Outcome(None, "actor and reference are still the same")
    return Outcome(gap <= 1e-3 * size + 1e-7, f"penalty within {gap:.1e} of {kl_coef:g} x KL (up to {size:.1e})")


def first_mini_batch(report: UpdateReport) -> Outcome:
    """Nothing is updated yet: the ratio is 1, so its log is 0 and nothing is clipped."""
    first = report.steps[0]
    kl, clipped = abs(first["actor/ppo_kl"]), first["actor/pg_clipfrac"]
    ok = kl <= SAME_POLICY_TOLERANCE and clipped == 0
    return Outcome(ok, f"mean log-ratio {kl:.1e}, {clipped:.0%} clipped (limits {SAME_POLICY_TOLERANCE}, none)")


def reference_at_start(experience: Experience) -> Outcome:
    """Before the first update actor and reference are the same model: KL is 0."""
    if experience.ref_logp_BT is None:
        return Outcome(None, "no reference model in this configuration")
    gap = (experience.ref_logp_BT - experience.old_logp_BT).abs().max().item()
    return Outcome(gap <= SAME_POLICY_TOLERANCE, f"reference and untrained actor differ by {gap:.1e} nats")


def unchanged(before: Digests, after: Digests) -> Outcome:
    """The reference is frozen."""
    changed = different(before, after)
    return Outcome(not changed, f"the reference changed: {named(changed)}" if changed else "unchanged by training")


def synced(actor: Digests, engine: Digests) -> Outcome:
    """Every engine has the actor's weights, to the bit."""
    # Where engines have ranks of their own, the actor's first rank is what they follow.
    followed = actor if len(actor) == len(engine) else [actor[0]] * len(engine)
    for rank, (wanted, held) in enumerate(zip(followed, engine, strict=True)):
        stale = sorted(name for name in wanted if wanted[name] != held.get(name))
        if stale:
            return Outcome(False, f"rank {rank}'s engine has other weights than the actor: {named(stale)}")
    return Outcome(True, f"{len(actor[0])} tensors equal on {len(engine)} ranks")


def ranks_equal(actor: Digests, engine: Digests) -> Outcome:
    """Every rank sees the same parameters."""
    for role, digests in (("actor", actor), ("engine", engine)):
        for rank, held in enumerate(digests):
            odd = different([digests[0]], [held])
            if odd:
                return Outcome(False, f"rank {rank}'s {role} differs from rank 0's: {named(odd)}")
    return Outcome(True, f"{len(actor)} ranks hold the same actor and engine")


def gradients(role: str, report: UpdateReport, batch: TrainBatch) -> Outcome:
    """Every parameter got a gradient, and no step was left out."""
    if role == "actor" and not bool(batch.advantages_BT.any()):
        return Outcome(None, "no advantage differs from 0")
    if report.untrained:
        return Outcome(False, f"no gradient in the {role}: {named(report.untrained)}")
    if report.skipped:
        return Outcome(False, f"{report.skipped} steps of the {role} skipped: the gradient was not finite")
    return Outcome(True, "every parameter of actor and critic got one")


def optimizer_moved(role: str, before: Digests, after: Digests) -> Outcome:
    """An update changed every rank's part of every parameter."""
    for rank, (old, new) in enumerate(zip(before, after, strict=True)):
        still = sorted(name for name in old if old[name] == new[name])
        if still:
            return Outcome(False, f"rank {rank}'s part of the {role} is as it was before the update: {named(still)}")
    return Outcome(True, f"{len(before[0])} tensors of the {role} changed on {len(before)} ranks")


def split_invariance(
    role: str, parts: tuple[dict[str, float], float], whole: tuple[dict[str, float], float]
) -> Outcome:
    """Losses and gradient norm don't depend on how a mini-batch is cut into micro-batches."""
    pairs = {name: (parts[0][name], whole[0][name]) for name in whole[0]} | {"grad_norm": (parts[1], whole[1])}
    gaps = {name: abs(a - b) / max(abs(a), abs(b), 1e-2) for name, (a, b) in pairs.items()}
    worst = max(gaps, key=lambda name: gaps[name])
    ok = gaps[worst] <= SPLIT_TOLERANCE
    return Outcome(ok, f"{role}: {worst} differs by a relative {gaps[worst]:.1e} (limit {SPLIT_TOLERANCE})")


def advantages_follow_rewards(batches: Sequence[TrainBatch]) -> Outcome:
    """Responses that earned more got the larger advantages: correlation over a run's batches.

    With a critic or a group's mean taken off it is 0.5 to 1. Chance gives 0 +- 0.05 over these hundreds of responses.
    """
    score_B = torch.cat([centred(batch.experience.scores_BT.sum(-1)) for batch in batches])
    advantage_B = torch.cat([centred(mean_over_tokens(batch.advantages_BT, batch)) for batch in batches])
    if float(score_B.abs().max()) == 0 or float(advantage_B.abs().max()) == 0:
        return Outcome(None, "all responses earned the same")
    r = float((score_B * advantage_B).sum() / (score_B.norm() * advantage_B.norm() + 1e-12))
    return Outcome(r > 0.2, f"correlation {r:.2f} over {len(score_B)} responses (limit 0.2)")


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
    return Outcome(share < 0.5, f"squared error is {share:.2f} of that of saying 0 (limit 0.5)")


def resumed_equal(
    before: Mapping[int, Mapping[str, float]], after: Mapping[int, Mapping[str, float]], engine: str = "hf"
) -> Outcome:
    """A resumed run repeats the killed run's steps to the bit; times aside."""
    repeated = sorted(set(before) & set(after))
    if not repeated:
        return Outcome(False, "the resumed run repeated no step")
    if engine != "hf":
        return Outcome(None, f"{engine} draws from a generator of its own: step {repeated[0]} has other responses")
    for step in repeated:
        names = [name for name in before[step] if not name.startswith(("timing", "perf/", "memory_gb/"))]
        odd = [name for name in names if repr(before[step][name]) != repr(after[step].get(name))]  # NaN is NaN
        if odd:
            name = odd[0]
            return Outcome(
                False,
                f"step {step}: {name} was {before[step][name]!r} and is {after[step].get(name)!r} after resuming"
                f" ({len(odd)} of {len(names)} metrics differ)",
            )
    return Outcome(True, f"step {', '.join(map(str, repeated))} repeated to the bit")


def death_named(error: Exception, victim: str) -> Outcome:
    """The run ended because a rank was killed, and says which one."""
    message = getattr(error, "message", "") or (str(error).strip() or type(error).__name__).splitlines()[0]
    if not isinstance(error, WorkerDied):
        return Outcome(False, f"{victim} was killed, and the run ended with another error: {message}")
    return Outcome(victim in message, message)


def learned(rewards: Sequence[float], margin: float, window: int) -> Outcome:
    """The mean reward of the last steps is above that of the first by a margin that chance doesn't give."""
    first, last = sum(rewards[:window]) / window, sum(rewards[-window:]) / window
    return Outcome(
        last - first >= margin,
        f"reward {first:.3f} -> {last:.3f} in {len(rewards)} steps (a rise of {margin} is asked for)",
    )


def step_reward(result: StepResult) -> float:
    return float(result.metrics["critic/score/mean"])


def mask_of(batch: TrainBatch) -> Tensor:
    return batch.experience.rollout.mask_BT


def mean_over_tokens(x_BT: Tensor, batch: TrainBatch) -> Tensor:
    mask_BT = mask_of(batch)
    return (x_BT * mask_BT).sum(-1) / mask_BT.sum(-1)


def centred(x_B: Tensor) -> Tensor:
    return x_B - x_B.mean()


def different(a: Digests, b: Digests) -> list[str]:
    """Names of the tensors whose digests differ on some rank."""
    return sorted({name for x, y in zip(a, b, strict=True) for name in x if x[name] != y.get(name)})


def named(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
