"""Which ranks share an engine, and what of it runs on which node. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where a rank lives."""

    rank: int
    node_id: str  # Ray's
    node_ip: str
    gpu: str  # as CUDA_VISIBLE_DEVICES has it; "" without one


@dataclass(frozen=True)
class Part:
    """What of an engine runs on one node: one process tree, with a GPU for each of these ranks."""

    engine: int
    node_rank: int  # 0: the part that is spoken to
    places: tuple[Place, ...]

    @property
    def owner(self) -> int:
        """The rank that starts it, and with which it ends."""
        return self.places[0].rank

    @property
    def gpus(self) -> str:
        return ",".join(place.gpu for place in self.places)


@dataclass(frozen=True)
class Group:
    """One engine: the ranks whose GPUs it uses, in the order of its tensor-parallel ranks."""

    engine: int
    parts: tuple[Part, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(place.rank for part in self.parts for place in part.places)

    @property
    def leader(self) -> int:
        """The rank that speaks to the engine."""
        return self.ranks[0]

    def part_of(self, rank: int) -> Part:
        """The part that runs where `rank` does."""
        return next(part for part in self.parts if rank in [place.rank for place in part.places])

    def __str__(self) -> str:
        return f"engine {self.engine}"


def form_groups(places: Sequence[Place], size: int) -> tuple[Group, ...]:
    """Ranks `g * size ... (g + 1) * size - 1` form group g. `places` are in the order of ranks.

    Raises ValueError if `size` doesn't divide the ranks, or cuts through a node so that its parts differ in size:
    an engine wants the same number of GPUs from each of its nodes.
    """
    if len(places) % size:
        raise ValueError(f"{len(places)} ranks are no groups of {size}")
    groups = []
    for engine, start in enumerate(range(0, len(places), size)):
        by_node: dict[str, list[Place]] = {}
        for place in places[start : start + size]:
            by_node.setdefault(place.node_id, []).append(place)
        counts = {len(of_node) for of_node in by_node.values()}
        if len(counts) > 1:
            raise ValueError(
                f"engine {engine} would have "
                + " and ".join(f"{len(of_node)} of node {of_node[0].node_ip}" for of_node in by_node.values())
            )
        parts = [Part(engine, rank, tuple(of_node)) for rank, of_node in enumerate(by_node.values())]
        groups.append(Group(engine, tuple(parts)))
    return tuple(groups)
