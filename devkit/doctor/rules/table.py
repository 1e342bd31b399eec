"""Every rule: its name, how bad it is, and what it is about."""

from __future__ import annotations

from dataclasses import dataclass

from devkit.doctor.records import Severity


@dataclass(frozen=True)
class Rule:
    name: str
    severity: Severity  # the usual one: a finding may be of another where it matters less or more
    about: str


_TABLE: tuple[Rule, ...] = (
    # The cluster
    Rule("cluster-unreachable", "error", "the given cluster does not answer or refuses access"),
    Rule("node-silent", "error", "a node that Ray considers alive but that does not answer"),
    Rule("node-dead", "note", "a node that has died"),
    Rule("not-looked-at", "note", "a part of a node that could not be checked in time"),
    Rule("object-store", "warning", "an object store that is 95 % full; a note where it has spilled to disk"),
    Rule("clock-skew", "warning", "clocks that differ by 2 s; from 300 s on it is an error"),
    Rule("token-differs", "error", "nodes with different tokens for Ray"),
    Rule("token-file", "warning", "a token file on some nodes only: a head started there requires a token"),
    Rule("token-open", "warning", "a token file that other users can read"),
    Rule("debugger-unreachable", "note", "a node that this machine can't connect to, as Ray's own extension must"),
    Rule("ray-debug-leftover", "warning", "RAY_DEBUG=legacy or --ray-debugger-external, which disable the debugger"),
    Rule("breakpoint-leftover", "warning", "PYTHONBREAKPOINT, which redirects breakpoint()"),
    # Versions
    Rule("python-differs", "error", "a different Python on some nodes; a different patch level is a warning"),
    Rule("version-differs", "warning", "a different package version on some nodes; for ray or torch it is an error"),
    Rule("package-missing", "warning", "a package that some nodes lack; torch, ray, transformers: an error"),
    Rule("package-absent", "error", "a package that a run needs but no node has; debugpy: a note"),
    Rule("environment-differs", "warning", "a variable of NCCL, gloo, torch or Ray that differs between nodes"),
    # GPUs
    Rule("driver-broken", "error", "a GPU whose driver doesn't answer"),
    Rule("torch-without-cuda", "error", "a CPU build of torch, or one for other GPUs, on a node with GPUs"),
    Rule("cuda-too-new", "error", "a torch built for a newer CUDA than the driver supports"),
    Rule("gpu-count", "error", "Ray counts more GPUs than the node has; fewer is a note"),
    Rule("gpus-differ", "warning", "nodes with different GPUs, or different numbers of them"),
    Rule("gpu-memory-taken", "warning", "a GPU with more than 10 % of its memory in use before the run"),
    Rule("device-variables", "error", "HIP_, ROCR_ and CUDA_VISIBLE_DEVICES that contradict each other"),
    Rule("device-index", "error", "CUDA_VISIBLE_DEVICES names a GPU that is not there"),
    # The system
    Rule("shm-small", "warning", "less than 1 GiB of /dev/shm; with GPUs and under 256 MiB it is an error"),
    Rule("shm-full", "warning", "less than a tenth of /dev/shm is free"),
    Rule("open-files", "warning", "`ulimit -n` under 4096"),
    Rule("disk-full", "warning", "a disk that is 95 % full; with less than 1 GiB free it is an error"),
    Rule("disk-refuses", "error", "a folder a run must write to but cannot"),
    Rule("cache-not-shared", "note", "an HF_HOME not shared by the nodes; a warning when the hub is offline"),
    Rule("port-taken", "warning", "MASTER_PORT is in use; for Ray's own ports it is a note"),
    # The network
    Rule("interface-missing", "error", "NCCL_ or GLOO_SOCKET_IFNAME names an interface that is not there"),
    Rule("interface-down", "error", "NCCL_ or GLOO_SOCKET_IFNAME names an interface that is down"),
    Rule(
        "interface-loopback",
        "error",
        "NCCL_ or GLOO_SOCKET_IFNAME names the loopback interface on a multi-node cluster",
    ),
    Rule("docker-address", "error", "a node that is known by the address of a bridge such as docker0"),
    Rule("hostname-loopback", "warning", "a host name that resolves to the loopback address, which gloo binds to"),
    Rule("slow-lookup", "warning", "reverse DNS that takes a second or more: torch does a lookup for each peer"),
    Rule("service-unreachable", "warning", "the GCS or the dashboard can't be reached from a node; the GCS: an error"),
    # Between nodes
    Rule("pair-unreachable", "error", "two nodes that can't connect to each other, though the head sees both"),
    Rule("pair-slow", "warning", "a connection that carries under 100 MB/s, or a quarter of what the others carry"),
    Rule("pair-far", "warning", "a round trip of 10 ms or more"),
    Rule("packet-loss", "warning", "a connection on which 5 % or more is retransmitted"),
    Rule("collective-failed", "error", "a failed all-reduce over all nodes"),
    Rule("collective-late", "error", "an all-reduce over all nodes that does not end; a note where DNS explains it"),
    Rule("collective-unfinished", "warning", "an all-reduce that could not start in time, so it was not tested"),
    Rule("nccl-sockets", "warning", "NCCL over sockets despite active InfiniBand; without InfiniBand it is a note"),
    # The command
    Rule("plan-short", "error", "a node that is missing, or lacks GPUs or CPUs for the run"),
    Rule(
        "plan-tensor-parallel",
        "error",
        "a tensor-parallel size that can't be split evenly; one that spans nodes is a note",
    ),
    Rule("retriever", "error", "a retriever that a node can't use, or that is another one there"),
    Rule("plan-unknown", "note", "a command whose needs are unknown until it runs"),
    # Installing
    Rule("old-pip", "note", "a pip that can't resolve today's dependencies; where the engine is missing, a warning"),
    Rule("no-cargo", "note", "no cargo where a rollout engine is not installed yet"),
    Rule("no-flash-attn", "note", "GPUs without flash-attn, which verl's remove_padding needs"),
    Rule("flash-attn-broken", "error", "a flash-attn that can't be imported: it was built for another torch"),
    Rule("cuda-home", "warning", "CUDA_HOME points nowhere, or has no nvcc"),
    Rule("nvcc-differs", "warning", "an nvcc for another CUDA than torch's"),
    Rule("cudnn-path", "warning", "CUDNN_PATH without include/cudnn.h"),
    Rule("old-gcc", "warning", "a GCC before 8.1, which can't build Transformer Engine"),
)
RULES = {rule.name: rule for rule in _TABLE}
