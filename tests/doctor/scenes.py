"""Healthy nodes to begin with, and what tests change in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from devkit.doctor.onnode.facts import (
    Collective,
    Disk,
    Gpu,
    Interface,
    Limits,
    Lookup,
    Network,
    NodeFacts,
    Pair,
    Software,
    TokenFacts,
    Tools,
)
from devkit.doctor.plan import Demand, Room, place
from devkit.doctor.scene import Node, Scene

GIB = 1 << 30
PACKAGES = {"ray": "2.60.0", "torch": "2.6.0", "transformers": "5.0.0", "debugpy": "1.8.0", "pip": "25.0.1"}
H200 = Gpu(0, "NVIDIA H200", 143771, 4, "GPU-0")
PARTS = ("software", "tools", "devices", "limits", "network", "token")


def facts(number: int, **changes: Any) -> NodeFacts:
    """A healthy node without GPUs. A change of a part is a dictionary of its fields."""
    address = f"10.77.0.{number + 1}"
    shared = Disk("HF_HOME", "/shared/hf", 1000 * GIB, 500 * GIB, "nfs4", identity="7-1")
    whole = NodeFacts(
        machine=f"boot-{number}",
        software=Software("3.11.7", "/venv/bin/python", PACKAGES),
        tools=Tools(gcc="12.2.0", cargo="/usr/bin/cargo"),
        limits=Limits(65535, 65535, 64 * GIB, 60 * GIB, 256 * GIB, 200 * GIB, 16),
        disks=(Disk("Ray's files", "/tmp", 1000 * GIB, 400 * GIB, "ext4"), shared),
        network=Network(
            f"h{number}",
            (address,),
            (Interface("lo", True, True, ("127.0.0.1",)), Interface("eth0", True, False, (address,))),
            (Lookup(address, 0.001, ""),),
            reached={"the GCS": "", "the dashboard": ""},
        ),
        token=TokenFacts("token", "RAY_AUTH_TOKEN", "aa"),
        environment={"RAY_DEBUG": "1", "RAY_DEBUG_POST_MORTEM": "1"},
    )
    parts = {name: replace(getattr(whole, name), **changes.pop(name)) for name in PARTS if name in changes}
    return replace(whole, **parts, **changes)


def with_gpus(count: int = 2, **changes: Any) -> dict[str, Any]:
    """The parts of a node with GPUs and all that belongs to them."""
    gpus = tuple(replace(H200, index=number, uuid=f"GPU-{number}") for number in range(count))
    devices = {"kind": "nvidia", "gpus": gpus, "driver": "570.86", "cuda": "12.8", **changes.pop("devices", {})}
    packages = {**PACKAGES, "flash-attn": "2.7.4", **changes.pop("packages", {})}
    software = {"torch_cuda": "12.4", "packages": packages, **changes.pop("software", {})}
    return {"devices": devices, "software": software, **changes}


def node(number: int, changes: dict[str, Any] | None = None, **more: Any) -> Node:
    seen = facts(number, **(changes or {}))
    base = Node(
        f"node{number}aaaa",
        f"10.77.0.{number + 1}",
        f"h{number}",
        seen,
        head=number == 0,
        cpus=16,
        gpus=len(seen.devices.gpus),
        free_cpus=16,
        free_gpus=len(seen.devices.gpus),
        clock_offset=0.0,
        clock_within=0.001,
        from_here="",
    )
    return replace(base, **more)


def pair(source: int, target: int, **changes: Any) -> Pair:
    base = Pair(f"node{source}aaaa", f"node{target}aaaa", f"10.77.0.{target + 1}", "", 0.1, 1000.0, 4000, 3)
    return replace(base, **changes)


def all_pairs(count: int, *changed: Pair) -> tuple[Pair, ...]:
    by_ends = {(each.source, each.target): each for each in changed}
    usual = [pair(a, b) for a in range(count) for b in range(count) if a != b]
    return tuple(by_ends.get((each.source, each.target), each) for each in usual)


def gloo(status: str = "done", **changes: Any) -> Collective:
    return replace(Collective("gloo", 2, status, init_s=0.4, mb_per_s=900.0), **changes)


def cluster(*nodes: Node, **changes: Any) -> Scene:
    """A cluster of these nodes, two healthy ones by default."""
    living = nodes or (node(0), node(1))
    base = Scene(living, all_pairs(len(living)), (gloo(),), gcs_address="10.77.0.1:6379")
    return replace(base, **changes)


def changed(*changes: dict[str, Any], everywhere: dict[str, Any] | None = None) -> Scene:
    """A cluster whose nodes have these changes, one dictionary each; `everywhere` for all of two nodes."""
    parts = changes if everywhere is None else (everywhere, everywhere)
    return cluster(*(node(number, dict(each)) for number, each in enumerate(parts)))


def alone(changes: dict[str, Any] | None = None, **more: Any) -> Scene:
    """One machine without a cluster."""
    one = replace(node(0, changes), node_id="")
    return replace(Scene((one,), (), (gloo(),)), **more)


def planned(demand: Demand, *rooms: Room) -> Scene:
    return cluster(demands=(demand,), plans=(place(demand, rooms),))


def demand(**changes: Any) -> Demand:
    return replace(Demand("verl.trainer.main_ppo", "run.sh:3", 2, 8, True, tensor_parallel=4), **changes)
