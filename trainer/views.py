"""Which tokens of a conversation a model's losses go over. Of one turn all are sampled, and nothing changes there.

sampled, answered    A A o o o B B
mask                 1 1 0 0 0 1 1      what was sampled
present              1 1 1 1 1 1 1      and what the environment said
"""

from __future__ import annotations

import dataclasses

from trainer.config.schema import Config
from trainer.records import Experience, Rollout, TrainBatch


def with_observations(rollout: Rollout) -> Rollout:
    """The same, with what environments said as if it were sampled; of a single turn, to the bit the same."""
    return rollout if rollout.present_BT is None else dataclasses.replace(rollout, mask_BT=rollout.present_BT)


def of_actor(rollout: Rollout, config: Config) -> Rollout:
    """What the actor's losses go over: sampled tokens; without Search-R1's `state_masking`, observations, too."""
    return rollout if config.actor_rollout_ref.actor.state_masking else with_observations(rollout)


def of_critic(rollout: Rollout, config: Config) -> Rollout:
    """What values, GAE and the critic's loss go over: sampled tokens; without `masked_gae`, observations, too.

    The latter is Search-R1's, whatever its `state_masking` (`core_algos.compute_gae_advantage_return`, `dp_critic.py`).
    """
    return rollout if config.algorithm.masked_gae else with_observations(rollout)


def of_estimator(experience: Experience, config: Config) -> Experience:
    """What advantages go over: GAE's as the critic's values, the others' as the actor's losses."""
    view = of_critic if config.algorithm.adv_estimator == "gae" else of_actor
    return dataclasses.replace(experience, rollout=view(experience.rollout, config))


def seen_as(rollout: Rollout, batch: TrainBatch) -> TrainBatch:
    """`batch` with another view of its rollout."""
    return dataclasses.replace(batch, experience=dataclasses.replace(batch.experience, rollout=rollout))
