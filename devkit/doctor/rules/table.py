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
    Rule("cluster-unreachable", "error", "the cluster that was named does not answer, or does not let us in"),
    Rule("node-silent", "error", "a node that Ray counts as alive, and that does not answer"),
    Rule("node-dead", "note", "a node that was there and is dead"),
    Rule("not-looked-at", "note", "something of a node that could not be seen in time"),
    Rule("clock-skew", "warning", "clocks that differ by 2 s; from 300 s on it is an error"),
    Rule("token-differs", "error", "nodes with different tokens for Ray"),
    Rule("token-file", "warning", "a token file on some nodes only: a head that starts there asks for a token"),
    Rule("token-open", "warning", "a token file that others can read"),
    Rule("debugger-unreachable", "note", "a node that this machine can't connect to, as Ray's own extension has to"),
    Rule("ray-debug-leftover", "warning", "RAY_DEBUG=legacy or --ray-debugger-external, which turn the debugger off"),
    Rule("breakpoint-leftover", "warning", "PYTHONBREAKPOINT, which sends breakpoint() elsewhere"),
    # Versions
    Rule("python-differs", "error", "another Python on some nodes; another patch level is a warning"),
    Rule("version-differs", "warning", "another version of a package on some nodes; of ray or torch it is an error"),
    Rule("package-missing", "warning", "a package that some nodes lack; torch, ray, transformers: an error"),
    Rule("package-absent", "error", "a package that a run needs, and no node has; debugpy: a note"),
    Rule("environment-differs", "warning", "a variable of NCCL, gloo, torch or Ray that differs between nodes"),
    # GPUs
    Rule("driver-broken", "error", "a GPU whose driver doesn't answer"),
    Rule("torch-without-cuda", "error", "a torch for the CPU, or for other GPUs, on a node with GPUs"),
    Rule("cuda-too-new", "error", "a torch for a newer CUDA than the driver takes"),
    Rule("gpu-count", "error", "more GPUs in Ray's books than the node has; fewer is a note"),
    Rule("gpus-differ", "warning", "nodes with different GPUs, or different numbers of them"),
    Rule("gpu-memory-taken", "warning", "a GPU of which more than 10 % is taken before the run"),
    Rule("device-variables", "error", "HIP_, ROCR_ and CUDA_VISIBLE_DEVICES that contradict each other"),
    Rule("device-index", "error", "CUDA_VISIBLE_DEVICES names a GPU that is not there"),
    # The system
    Rule("shm-small", "warning", "less than 1 GiB of /dev/shm; with GPUs and under 256 MiB it is an error"),
    Rule("shm-full", "warning", "less than a tenth of /dev/shm is free"),
    Rule("open-files", "warning", "`ulimit -n` under 4096"),
    Rule("disk-full", "warning", "a disk that is 95 % full; with less than 1 GiB free it is an error"),
    Rule("disk-refuses", "error", "a folder that a run has to write to, and may not"),
    Rule("cache-not-shared", "note", "an HF_HOME that each node has for itself; where the hub is off, a warning"),
    Rule("port-taken", "warning", "MASTER_PORT is taken; for Ray's own ports it is a note"),
    # The network
    Rule("interface-missing", "error", "NCCL_ or GLOO_SOCKET_IFNAME names an interface that is not there"),
    Rule("interface-down", "error", "NCCL_ or GLOO_SOCKET_IFNAME names an interface that is down"),
    Rule("interface-loopback", "error", "NCCL_ or GLOO_SOCKET_IFNAME names the loopback, and there are more machines"),
    Rule("docker-address", "error", "a node that is known by the address of a bridge such as docker0"),
    Rule("hostname-loopback", "warning", "a host name that resolves to the loopback, to which gloo binds"),
    Rule("slow-lookup", "warning", "reverse DNS that takes a second or more: torch asks it for each peer"),
    Rule("service-unreachable", "warning", "the GCS or the dashboard can't be reached from a node; the GCS: an error"),
    # Between nodes
    Rule("pair-unreachable", "error", "two nodes that can't connect to each other, though the head sees both"),
    Rule("pair-slow", "warning", "a connection that carries under 100 MB/s, or a quarter of what the others carry"),
    Rule("pair-far", "warning", "a round trip of 10 ms or more"),
    Rule("packet-loss", "warning", "a connection on which 5 % or more has to be sent again"),
    Rule("collective-failed", "error", "an all-reduce over all nodes that fails"),
    Rule("collective-late", "error", "an all-reduce over all nodes that does not end; a note where DNS explains it"),
    Rule(
        "collective-unfinished", "warning", "an all-reduce that could not start in time, so that nothing is known of it"
    ),
    Rule("nccl-sockets", "warning", "NCCL over sockets beside active InfiniBand; without InfiniBand it is a note"),
    # The command
    Rule("plan-short", "error", "a node of the run that lacks GPUs or CPUs, or is not there"),
    Rule("plan-tensor-parallel", "error", "a tensor-parallel size that can't be dealt; one that spans nodes is a note"),
    Rule("plan-unknown", "note", "a command whose demand can't be told without running it"),
    # Installing
    Rule("old-pip", "note", "a pip that can't resolve today's dependencies; where the engine is missing, a warning"),
    Rule("no-cargo", "note", "no cargo where a rollout engine is still to be installed"),
    Rule("no-flash-attn", "note", "GPUs without flash-attn, which verl's remove_padding needs"),
    Rule("flash-attn-broken", "error", "a flash-attn that can't be imported: it was built for another torch"),
    Rule("cuda-home", "warning", "CUDA_HOME leads nowhere, or has no nvcc"),
    Rule("nvcc-differs", "warning", "an nvcc of another CUDA than torch's"),
    Rule("cudnn-path", "warning", "CUDNN_PATH without include/cudnn.h"),
    Rule("old-gcc", "warning", "a GCC before 8.1, which can't build Transformer Engine"),
)
RULES = {rule.name: rule for rule in _TABLE}
