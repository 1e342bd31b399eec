"""`devkit doctor`: a command and a cluster -> a scene -> findings -> a record, printed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from devkit.console import emit, result
from devkit.debug.address import ClusterAddress, resolve
from devkit.debug.gcs import RefusedError
from devkit.doctor import cluster, here
from devkit.doctor.examine import examine
from devkit.doctor.plan import Room, place
from devkit.doctor.records import DoctorNode, DoctorRecord
from devkit.doctor.scene import Node, Scene
from devkit.doctor.training import Wanted, wanted, without_gpus
from devkit.doctor.view import lines
from devkit.errors import UnreachableError, UsageError

FIND_S = 5.0  # for the cluster to be found
LEAST_S = 3.0
TABLE_WIDTH = 200  # characters
Retrievers = tuple[tuple[str, int], ...]  # URL, passages for a query


@dataclass(frozen=True)
class DoctorOptions:
    """What `devkit doctor` was asked for."""

    command: tuple[str, ...] = ()  # a training command, or a launch script
    address: str | None = None
    here: bool = False  # this machine alone, whatever runs on it
    timeout: float = 30.0  # seconds for all nodes together
    collective: bool = True
    json: bool = False


def main(options: DoctorOptions) -> int:
    """The exit code: 0 no error, 1 errors, 3 the cluster could not be reached; wrong usage is raised."""
    record = doctor(options)
    if options.json:
        emit(record.to_json())
    else:
        from rich.text import Text

        page = result()
        width = page.width if page.is_terminal else None
        page.width = max(page.width, TABLE_WIDTH)  # a table that is cut tells nothing
        for line in lines(record, width):
            page.print(line, width=width if isinstance(line, Text) else None, soft_wrap=True)
    return record.exit_code


def doctor(options: DoctorOptions) -> DoctorRecord:
    """Everything that there is to see and to say."""
    if options.timeout < LEAST_S:
        raise UsageError(f"--timeout is {options.timeout:g}", hint=f"importing torch alone takes {LEAST_S:g} s")
    if options.here and options.address:
        raise UsageError("--here and --address together", hint="--here checks this machine, --address checks a cluster")
    begun = time.monotonic()
    asked = wanted(options.command)
    retrievers = tuple(dict.fromkeys((d.retriever, d.topk) for d in asked.demands if d.retriever))
    scene = _with_command(_look(options, retrievers), asked)
    findings = examine(scene)
    return DoctorRecord(
        gcs_address=scene.gcs_address,
        seconds=time.monotonic() - begun,
        nodes=tuple(_shown(scene, node) for node in scene.nodes),
        pairs=scene.pairs,
        collectives=scene.collectives,
        plans=scene.plans,
        findings=findings,
        is_unreachable=bool(scene.unreachable),
    )


def _look(options: DoctorOptions, retrievers: Retrievers) -> Scene:
    if options.here:
        return _alone(options, retrievers)
    try:
        found = resolve(options.address, timeout=FIND_S)
    except RefusedError as error:
        return _alone(options, retrievers, error)
    except UnreachableError as error:
        return _alone(options, retrievers, error if _is_named(options) else None)
    try:
        seen = cluster.look(found, options.timeout, collective=options.collective, retrievers=retrievers)
    except UnreachableError as error:
        return _alone(options, retrievers, error)
    return Scene(seen.nodes, seen.pairs, seen.collectives, gcs_address=_address(found))


def _is_named(options: DoctorOptions) -> bool:
    """Whether somebody said which cluster; else there just is none."""
    return any((options.address, os.environ.get("RAY_ADDRESS"), os.environ.get("RAY_API_SERVER_ADDRESS")))


def _address(found: ClusterAddress) -> str:
    return found.gcs_address or found.dashboard_url


def _alone(options: DoctorOptions, retrievers: Retrievers, error: UnreachableError | None = None) -> Scene:
    free = not options.here and error is None
    node, collectives = here.look(options.timeout, collective=options.collective, alone=free, retrievers=retrievers)
    told = (error.message, error.hint) if error else ("", "")
    return Scene((node,), collectives=collectives, unreachable=told[0], unreachable_hint=told[1])


def _with_command(scene: Scene, asked: Wanted) -> Scene:
    living = [node for node in scene.nodes if node.alive]
    any_gpus = any(node.gpus for node in living)
    demands = tuple(without_gpus(demand, any_gpus=any_gpus) for demand in asked.demands)
    rooms = [_room(scene, node) for node in living if node.facts is not None]
    plans = tuple(place(demand, rooms) for demand in demands)
    return replace(scene, demands=demands, plans=plans, gaps=asked.gaps)


def _room(scene: Scene, node: Node) -> Room:
    return Room(scene.name(node.node_id), node.free_gpus, node.free_cpus, node.gpus, node.cpus)


def _shown(scene: Scene, node: Node) -> DoctorNode:
    return DoctorNode(
        node_id=node.node_id,
        name=scene.name(node.node_id),
        ip=node.ip,
        head=node.head,
        alive=node.alive,
        answered=node.facts is not None,
        cpus=node.cpus,
        gpus=node.gpus,
        free_cpus=node.free_cpus,
        free_gpus=node.free_gpus,
        clock_offset=node.clock_offset,
        facts=node.facts,
    )
