"""For each rule: facts in which it must speak, with its sentence, and neighbouring ones in which it must not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from devkit.doctor.onnode.facts import Disk, GpuProcess, Interface, Lookup, Port, RetrieverFacts
from devkit.doctor.plan import Room
from devkit.doctor.records import Severity
from devkit.doctor.scene import Scene
from tests.doctor.scenes import (
    GIB,
    H200,
    PACKAGES,
    all_pairs,
    alone,
    changed,
    cluster,
    demand,
    gloo,
    node,
    pair,
    planned,
    with_gpus,
)


@dataclass(frozen=True)
class Case:
    rule: str
    severity: Severity
    what: str  # the whole first sentence
    sick: Scene
    sound: Scene  # as near as it can be


def packages(**versions: str) -> dict[str, Any]:
    given = {name.replace("_", "-"): version for name, version in versions.items()}
    return {"software": {"packages": {name: v for name, v in {**PACKAGES, **given}.items() if v}}}


def env(**variables: str) -> dict[str, Any]:
    return {"environment": {"RAY_DEBUG": "1", **variables}}


def disk(role: str, **changes: Any) -> dict[str, Any]:
    base = Disk(role, "/data", 1000 * GIB, 400 * GIB, "ext4", identity="1-1")
    return {"disks": (replace(base, **changes),)}


def links(name: str = "eth0", *, up: bool = True, address: str = "10.77.0.1", more: str = "") -> dict[str, Any]:
    extra = (Interface(more, True, False, ("172.17.0.1",)),) if more else ()
    own = Interface(name, up, False, (address,) if address else ())
    return {"interfaces": (Interface("lo", True, True, ("127.0.0.1",)), own, *extra)}


NCCL = replace(gloo(), backend="nccl", transport="NET/Socket", mb_per_s=2500.0)
IB = {"infiniband": ("mlx5_0/1 InfiniBand 400 Gb/sec",)}
SGLANG = demand(nodes=1, per_node=1, engine="sglang", tensor_parallel=1)
TAKEN = {"gpus": (replace(H200, used_mib=70000),), "processes": (GpuProcess(41, "GPU-0", 69000, "python old.py"),)}

CLUSTER = (
    Case(
        "cluster-unreachable",
        "error",
        "no Ray answers at 10.9.9.9:6379: no answer",
        alone(unreachable="no Ray answers at 10.9.9.9:6379: no answer", unreachable_hint="is its head running?"),
        alone(),
    ),
    Case(
        "node-silent",
        "error",
        "node h1 (10.77.0.2) did not answer",
        cluster(node(0), node(1, facts=None, problem="no answer within 10 s")),
        cluster(),
    ),
    Case(
        "node-silent",
        "error",
        "data sent to node h1 (10.77.0.2) does not arrive, although connections to it open",
        cluster(node(0), node(1, facts=None, problem="no answer within 10 s", unacknowledged=5, from_here="")),
        cluster(),
    ),
    Case(
        "node-dead",
        "note",
        "node h2 (10.77.0.3) is dead",
        cluster(node(0), node(1), node(2, facts=None, alive=False, death="missed heartbeats")),
        cluster(node(0), node(1), node(2)),
    ),
    Case(
        "not-looked-at",
        "note",
        "devices of h1 could not be checked",
        changed({}, {"unseen": {"devices": "took too long"}}),
        changed({}, {"unseen": {}}),
    ),
    Case(
        "object-store",
        "warning",
        "the object store of h1 is full: 9.8 GiB of 10.0 GiB",
        cluster(node(0), node(1, store_used=98 * GIB // 10, store_total=10 * GIB)),
        cluster(node(0), node(1, store_used=9 * GIB, store_total=10 * GIB)),
    ),
    Case(
        "object-store",
        "note",
        "the object store of h1 has spilled",
        cluster(node(0), node(1, store_used=9 * GIB, store_total=10 * GIB, spilled=GIB)),
        cluster(node(0), node(1)),
    ),
    Case(
        "clock-skew",
        "error",
        "the clock of h2 is 3600.0 s ahead",
        cluster(node(0), node(1), node(2, clock_offset=3600.0)),
        cluster(node(0), node(1), node(2, clock_offset=1.9)),
    ),
    Case(
        "clock-skew",
        "warning",
        "the clock of h0 is 5.0 s behind",
        cluster(node(0, clock_offset=-5.0), node(1), node(2)),
        cluster(node(0, clock_offset=-5.0, clock_within=4.0), node(1), node(2)),  # the reading may be that wrong
    ),
    Case(
        "clock-skew",
        "warning",
        "the clocks of h0, h1 differ by 3.0 s",
        cluster(node(0), node(1, clock_offset=3.0)),
        cluster(node(0), node(1, clock_offset=3.0, clock_within=0.6)),
    ),
    Case(
        "clock-skew",
        "error",
        "the clocks of h0, h1 differ by 3600.0 s",  # of two, nobody knows which is wrong
        cluster(node(0), node(1, clock_offset=3600.0)),
        cluster(node(0), node(1, clock_offset=1.9)),
    ),
    Case(
        "token-differs",
        "error",
        "the nodes have 2 different tokens for Ray",
        changed({}, {"token": {"digest": "bb"}}),
        changed({}, {"token": {"source": "/root/.ray/auth_token"}}),
    ),
    Case(
        "token-file",
        "warning",
        "h0 has a token file, and h1 has no token",
        changed(
            {"token": {"mode": "", "source": "/root/.ray/auth_token", "file": "/root/.ray/auth_token"}},
            {"token": {"mode": "", "source": "", "digest": ""}},
        ),
        changed(
            {"token": {"mode": "disabled", "file": "/root/.ray/auth_token"}},
            {"token": {"mode": "disabled", "source": "", "digest": ""}},
        ),
    ),
    Case(
        "token-open",
        "warning",
        "other users on h0 can read the token in /root/.ray/auth_token",
        changed({"token": {"file": "/root/.ray/auth_token", "open_to": "644"}}, {}),
        changed({"token": {"file": "/root/.ray/auth_token"}}, {}),
    ),
    Case(
        "debugger-unreachable",
        "note",
        "this machine can't connect to h1",
        cluster(node(0), node(1, from_here="no answer within 2.5 s")),
        cluster(node(0), node(1, from_here=None)),
    ),
    Case(
        "ray-debug-leftover",
        "warning",
        "Ray's old debugger is enabled on h0, h1",
        changed(env(RAY_DEBUG="legacy"), {"ray_arguments": ("--ray-debugger-external=1",)}),
        changed(env(RAY_DEBUG="1"), env(RAY_DEBUG="1")),
    ),
    Case(
        "breakpoint-leftover",
        "warning",
        "PYTHONBREAKPOINT is set on h1",
        changed({}, env(PYTHONBREAKPOINT="0")),
        changed({}, env(PYTHONBREAKPOINT="")),
    ),
)

VERSIONS = (
    Case(
        "python-differs",
        "error",
        "Python differs between nodes: 3.11.7 on h0; 3.12.1 on h1",
        changed({}, {"software": {"python": "3.12.1"}}),
        changed({}, {"software": {"python": "3.11.7"}}),
    ),
    Case(
        "python-differs",
        "warning",
        "Python differs between nodes: 3.11.7 on h0; 3.11.9 on h1",
        changed({}, {"software": {"python": "3.11.9"}}),
        changed({}, {}),
    ),
    Case(
        "version-differs",
        "error",
        "torch differs between nodes: 2.6.0 on h0, h2; 2.5.1 on h1",
        changed({}, packages(torch="2.5.1"), {}),
        changed({}, packages(torch="2.6.0"), {}),
    ),
    Case(
        "version-differs",
        "warning",
        "debugpy differs between nodes: 1.8.0 on h0; 1.8.9 on h1",
        changed({}, packages(debugpy="1.8.9")),
        changed({}, packages(pip="23.2.1")),  # nobody trains with pip
    ),
    Case(
        "package-missing",
        "warning",
        "debugpy is missing on h1",
        changed({}, packages(debugpy="")),
        changed({}, packages(pip="")),
    ),
    Case(
        "package-missing",
        "error",
        "transformers is missing on h1",
        changed({}, packages(transformers="")),
        changed({}, {}),
    ),
    Case("package-absent", "error", "torch is not installed on h0", alone(packages(torch="")), alone()),
    Case(
        "package-absent",
        "error",
        "sglang is not installed on h0",
        alone(demands=(SGLANG,)),
        alone(packages(sglang="0.5.17"), demands=(SGLANG,)),
    ),
    Case("package-absent", "note", "debugpy is not installed on h0", alone(packages(debugpy="")), alone()),
    Case(
        "environment-differs",
        "warning",
        "NCCL_IB_DISABLE differs between nodes: not set on h0; 1 on h1",
        changed({}, {"environment": {"NCCL_IB_DISABLE": "1", "RAY_DEBUG": "1", "RAY_DEBUG_POST_MORTEM": "1"}}),
        changed({}, {"environment": {"NCCL_DEBUG": "INFO", "RAY_DEBUG": "1", "RAY_DEBUG_POST_MORTEM": "1"}}),
    ),
)

GPUS = (
    Case(
        "driver-broken",
        "error",
        "the GPU driver of h0 does not answer",
        alone({"devices": {"kind": "nvidia", "problem": "Driver/library version mismatch"}}),
        alone(with_gpus()),
    ),
    Case(
        "torch-without-cuda",
        "error",
        "torch on h0 can't use its 2 NVIDIA GPUs",
        alone(with_gpus(software={"torch_cuda": ""})),
        alone(with_gpus()),
    ),
    Case(
        "torch-without-cuda",
        "error",
        "torch on h0 can't use its 2 AMD GPUs",
        alone(with_gpus(devices={"kind": "amd"})),
        alone(with_gpus(devices={"kind": "amd"}, software={"torch_cuda": "", "torch_hip": "6.2"})),
    ),
    Case(
        "cuda-too-new",
        "error",
        "torch on h0 is built for CUDA 12.4, but its driver supports 11.8 at most",
        alone(with_gpus(devices={"cuda": "11.8"})),
        alone(with_gpus(devices={"cuda": "12.2"})),  # of the same generation: compatible
    ),
    Case(
        "gpu-count",
        "error",
        "Ray counts 8 GPUs on h0, but there are 2",
        cluster(node(0, with_gpus(), gpus=8), node(1, with_gpus())),
        cluster(node(0, with_gpus()), node(1, with_gpus())),
    ),
    Case(
        "gpu-count",
        "note",
        "Ray counts 1 of the 2 GPUs on h0",
        cluster(node(0, with_gpus(), gpus=1), node(1, with_gpus())),
        cluster(node(0, with_gpus(environment={"CUDA_VISIBLE_DEVICES": "0"}), gpus=1), node(1, with_gpus())),
    ),
    Case(
        "gpus-differ",
        "warning",
        "the GPUs differ between nodes: 2 x NVIDIA H200 on h0; 1 x NVIDIA H200 on h1",
        changed(with_gpus(2), with_gpus(1)),
        changed(with_gpus(2), {}),  # a head without GPUs is usual
    ),
    Case(
        "gpu-memory-taken",
        "warning",
        "68.4 GiB of 140.4 GiB of GPU 0 on h0 are taken",
        alone(with_gpus(devices=TAKEN)),
        alone(with_gpus(devices={"gpus": (replace(H200, used_mib=14000),)})),
    ),
    Case(
        "device-variables",
        "error",
        "ROCR_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES are both set on h0",
        alone(env(ROCR_VISIBLE_DEVICES="0,1", CUDA_VISIBLE_DEVICES="0,1")),
        alone(env(ROCR_VISIBLE_DEVICES="0,1")),
    ),
    Case(
        "device-variables",
        "error",
        "HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES differ on h0",
        alone(env(HIP_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="0,1")),
        alone(env(HIP_VISIBLE_DEVICES="0,1", CUDA_VISIBLE_DEVICES="0,1")),
    ),
    Case(
        "device-index",
        "error",
        "CUDA_VISIBLE_DEVICES on h0 names GPU 2, 3, but there are 2",
        alone(with_gpus(environment={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})),
        alone(with_gpus(environment={"CUDA_VISIBLE_DEVICES": "0,1"})),
    ),
)

SYSTEM = (
    Case(
        "shm-small",
        "warning",
        "/dev/shm on h0 has 64 MiB",
        alone({"limits": {"shm_total": 64 << 20, "shm_free": 64 << 20}}),
        alone({"limits": {"shm_total": GIB, "shm_free": GIB}}),
    ),
    Case(
        "shm-small",
        "error",
        "/dev/shm on h0 has 64 MiB",
        alone(with_gpus(limits={"shm_total": 64 << 20, "shm_free": 64 << 20})),
        alone(with_gpus(limits={"shm_total": 2 * GIB, "shm_free": GIB})),
    ),
    Case(
        "shm-full",
        "warning",
        "/dev/shm on h0 has 1.0 GiB of 64.0 GiB free",
        alone({"limits": {"shm_free": GIB}}),
        alone({"limits": {"shm_free": 7 * GIB}}),
    ),
    Case(
        "open-files",
        "warning",
        "a process on h0 may open only 1024 files",
        alone({"limits": {"open_files": 1024}}),
        alone({"limits": {"open_files": -1}}),
    ),
    Case(
        "disk-full",
        "warning",
        "the disk for home on h0 has 40.0 GiB of 1000.0 GiB free",
        alone(disk("home", free=40 * GIB)),
        alone(disk("home", free=60 * GIB)),
    ),
    Case(
        "disk-full",
        "error",
        "the disk for Ray's files on h0 has 10 MiB of 1000.0 GiB free",
        alone(disk("Ray's files", free=10 << 20)),
        alone(disk("Ray's files", total=10 * GIB, free=2 * GIB)),
    ),
    Case(
        "disk-refuses",
        "error",
        "HF_HOME on h0 can't be written: /data",
        alone(disk("HF_HOME", error="no permission to write there")),
        alone(disk("HF_HOME")),
    ),
    Case(
        "cache-not-shared",
        "note",
        "h0, h1 don't share HF_HOME",
        changed(disk("HF_HOME"), disk("HF_HOME", identity="9-9")),
        changed(disk("HF_HOME"), disk("HF_HOME")),
    ),
    Case(
        "cache-not-shared",
        "warning",
        "h0, h1 don't share HF_HOME",
        changed(disk("HF_HOME"), {**disk("HF_HOME", identity="9-9"), **env(HF_HUB_OFFLINE="1")}),
        changed({**disk("HF_HOME"), "machine": "one"}, {**disk("HF_HOME", identity="9-9"), "machine": "one"}),
    ),
    Case(
        "port-taken",
        "warning",
        "port 29500 on h0 (MASTER_PORT) is in use",
        alone({"network": {"ports": (Port(29500, "MASTER_PORT", "pid 7: python old.py"),)}}),
        alone({"network": {"ports": ()}}),
    ),
    Case(
        "port-taken",
        "note",
        "port 6379 on h0 (Ray's GCS) is in use",
        alone({"network": {"ports": (Port(6379, "Ray's GCS", ""),)}}),
        alone(),
    ),
)

NETWORK = (
    Case(
        "interface-missing",
        "error",
        "NCCL_SOCKET_IFNAME is ib0 on h0, which has no such interface",
        alone(env(NCCL_SOCKET_IFNAME="ib0")),
        alone(env(NCCL_SOCKET_IFNAME="eth")),  # NCCL takes prefixes
    ),
    Case(
        "interface-missing",
        "error",
        "GLOO_SOCKET_IFNAME is eth on h0, which has no such interface",
        alone(env(GLOO_SOCKET_IFNAME="eth")),
        alone(env(GLOO_SOCKET_IFNAME="eth0")),
    ),
    Case(
        "interface-down",
        "error",
        "GLOO_SOCKET_IFNAME is eth0 on h0, and eth0 there is down",
        alone({**env(GLOO_SOCKET_IFNAME="eth0"), "network": links(up=False)}),
        alone({**env(GLOO_SOCKET_IFNAME="eth0"), "network": links()}),
    ),
    Case(
        "interface-down",
        "error",
        "NCCL_SOCKET_IFNAME is =eth0 on h0, and eth0 there is up, without an address",
        alone({**env(NCCL_SOCKET_IFNAME="=eth0"), "network": links(address="")}),
        alone({**env(NCCL_SOCKET_IFNAME="^docker0"), "network": links()}),
    ),
    Case(
        "interface-loopback",
        "error",
        "GLOO_SOCKET_IFNAME is lo on h0, which other nodes can't reach",
        changed(env(GLOO_SOCKET_IFNAME="lo"), {}),
        alone(env(GLOO_SOCKET_IFNAME="lo")),
    ),
    Case(
        "docker-address",
        "error",
        "h0 is known by 172.17.0.1, the address of docker0",
        cluster(node(0, {"network": links(more="docker0")}, ip="172.17.0.1"), node(1)),
        cluster(node(0, {"network": links(more="docker0")}), node(1)),
    ),
    Case(
        "docker-address",
        "error",
        "h0 is known by 172.17.0.1, the address of docker0",
        changed({"network": {**links(more="docker0"), "hostname_addresses": ("172.17.0.1",)}}, {}),
        changed({"network": {**links(more="eth1"), "hostname_addresses": ("172.17.0.1",)}}, {}),
    ),
    Case(
        "hostname-loopback",
        "warning",
        "the name h0 of h0 resolves to 127.0.1.1 there",
        changed({"network": {"hostname_addresses": ("127.0.1.1",)}}, {}),
        alone({"network": {"hostname_addresses": ("127.0.1.1",)}}),
    ),
    Case(
        "slow-lookup",
        "warning",
        "reverse DNS lookups take 10.0 s on h1",
        changed({}, {"network": {"lookups": (Lookup("10.77.0.1", 10.01, ""),)}}),
        changed({}, {"network": {"lookups": (Lookup("10.77.0.1", 0.45, ""),)}}),
    ),
    Case(
        "slow-lookup",
        "warning",
        "reverse DNS lookups take over 8.5 s on h0",
        alone({"network": {"lookups": (Lookup("10.77.0.1", 8.5, "", finished=False),)}}),
        alone({"network": {"lookups": (Lookup("10.77.0.1", 0.5, "h0"),)}}),
    ),
    Case(
        "service-unreachable",
        "error",
        "the GCS can't be reached from h1",
        changed({}, {"network": {"reached": {"the GCS": "connection refused"}}}),
        changed({}, {"network": {"reached": {}}}),
    ),
    Case(
        "service-unreachable",
        "warning",
        "the dashboard can't be reached from h1",
        changed({}, {"network": {"reached": {"the dashboard": "no answer within 2.5 s"}}}),
        changed({}, {}),
    ),
)

SILENCE = "port 40001: no answer within 4 s"
LINKS = (
    Case(
        "pair-unreachable",
        "error",
        "h1 and h2 can't connect to each other",
        cluster(*map(node, range(3)), pairs=all_pairs(3, pair(1, 2, error=SILENCE), pair(2, 1, error=SILENCE))),
        cluster(*map(node, range(3))),
    ),
    Case(
        "pair-unreachable",
        "error",
        "h0 can't connect to h1",
        cluster(pairs=all_pairs(2, pair(0, 1, error=SILENCE))),
        cluster(),
    ),
    Case(
        "pair-unreachable",
        "error",
        "no other node can connect to h2 (10.77.0.3)",
        cluster(*map(node, range(3)), pairs=all_pairs(3, pair(0, 2, error=SILENCE), pair(1, 2, error=SILENCE))),
        cluster(*map(node, range(3))),
    ),
    Case(
        "pair-slow",
        "warning",
        "h0 to h1 carries 2.4 MB/s",
        cluster(pairs=all_pairs(2, pair(0, 1, mb_per_s=2.4))),
        cluster(pairs=all_pairs(2, pair(0, 1, mb_per_s=100.0))),
    ),
    Case(
        "pair-slow",
        "warning",
        "h1 to h2 carries 200 MB/s",
        cluster(*map(node, range(3)), pairs=all_pairs(3, pair(1, 2, mb_per_s=200.0))),
        cluster(*map(node, range(3)), pairs=all_pairs(3, pair(1, 2, mb_per_s=251.0))),
    ),
    Case(
        "pair-far",
        "warning",
        "a round trip from h0 to h1 takes 50.3 ms",
        cluster(pairs=all_pairs(2, pair(0, 1, latency_ms=50.3))),
        cluster(pairs=all_pairs(2, pair(0, 1, latency_ms=9.0))),
    ),
    Case(
        "packet-loss",
        "warning",
        "20% of what h0 sends to h1 is retransmitted",
        cluster(pairs=all_pairs(2, pair(0, 1, segments=100, retransmitted=20))),
        cluster(pairs=all_pairs(2, pair(0, 1, segments=6000, retransmitted=90))),
    ),
    Case(
        "collective-failed",
        "error",
        "the gloo all-reduce over 2 nodes failed on h1",
        cluster(collectives=(gloo("failed", detail="gloo: RuntimeError: x", odd=("node1aaaa",)),)),
        cluster(collectives=(gloo("skipped", detail="some nodes cannot reach each other"),)),
    ),
    Case(
        "collective-unfinished",
        "warning",
        "the gloo all-reduce over 2 nodes could not start on h1",
        cluster(collectives=(gloo("unready", detail="torch was not imported in time", odd=("node1aaaa",)),)),
        cluster(collectives=(gloo("skipped", detail="some nodes cannot reach each other"),)),
    ),
    Case(
        "collective-late",
        "error",
        "the gloo all-reduce over 2 nodes did not end on h0, h1",
        cluster(collectives=(gloo("late", detail="no answer", odd=("node0aaaa", "node1aaaa")),)),
        cluster(),
    ),
    Case(
        "collective-late",
        "note",
        "the gloo all-reduce over 2 nodes did not end on h0",
        cluster(
            node(0, {"network": {"lookups": (Lookup("10.77.0.1", 10.0, ""),)}}),
            node(1),
            collectives=(gloo("late", detail="no answer", odd=("node0aaaa",)),),
        ),
        cluster(),
    ),
    Case(
        "nccl-sockets",
        "warning",
        "NCCL uses sockets, not InfiniBand",
        cluster(node(0, with_gpus(devices=IB)), node(1, with_gpus(devices=IB)), collectives=(gloo(), NCCL)),
        cluster(
            node(0, with_gpus(devices=IB)),
            node(1, with_gpus(devices=IB)),
            collectives=(gloo(), replace(NCCL, transport="NET/IB")),
        ),
    ),
    Case(
        "nccl-sockets",
        "note",
        "NCCL uses sockets with 2500 MB/s",
        cluster(node(0, with_gpus()), node(1, with_gpus()), collectives=(gloo(), NCCL)),
        cluster(node(0, with_gpus()), node(1, with_gpus()), collectives=(gloo(), replace(NCCL, transport="P2P"))),
    ),
)

FULL, ONE_LESS = Room("h0", 8, 64, 8, 64), Room("h1", 7, 64, 8, 64)
RETRIEVER = "http://127.0.0.1:8000/retrieve"


def searching(*seen: RetrieverFacts) -> Scene:
    """A command that searches, and what each node saw of its retriever."""
    nodes = [node(number, {"retrievers": (each,)}) for number, each in enumerate(seen)]
    return cluster(*nodes, demands=(demand(retriever=RETRIEVER),))


PLAN = (
    Case(
        "plan-short",
        "error",
        "node 2 is 1 GPU short: h1",
        planned(demand(), FULL, ONE_LESS),
        planned(demand(), FULL, replace(ONE_LESS, gpus=8)),
    ),
    Case(
        "plan-short",
        "error",
        "node 1 is 3 CPUs short: h0",
        planned(demand(nodes=1, extra_cpus=1.0), replace(FULL, cpus=6.5)),  # 2.5, in whole ones
        planned(demand(nodes=1, extra_cpus=1.0), replace(FULL, cpus=9)),
    ),
    Case(
        "plan-short",
        "error",
        "node 2 is missing: the run asks for 2, and there is 1",
        planned(demand(), FULL),
        planned(demand(nodes=1), FULL),
    ),
    Case(
        "plan-tensor-parallel",
        "error",
        "16 ranks can't be split into tensor-parallel groups of 3",
        planned(demand(tensor_parallel=3), FULL, FULL),
        planned(demand(tensor_parallel=8), FULL, FULL),
    ),
    Case(
        "plan-tensor-parallel",
        "note",
        "tensor-parallel groups of 16 span nodes",
        planned(demand(tensor_parallel=16), FULL, FULL),
        planned(demand(tensor_parallel=2), FULL, FULL),
    ),
    Case(
        "retriever",
        "error",
        f"the retriever at {RETRIEVER} can't be used from h1: Connection refused",
        searching(RetrieverFacts(RETRIEVER, digest="aa"), RetrieverFacts(RETRIEVER, "Connection refused")),
        searching(RetrieverFacts(RETRIEVER, digest="aa"), RetrieverFacts(RETRIEVER, digest="aa", found="9")),
    ),
    Case(
        "retriever",
        "error",
        f"the retrievers at {RETRIEVER} hold different passages",
        searching(RetrieverFacts(RETRIEVER, digest="aa"), RetrieverFacts(RETRIEVER, digest="bb")),
        searching(RetrieverFacts(RETRIEVER, digest="aa"), RetrieverFacts("http://other/retrieve", digest="bb")),
    ),
    Case(
        "retriever",
        "error",
        f"the retrievers at {RETRIEVER} find passages by different encoders",
        searching(RetrieverFacts(RETRIEVER, digest="aa", encoder="e"), RetrieverFacts(RETRIEVER, digest="aa")),
        searching(*(RetrieverFacts(RETRIEVER, digest="aa", encoder="e", found=each) for each in "12")),
    ),
    Case(
        "retriever",
        "warning",
        f"the retrievers at {RETRIEVER} find different passages",
        searching(RetrieverFacts(RETRIEVER, found="1"), RetrieverFacts(RETRIEVER, digest="aa", found="2")),
        cluster(*(node(n, {"retrievers": (RetrieverFacts(RETRIEVER, found=str(n)),)}) for n in range(2))),
    ),
    Case(
        "plan-unknown",
        "note",
        "the resources the command needs are unknown: run.sh:3: trainer.nnodes=${N}",
        alone(gaps=("run.sh:3: trainer.nnodes=${N}",)),
        alone(),
    ),
)

INSTALL = (
    Case(
        "old-pip", "note", "pip on h0 is 22.0", alone(with_gpus(packages={"pip": "22.0"})), alone(packages(pip="22.0"))
    ),
    Case(
        "old-pip",
        "warning",
        "pip on h0 is 22.0",
        alone(packages(pip="22.0"), demands=(SGLANG,)),
        alone(packages(pip="25.0.1"), demands=(SGLANG,)),
    ),
    Case(
        "no-cargo",
        "note",
        "cargo is missing on h0, and sglang is not installed yet",
        alone({"tools": {"cargo": ""}}, demands=(SGLANG,)),
        alone({**packages(sglang="0.5"), "tools": {"cargo": ""}}, demands=(SGLANG,)),
    ),
    Case(
        "no-flash-attn",
        "note",
        "flash-attn is not installed on h0",
        alone(with_gpus(software={"packages": PACKAGES})),
        alone(with_gpus()),
    ),
    Case(
        "flash-attn-broken",
        "error",
        "flash_attn can't be imported on h1",
        cluster(collectives=(gloo(import_errors={"flash_attn on node1aaaa": "ImportError: undefined symbol"}),)),
        cluster(),
    ),
    Case(
        "cuda-home",
        "warning",
        "CUDA_HOME on h0 has no nvcc: /usr/local/cuda-12.4",
        alone(env(CUDA_HOME="/usr/local/cuda-12.4")),
        alone({**env(CUDA_HOME="/usr/local/cuda-12.4"), "tools": {"cuda_home_nvcc": True}}),
    ),
    Case(
        "cuda-home",
        "warning",
        "CUDA_HOME on h0 has typographic quotes in it",
        alone(env(CUDA_HOME="\u201c/usr/local/cuda-12.4\u201d")),
        alone(),
    ),
    Case(
        "nvcc-differs",
        "warning",
        "nvcc on h0 is from CUDA 13.0, but torch is built for 12.4",
        alone(with_gpus(tools={"nvcc": "13.0"})),
        alone(with_gpus(tools={"nvcc": "12.8"})),
    ),
    Case(
        "cudnn-path",
        "warning",
        "CUDNN_PATH on h0 has no include/cudnn.h: /opt/cudnn",
        alone(env(CUDNN_PATH="/opt/cudnn")),
        alone({**env(CUDNN_PATH="/opt/cudnn"), "tools": {"cudnn_header": "/opt/cudnn/include/cudnn.h"}}),
    ),
    Case(
        "old-gcc",
        "warning",
        "gcc on h0 is 7.5.0",
        alone(with_gpus(tools={"gcc": "7.5.0"})),
        alone(with_gpus(tools={"gcc": "8.1.0"})),
    ),
)

CASES = (*CLUSTER, *VERSIONS, *GPUS, *SYSTEM, *NETWORK, *LINKS, *PLAN, *INSTALL)
