"""Where the ranks go: what a run asks of the cluster's nodes and, when they do not have it, which node lacks how much.

`shortage` is pure; what Ray knows of nodes, placement groups and actors is read by `rooms`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from trainer.errors import DeadlineError

NOTE_S = 15.0  # a wait that takes longer says what it is for
SHOWN = 4  # nodes in a message, those that lack the least first


@dataclass(frozen=True)
class Demand:
    """`nodes` times `ranks` ranks on one node, each with the resources of `bundle`."""

    nodes: int
    ranks: int
    bundle: Mapping[str, float]

    @property
    def per_node(self) -> dict[str, float]:
        return {kind: amount * self.ranks for kind, amount in self.bundle.items()}

    def __str__(self) -> str:
        each = " and ".join(f"{amount:g} free {kind}s" for kind, amount in self.per_node.items())
        return f"{self.nodes} node(s) with {each} each"


@dataclass(frozen=True)
class Room:
    """What a living node has, what of it is free, and who holds the rest, as far as Ray knows."""

    name: str
    total: Mapping[str, float]
    free: Mapping[str, float]
    holders: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # a name -> what it holds

    def lacks(self, demand: Demand) -> dict[str, float]:
        missing = {kind: need - self.free.get(kind, 0.0) for kind, need in demand.per_node.items()}
        return {kind: amount for kind, amount in missing.items() if amount > 0}


def place(demand: Demand, timeout_s: float, note: Callable[[str], None]) -> list[PlacementGroup]:
    """One group per node, whose ranks stay together; `note` is told what a long wait is for.

    Raises DeadlineError that says which node lacks what.
    """
    groups = [
        placement_group([dict(demand.bundle)] * demand.ranks, strategy="STRICT_PACK") for _ in range(demand.nodes)
    ]
    try:
        missing = _wait(groups, demand, timeout_s, note)
        if missing:
            raise DeadlineError(
                f"{missing} of {demand} were not found within {timeout_s:.0f} s: {shortage(demand, rooms())}",
                hint="add nodes, free what is in use, or lower trainer.nnodes or trainer.n_gpus_per_node; "
                "trainer.ray_wait_register_center_timeout sets how long to wait",
            )
    except BaseException:  # whatever it is: a group that comes late would hold its place for ever
        for group in groups:
            remove_placement_group(group)
        raise
    return groups


def _wait(groups: Sequence[PlacementGroup], demand: Demand, timeout_s: float, note: Callable[[str], None]) -> int:
    """How many groups have no place at the end. After NOTE_S it says what is missing."""
    began, ready = time.monotonic(), [group.ready() for group in groups]
    done, _ = ray.wait(ready, num_returns=len(ready), timeout=min(NOTE_S, timeout_s))
    if len(done) < len(ready) and timeout_s > NOTE_S:
        missing = len(ready) - len(done)
        note(f"waiting for {missing} of {demand}: {shortage(demand, rooms())}")
        left = max(0.0, began + timeout_s - time.monotonic())
        done, _ = ray.wait(ready, num_returns=len(ready), timeout=left)
    return len(ready) - len(done)


def shortage(demand: Demand, found: Sequence[Room]) -> str:
    """What each node lacks for the ranks of one node more, on one line.

    >>> shortage(Demand(2, 4, {"GPU": 1}), [Room("10.0.0.1", {"GPU": 8}, {"GPU": 3}, {"actor a": {"GPU": 5}})])
    'the cluster has 1 node(s), 1 short; 10.0.0.1 has 3 of 8 GPUs free, 1 short (actor a holds 5)'
    """
    parts = []
    if len(found) < demand.nodes:
        parts.append(f"the cluster has {len(found)} node(s), {demand.nodes - len(found)} short")
    lacking = sorted((sum(lack.values()), room.name, room) for room in found if (lack := room.lacks(demand)))
    parts += [_describe(room, demand) for _, _, room in lacking[:SHOWN]]
    if len(lacking) > SHOWN:
        parts.append(f"{len(lacking) - SHOWN} more node(s) lack more")
    enough = [room.name for room in found if not room.lacks(demand)]
    if enough:
        parts.append(f"enough is free on {', '.join(enough[:SHOWN])}")
    return "; ".join(parts)


def _describe(room: Room, demand: Demand) -> str:
    kinds = []
    for kind, lack in room.lacks(demand).items():
        held = [f"{name} holds {has[kind]:g}" for name, has in room.holders.items() if has.get(kind)]
        who = f" ({', '.join(held[:SHOWN])}{', ...' if len(held) > SHOWN else ''})" if held else ""
        kinds.append(f"{room.free.get(kind, 0):g} of {room.total.get(kind, 0):g} {kind}s free, {lack:g} short{who}")
    return f"{room.name} has {' and '.join(kinds)}"


def rooms() -> list[Room]:
    """The living nodes of the cluster, by address."""
    from ray._private.state import available_resources_per_node  # the public call adds all nodes up

    free, holders = available_resources_per_node(), _holders()
    nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: str(node["NodeManagerAddress"]))
    names = node_names(nodes)
    return [
        Room(names[node["NodeID"]], node["Resources"], free.get(node["NodeID"], {}), holders.get(node["NodeID"], {}))
        for node in nodes
    ]


def node_names(nodes: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """By node id, the address; where several nodes share one (containers, simulated nodes), with the id's beginning."""
    shared = Counter(node["NodeManagerAddress"] for node in nodes)
    return {
        node["NodeID"]: ip if shared[ip := node["NodeManagerAddress"]] == 1 else f"{ip} (node {node['NodeID'][:8]})"
        for node in nodes
    }


def _holders() -> dict[str, dict[str, dict[str, float]]]:
    """By node id and name, what placement groups and actors outside of any hold."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for node, name, held in (*_groups(), *_actors()):
        mine = found.setdefault(node, {}).setdefault(name, {})
        for kind, amount in held.items():
            mine[kind] = mine.get(kind, 0.0) + amount
    return found


def _groups() -> Iterator[tuple[str, str, Mapping[str, float]]]:
    for group in placement_group_table().values():
        if group["state"] in ("CREATED", "RESCHEDULING"):
            name = f"placement group {group['name'] or group['placement_group_id'][:8]}"
            for index, bundle in group["bundles"].items():
                yield group["bundles_to_node_id"].get(index, ""), name, bundle


def _actors() -> Iterator[tuple[str, str, Mapping[str, float]]]:
    """From the head's table of actors: Ray's public list of them needs the dashboard, which a run may be without."""
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import ActorTableData  # type: ignore[attr-defined]

    for raw in state._connect_and_get_accessor().get_actor_table(None, "ALIVE"):
        actor = ActorTableData.FromString(raw)
        if not actor.placement_group_id:
            name = f"actor {actor.name or actor.class_name} of job {actor.job_id.hex()}"
            yield actor.address.node_id.hex(), name, dict(actor.required_resources)
