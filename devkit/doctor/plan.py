"""Where the ranks of a training command would go on the nodes that there are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class Demand:
    """What a training command asks for."""

    command: str  # the module, as in trainer.main_ppo
    place: str  # file:line
    nodes: int
    per_node: int  # ranks, one per GPU, or per CPU slot where `gpus` is False
    gpus: bool
    cpus_per_rank: float = 1.0
    extra_cpus: float = 0.0  # of the driver's own task
    tensor_parallel: int = 1  # ranks that hold one rollout engine together
    engine: str = ""  # of the rollout; empty: not said
    generating: tuple[int, ...] = ()  # the ranks that have an engine; empty: all of them
    retriever: str = ""  # URL of one that runs; empty: none is needed
    topk: int = 3  # passages for a query

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    @property
    def engine_ranks(self) -> tuple[int, ...]:
        return self.generating or tuple(range(self.ranks))


@dataclass(frozen=True)
class Room:
    """What a node has free."""

    name: str
    gpus: float
    cpus: float
    all_gpus: float
    all_cpus: float


@dataclass(frozen=True)
class Placed:
    """A node of the run: which node of the cluster it is, which ranks go there, and what it lacks."""

    number: int  # from 1
    node: str  # empty: there is no such node
    first_rank: int
    ranks: int
    gpus: float  # free there
    cpus: float
    all_gpus: float
    all_cpus: float
    gpus_short: int = 0
    cpus_short: int = 0
    groups: tuple[str, ...] = ()  # tensor-parallel, as ranks: "0-3"; what goes on elsewhere ends in "..."

    @property
    def is_short(self) -> bool:
        return not self.node or self.gpus_short > 0 or self.cpus_short > 0


@dataclass(frozen=True)
class Plan:
    """A demand on the nodes that there are."""

    demand: Demand
    nodes: tuple[Placed, ...]

    @property
    def fits(self) -> bool:
        return not any(node.is_short for node in self.nodes)


def place(demand: Demand, rooms: Sequence[Room]) -> Plan:
    """Each node of the run on the node that lacks least for it: Ray gives a share whole, or not at all.

    >>> demand = Demand("verl.trainer.main_ppo", "run.sh:3", nodes=2, per_node=2, gpus=True, tensor_parallel=2)
    >>> plan = place(demand, [Room("a", 2, 8, 2, 8), Room("b", 1, 8, 2, 8)])
    >>> [(node.node, node.groups, node.gpus_short) for node in plan.nodes]
    [('a', ('0-1',), 0), ('b', ('2-3',), 1)]
    """
    slots = sorted(rooms, key=lambda room: _shortage(demand, room, first=False))
    placed = []
    for index in range(demand.nodes):
        first = index * demand.per_node
        room = slots[index] if index < len(slots) else Room("", 0, 0, 0, 0)
        gpus_short, cpus_short = _shortage(demand, room, first=index == 0)
        placed.append(
            Placed(
                number=index + 1,
                node=room.name,
                first_rank=first,
                ranks=demand.per_node,
                gpus=room.gpus,
                cpus=room.cpus,
                all_gpus=room.all_gpus,
                all_cpus=room.all_cpus,
                gpus_short=gpus_short,
                cpus_short=cpus_short,
                groups=_groups(demand, first),
            )
        )
    return Plan(demand, tuple(placed))


def _shortage(demand: Demand, room: Room, *, first: bool) -> tuple[int, int]:
    """GPUs and CPUs that the node lacks for its share; the first one also runs the driver's task."""
    gpus = demand.per_node - int(room.gpus) if demand.gpus else 0
    cpus = demand.per_node * demand.cpus_per_rank + (demand.extra_cpus if first else 0.0) - room.cpus
    return max(0, gpus), max(0, ceil(cpus))


def _groups(demand: Demand, first: int) -> tuple[str, ...]:
    """Those that have a rank on the node of rank `first`."""
    size, ranks = demand.tensor_parallel, demand.engine_ranks
    if size <= 1 or len(ranks) % size:
        return ()
    here = set(range(first, first + demand.per_node))
    engines = [ranks[start : start + size] for start in range(0, len(ranks), size)]
    return tuple(_named(engine) + "..." * (not here.issuperset(engine)) for engine in engines if here & set(engine))


def _named(ranks: Sequence[int]) -> str:
    """
    >>> _named((4, 5, 6)), _named((1, 4))
    ('4-6', '1,4')
    """
    together = ranks[-1] - ranks[0] == len(ranks) - 1
    return f"{ranks[0]}-{ranks[-1]}" if together else ",".join(map(str, ranks))
