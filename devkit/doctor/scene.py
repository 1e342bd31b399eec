"""What the rules look at: this machine or a cluster, as the probes saw it. Nothing here looks at anything itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from devkit.doctor.onnode.facts import Collective, NodeFacts, Pair
from devkit.doctor.plan import Demand, Plan


@dataclass(frozen=True)
class Node:
    """A node of the cluster, or this machine where there is none."""

    node_id: str
    ip: str
    hostname: str
    facts: NodeFacts | None  # None: it did not answer, or is dead
    head: bool = False
    alive: bool = True
    cpus: float = 0.0  # as Ray counts them
    gpus: float = 0.0
    free_cpus: float = 0.0
    free_gpus: float = 0.0
    store_used: int = 0  # bytes of Ray's object store
    store_total: int = 0  # 0: not known
    spilled: int = 0  # bytes that went from there to the disk since Ray was started
    problem: str = ""  # why there are no facts
    unacknowledged: int = 0  # how often what the survey sends there was sent again, over a connection that is open
    death: str = ""  # why it is dead, by Ray
    clock_offset: float | None = None  # seconds ahead of the head's clock
    clock_within: float = 0.0  # the reading may be off by this
    from_here: str | None = None  # why this machine can't connect to it; empty: it can; None: not tried


@dataclass(frozen=True)
class Scene:
    """Everything that was seen."""

    nodes: tuple[Node, ...]
    pairs: tuple[Pair, ...] = ()
    collectives: tuple[Collective, ...] = ()
    gcs_address: str = ""  # empty: no cluster
    unreachable: str = ""  # why the cluster that was named can't be looked at
    unreachable_hint: str = ""
    demands: tuple[Demand, ...] = ()
    plans: tuple[Plan, ...] = ()
    gaps: tuple[str, ...] = field(default=())  # what of the command is not known

    @cached_property
    def seen(self) -> tuple[tuple[str, NodeFacts], ...]:
        """The nodes that answered: name and facts."""
        return tuple((self.name(node.node_id), node.facts) for node in self.nodes if node.facts is not None)

    @cached_property
    def machines(self) -> int:
        return len({facts.machine for _, facts in self.seen})

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """What people call each node: its host name where that tells it from the others, else more."""
        forms: tuple[Callable[[Node], str], ...] = (
            lambda node: node.hostname or node.ip,
            lambda node: node.ip,
            lambda node: f"{node.hostname or node.ip}/{node.node_id[:6]}",
        )
        living = [node for node in self.nodes if node.alive]
        form = next((f for f in forms if len({f(node) for node in living}) == len(living)), forms[-1])
        return {node.node_id: form(node) for node in self.nodes}

    def name(self, node_id: str) -> str:
        return self._names.get(node_id, node_id[:8])

    def machine_of(self, node_id: str) -> str:
        return next((node.facts.machine for node in self.nodes if node.node_id == node_id and node.facts), node_id)

    def share_a_machine(self, one: str, other: str) -> bool:
        return self.machine_of(one) == self.machine_of(other)

    def where(self, holds: Callable[[NodeFacts], bool]) -> tuple[str, ...]:
        """The names of the nodes of which this holds."""
        return tuple(name for name, facts in self.seen if holds(facts))

    def by_value(self, value: Callable[[NodeFacts], str]) -> dict[str, tuple[str, ...]]:
        """Each value and the nodes that have it."""
        found: dict[str, tuple[str, ...]] = {}
        for name, facts in self.seen:
            found[value(facts)] = (*found.get(value(facts), ()), name)
        return found


def speed(mb_per_s: float) -> str:
    """Megabytes a second, to three digits or to the whole one.

    >>> speed(2.375), speed(200.0), speed(43161.2)
    ('2.38', '200', '43161')
    """
    return f"{mb_per_s:.3g}" if mb_per_s < 1000 else f"{mb_per_s:.0f}"


def names(nodes: Iterable[str], most: int = 6) -> str:
    """
    >>> names(["a", "b"]), names("abcdefgh", most=3)
    ('a, b', 'a, b, c and 5 more')
    """
    every = list(nodes)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest


def told(values: Mapping[str, tuple[str, ...]], nothing: str = "none") -> str:
    """Values and who has them: `2.6.0 on h0, h1; 2.5.1 on h2`."""
    return "; ".join(f"{value or nothing} on {names(where)}" for value, where in values.items())
