"""Which tensors changed, and which are equal: by their digests."""

from __future__ import annotations

from collections.abc import Mapping

from devkit.smoke.checks.outcome import Digests, Outcome, different, look_at, named, place_of
from devkit.smoke.plain_lora import HEAD, A, is_factor
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


def merged_as_computed(engine: Digests, expected: Mapping[str, str]) -> Outcome:
    """Every engine has weight + scale B A for each weight with an adapter. `expected`: computed once more."""
    for rank, held in enumerate(engine):
        odd = sorted(name for name in expected if held.get(name) != expected[name])
        if odd:
            from trainer.learner.fsdp import Model  # which takes a second, for a failure alone

            said = f"rank {rank}'s engine has weights that are not weight + scale x B A: {named(odd)}"
            return Outcome(False, f"{said}: {look_at(Model.full_tensors)}, or at {place_of(Roles.sync_weights)}")
    return Outcome(True, f"{len(expected)} weights with their adapters are as recomputed on {len(engine)} ranks")


def optimizer_moved(role: str, before: Digests, after: Digests) -> Outcome:
    """An update changed every rank's part of every parameter; where there are adapters, of these alone."""
    adapters = any(is_factor(name) for held in before for name in held)
    for rank, (old, new) in enumerate(zip(before, after, strict=True)):
        if adapters:
            strayed = sorted(name for name in old if not _trains(name) and old[name] != new[name])
            if strayed:
                from trainer.learner.lora import adapt  # as below

                said = f"rank {rank}'s weights of the {role} changed beside its adapters: {named(strayed)}"
                return Outcome(False, f"{said}: {look_at(adapt)}")
        # The gradient of an adapter's A is 0 as long as its B is.
        due = [name for name in old if not adapters or (_trains(name) and not name.endswith(A))]
        still = sorted(name for name in due if old[name] == new[name])
        if still:
            from trainer.learner.fsdp import Trained  # which takes a second, for a failure alone

            said = f"rank {rank}'s part of the {role} did not change in the update: {named(still)}"
            return Outcome(False, f"{said}: {look_at(Trained.optimizer_step)}")
    count = sum(not adapters or _trains(name) for name in before[0])
    return Outcome(True, f"{count} tensors of the {role} changed on {len(before)} ranks")


def _trains(name: str) -> bool:
    """Of a model with adapters."""
    return is_factor(name) or name.startswith(HEAD)
