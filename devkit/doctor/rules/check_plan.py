"""Rules about the training command on the nodes that there are."""

from __future__ import annotations

from collections.abc import Iterator

from devkit.doctor.plan import Placed, Plan
from devkit.doctor.records import Finding
from devkit.doctor.scene import Scene

_WAITS = "Ray waits for resources it can't provide: the run hangs, or times out"


def check(scene: Scene) -> Iterator[Finding]:
    for gap in scene.gaps:
        what = "the resources the command needs are unknown"
        why = "so it is unknown whether it fits"
        yield Finding(
            "plan-unknown", (), f"{what}: {gap}", why, "run devkit doctor -- with the values filled in", (gap,)
        )
    for plan in scene.plans:
        for node in plan.nodes:
            yield from _short(plan, node)
        yield from _tensor_parallel(plan)


def _short(plan: Plan, node: Placed) -> Iterator[Finding]:
    demand = plan.demand
    kind = "GPU" if demand.gpus else "CPU"
    asks = f"{demand.place} asks for {demand.nodes} {_many('node', demand.nodes)} with {demand.per_node} {kind}s each"
    lower = f"start more nodes, or lower trainer.nnodes ({demand.nodes}) or trainer.n_gpus_per_node ({demand.per_node})"
    if not node.node:
        there = sum(1 for other in plan.nodes if other.node)
        verb = "is" if there == 1 else "are"
        what = f"node {node.number} is missing: the run asks for {demand.nodes}, and there {verb} {there}"
        yield Finding("plan-short", (), what, _WAITS, lower, (asks,))
        return
    short = [(node.gpus_short, "GPU"), (node.cpus_short, "CPU")]
    lacking = [f"{count} {_many(what, count)}" for count, what in short if count]
    if lacking:
        what = f"node {node.number} is {' and '.join(lacking)} short: {node.node}"
        free = (
            f"{node.node} has {node.gpus:g} of {node.all_gpus:g} GPUs and {node.cpus:g} of {node.all_cpus:g} CPUs free"
        )
        held = node.gpus < node.all_gpus or node.cpus < node.all_cpus
        fix = f"devkit jobs lists what holds the rest; or {lower}" if held else lower
        yield Finding("plan-short", (node.node,), what, _WAITS, fix, (asks, free))


def _many(what: str, count: int) -> str:
    return what if count == 1 else f"{what}s"


def _tensor_parallel(plan: Plan) -> Iterator[Finding]:
    demand = plan.demand
    size, ranks = demand.tensor_parallel, len(demand.engine_ranks)
    evidence = (f"{demand.place}: tensor_model_parallel_size={size}, {demand.nodes} x {demand.per_node} GPUs",)
    if size > 1 and ranks % size:
        what = f"{ranks} ranks can't be split into tensor-parallel groups of {size}"
        why = "the rollout engines can't be spread evenly, and the run stops"
        yield Finding("plan-tensor-parallel", (), what, why, f"choose a divisor of {ranks}", evidence)
    elif any(group.endswith("...") for node in plan.nodes for group in node.groups):
        what = f"tensor-parallel groups of {size} span nodes"
        why = "only some engines support that, and every layer waits for the network"
        fix = f"set tensor_model_parallel_size to a divisor of {demand.per_node}"
        yield Finding("plan-tensor-parallel", (), what, why, fix, evidence, "note")
