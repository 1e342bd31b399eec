"""Rules about GPUs: the driver, torch's build, how many there are, who holds them, and who may see them."""

from __future__ import annotations

from collections.abc import Iterator

from devkit.debug.inworker.redaction import scrub
from devkit.doctor.onnode.facts import Gpu, GpuProcess, NodeFacts
from devkit.doctor.records import Finding
from devkit.doctor.scene import Scene, names, told

TAKEN = 0.1  # of a GPU's memory
_LISTS = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def check(scene: Scene) -> Iterator[Finding]:
    for name, facts in scene.seen:
        yield from _driver(name, facts)
        yield from _build(name, facts)
        yield from _taken(name, facts)
        yield from _lists(name, facts)
        yield from _index(name, facts)
    yield from _counts(scene)
    yield from _differ(scene)


def _driver(name: str, facts: NodeFacts) -> Iterator[Finding]:
    devices = facts.devices
    if devices.problem:
        why = "no rank can use a GPU there"
        fix = "on that node: nvidia-smi; after a driver update, reboot the node"
        said = f"nvidia-smi: {devices.problem}"
        yield Finding("driver-broken", (name,), f"the GPU driver of {name} does not answer", why, fix, (said,))


def _build(name: str, facts: NodeFacts) -> Iterator[Finding]:
    devices, software = facts.devices, facts.software
    torch = software.packages.get("torch", "")
    if not torch or not devices.gpus:
        return
    built = software.torch_cuda if devices.kind == "nvidia" else software.torch_hip
    evidence = (
        f"torch {torch}: CUDA {software.torch_cuda or 'none'}, ROCm {software.torch_hip or 'none'}",
        _gpus(facts),
    )
    if not built:
        what = f"torch on {name} can't use its {len(devices.gpus)} {devices.kind.upper()} GPUs"
        fix = f"{software.executable or 'python'} -m pip install torch (a build for {_platform(facts)})"
        yield Finding("torch-without-cuda", (name,), what, "every rank there would train on the CPU", fix, evidence)
    elif devices.kind == "nvidia" and devices.cuda and _major(devices.cuda) < _major(built):
        what = f"torch on {name} is built for CUDA {built}, but its driver supports {devices.cuda} at most"
        why = "torch.cuda.is_available() is False: the driver is too old"
        fix = f"install a torch for CUDA {devices.cuda}, or a driver for CUDA {built}"
        yield Finding("cuda-too-new", (name,), what, why, fix, (*evidence, f"driver {devices.driver}"))


def _gpus(facts: NodeFacts) -> str:
    return f"{len(facts.devices.gpus)} x {facts.devices.gpus[0].name}"


def _platform(facts: NodeFacts) -> str:
    return f"CUDA {facts.devices.cuda or '12'}" if facts.devices.kind == "nvidia" else "ROCm"


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else 0


def _taken(name: str, facts: NodeFacts) -> Iterator[Finding]:
    for gpu in facts.devices.gpus:
        if gpu.memory_mib and gpu.used_mib > TAKEN * gpu.memory_mib:
            holders = [p for p in facts.devices.processes if p.gpu == gpu.uuid]
            said = tuple(
                f"pid {p.pid} holds {p.used_mib} MiB: {scrub(p.command) or 'a hidden process'}" for p in holders
            )
            pids = " ".join(str(process.pid) for process in holders)
            yield Finding(
                "gpu-memory-taken",
                (name,),
                f"{_gib(gpu.used_mib)} of {_gib(gpu.memory_mib)} of GPU {gpu.index} on {name} are taken",
                "a run that expects the whole GPU runs out of memory, often only after minutes",
                f"there, if left over from an earlier run: kill {pids}"
                if pids
                else "on that node: fuser -v /dev/nvidia*",
                said or (_usage(gpu),),
            )


def _holds(process: GpuProcess) -> str:
    return f"pid {process.pid} holds {process.used_mib} MiB: {scrub(process.command) or 'a hidden process'}"


def _usage(gpu: Gpu) -> str:
    return f"nvidia-smi: {gpu.used_mib} MiB of {gpu.memory_mib} MiB used, no process shown"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"


def _lists(name: str, facts: NodeFacts) -> Iterator[Finding]:
    given = {variable: facts.environment[variable] for variable in _LISTS if variable in facts.environment}
    hip, rocr, cuda = (given.get(variable) for variable in _LISTS)
    evidence = tuple(f"{variable}={value}" for variable, value in given.items())
    why = "verl and Ray refuse to start a worker, or the second list indexes into what the first one left"
    if rocr and (hip or cuda):
        other = "HIP_VISIBLE_DEVICES" if hip else "CUDA_VISIBLE_DEVICES"
        what = f"ROCR_VISIBLE_DEVICES and {other} are both set on {name}"
        fix = "unset ROCR_VISIBLE_DEVICES before `ray start` (Slurm sets it for every GPU)"
        yield Finding("device-variables", (name,), what, why, fix, evidence)
    elif hip and cuda and hip != cuda:
        what = f"HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES differ on {name}"
        yield Finding("device-variables", (name,), what, why, "set both to the same list, or only one", evidence)


def _index(name: str, facts: NodeFacts) -> Iterator[Finding]:
    value = facts.environment.get("CUDA_VISIBLE_DEVICES", "")
    count = len(facts.devices.gpus)
    beyond = [word for word in value.split(",") if word.strip().isdigit() and int(word) >= count]
    if count and beyond:
        what = f"CUDA_VISIBLE_DEVICES on {name} names GPU {names(beyond)}, but there are {count}"
        why = "CUDA stops reading the list there, so the GPUs after it are hidden too"
        fix = f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(count)))} before `ray start`"
        yield Finding("device-index", (name,), what, why, fix, (f"CUDA_VISIBLE_DEVICES={value}", _gpus(facts)))


def _counts(scene: Scene) -> Iterator[Finding]:
    if not scene.gcs_address:
        return
    for node in scene.nodes:
        if node.facts is None or node.facts.devices.problem:
            continue
        name, there = scene.name(node.node_id), len(node.facts.devices.gpus)
        hidden = "CUDA_VISIBLE_DEVICES" in node.facts.environment
        evidence = (f"Ray: {node.gpus:g} GPUs", f"the driver: {there} GPUs")
        if node.gpus > there:
            what = f"Ray counts {node.gpus:g} GPUs on {name}, but there are {there}"
            why = "ranks are placed on GPUs that do not exist"
            yield Finding("gpu-count", (name,), what, why, f"on that node: ray start --num-gpus={there}", evidence)
        elif node.gpus < there and not hidden:
            what = f"Ray counts {node.gpus:g} of the {there} GPUs on {name}"
            yield Finding(
                "gpu-count",
                (name,),
                what,
                "the others stay idle",
                "on that node: ray start without --num-gpus",
                evidence,
                "note",
            )


def _differ(scene: Scene) -> Iterator[Finding]:
    found = scene.by_value(lambda facts: _gpus(facts) if facts.devices.gpus else "")
    having = {value: where for value, where in found.items() if value}
    if len(having) > 1:
        fewest = min(having, key=lambda value: len(having[value]))
        what = f"the GPUs differ between nodes: {told(having)}"
        why = "every step waits for the slowest, and memory is planned for the smallest"
        fix = "train on identical nodes: start a cluster without " + names(having[fewest])
        yield Finding("gpus-differ", having[fewest], what, why, fix, (told(found, "no GPU"),))
