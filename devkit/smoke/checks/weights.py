"""Which tensors changed, and which are equal: by their digests."""

from __future__ import annotations

from devkit.smoke.checks.outcome import Digests, Outcome, different, look_at, named
from trainer.roles import Roles


def unchanged(before: Digests, after: Digests) -> Outcome:
    """The reference is frozen."""
    if changed := different(before, after):
        return Outcome(False, f"the reference changed: {named(changed)}: {look_at(Roles.ref_log_probs)}")
    return Outcome(True, "unchanged by training")


def synced(actor: Digests, engine: Digests) -> Outcome:
    """Every engine has the actor's weights, to the bit."""
    # Where engines have ranks of their own, the actor's first rank is what they follow.
    followed = actor if len(actor) == len(engine) else [actor[0]] * len(engine)
    for rank, (wanted, held) in enumerate(zip(followed, engine, strict=True)):
        stale = sorted(name for name in wanted if wanted[name] != held.get(name))
        if stale:
            said = f"rank {rank}'s engine has weights that differ from the actor's: {named(stale)}"
            return Outcome(False, f"{said}: {look_at(Roles.sync_weights)}")
    return Outcome(True, f"{len(actor[0])} tensors equal on {len(engine)} ranks")


def ranks_equal(actor: Digests, engine: Digests) -> Outcome:
    """Every rank sees the same parameters."""
    for role, digests in (("actor", actor), ("engine", engine)):
        for rank, held in enumerate(digests):
            odd = different([digests[0]], [held])
            if odd:
                where = look_at(Roles.update_actor if role == "actor" else Roles.sync_weights)
                return Outcome(False, f"rank {rank}'s {role} differs from rank 0's: {named(odd)}: {where}")
    return Outcome(True, f"{len(actor)} ranks hold the same actor and engine")


def optimizer_moved(role: str, before: Digests, after: Digests) -> Outcome:
    """An update changed every rank's part of every parameter."""
    for rank, (old, new) in enumerate(zip(before, after, strict=True)):
        still = sorted(name for name in old if old[name] == new[name])
        if still:
            from trainer.learner.fsdp import Trained  # which takes a second, for a failure alone

            said = f"rank {rank}'s part of the {role} did not change in the update: {named(still)}"
            return Outcome(False, f"{said}: {look_at(Trained.optimizer_step)}")
    return Outcome(True, f"{len(before[0])} tensors of the {role} changed on {len(before)} ranks")
