"""Which rank holds what of a model: data-parallel copies, each split over tensor and pipeline ranks.

The ranks of one copy take the same rows; different copies take different ones. FSDP2 has one copy per rank as far as
rows are concerned. The driver imports this module: no torch here.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import Config
from trainer.teams import ranks_of


@dataclass(frozen=True)
class Place:
    """One rank's coordinates."""

    data: int  # whose rows it takes
    tensor: int  # which slice of each matrix it holds
    pipeline: int  # which stage of layers


@dataclass(frozen=True)
class Grid:
    """The ranks of a model in Megatron's order, "tp-dp-pp": tensor ranks are neighbours, stages lie furthest apart.

    >>> Grid(world_size=8, tensor=2, pipeline=2).place(3)
    Place(data=1, tensor=1, pipeline=0)
    """

    world_size: int
    tensor: int = 1
    pipeline: int = 1

    @property
    def copies(self) -> int:
        """Copies of the model."""
        return max(1, self.world_size // (self.tensor * self.pipeline))  # 0 is a problem that `config.check` reports

    def place(self, rank: int) -> Place:
        rest, tensor = divmod(rank, self.tensor)
        pipeline, data = divmod(rest, self.copies)
        return Place(data, tensor, pipeline)

    def speakers(self) -> tuple[int, ...]:
        """By copy, the rank whose answer is taken: the first one of the last stage, where outputs and losses are.

        >>> Grid(world_size=8, tensor=2, pipeline=2).speakers()
        (4, 6)
        """
        first = (self.pipeline - 1) * self.copies
        return tuple((first + data) * self.tensor for data in range(self.copies))


def actor_grid(config: Config, world_size: int | None = None) -> Grid:
    """Of the actor over its ranks among `world_size`; the run's, where none is given."""
    return _grid(config, "actor", config.actor_rollout_ref.actor.strategy, world_size)


def reference_grid(config: Config, world_size: int | None = None) -> Grid:
    """On the actor's engine."""
    return _grid(config, "ref", config.actor_rollout_ref.actor.strategy, world_size)


def critic_grid(config: Config, world_size: int | None = None) -> Grid:
    return _grid(config, "critic", config.critic.strategy, world_size)


def _grid(config: Config, role: str, strategy: str, world_size: int | None) -> Grid:
    ranks = len(ranks_of(config, role, world_size))
    if strategy != "megatron":
        return Grid(ranks)
    megatron = config.actor_rollout_ref.actor.megatron
    return Grid(ranks, megatron.tensor_model_parallel_size, megatron.pipeline_model_parallel_size)
