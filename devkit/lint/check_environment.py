"""Rules about environment variables, Ray jobs and Slurm: what contradicts itself, and what does not arrive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from os.path import dirname, isfile, join
from typing import Any

import yaml

from devkit.lint.launch import Launch, Unit, has_words, option
from devkit.lint.records import Finding
from devkit.lint.shell import Command
from devkit.lint.source import Span
from devkit.lint.values import Argument
from devkit.reading import json_of, read_regular, yaml_of

_LARGEST = 1_000_000  # bytes of a runtime_env
_MOST_JOBS, _MOST_PIPED = 200, 200  # jobs of a script, programs of a pipeline
_SLOW = {
    "NCCL_DEBUG": ("TRACE", "every collective of every rank is logged"),
    "CUDA_LAUNCH_BLOCKING": ("1", "each kernel waits for the one before"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "each collective is checked by one more"),
}
_NEW_NAMES = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "TRANSFORMERS_CACHE": "HF_HOME",
    "PYTORCH_TRANSFORMERS_CACHE": "HF_HOME",
}
_FOR_WORKERS = re.compile(
    r"(NCCL|RCCL|GLOO|CUDA|HIP|ROCR|VLLM|SGLANG|SGL|HF|WANDB|HYDRA|TORCH|PYTORCH|TOKENIZERS)_\w+", re.ASCII
)


def check(launch: Launch) -> Iterator[Finding]:
    yield from _devices(launch)
    yield from _leftovers(launch)
    yield from _allocator(launch)
    for unit in launch.units:
        yield from _jobs(launch, unit)
        yield from _srun(launch, unit)


def _devices(launch: Launch) -> Iterator[Finding]:
    rocr = launch.settings_of("ROCR_VISIBLE_DEVICES")
    others = [name for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if launch.settings_of(name)]
    if rocr and others:
        message = f"ROCR_VISIBLE_DEVICES is set together with {' and '.join(others)}"
        why = "ROCm applies ROCR_VISIBLE_DEVICES first and renumbers what is left, and verl's workers refuse to start"
        hint = "set only HIP_VISIBLE_DEVICES"
        yield Finding("device-variables", rocr[0].span, message, why, hint)
    elif rocr:
        message = "Ray does not accept ROCR_VISIBLE_DEVICES"
        why = "ray start and the workers stop with a RuntimeError"
        yield Finding("device-variables", rocr[0].span, message, why, "set HIP_VISIBLE_DEVICES instead")
    yield from _unequal(launch)


def _unequal(launch: Launch) -> Iterator[Finding]:
    hip, cuda = launch.settings_of("HIP_VISIBLE_DEVICES"), launch.settings_of("CUDA_VISIBLE_DEVICES")
    if hip and cuda and hip[0].known and cuda[0].known and hip[0].text != cuda[0].text:
        message = f"CUDA_VISIBLE_DEVICES={cuda[0].text} and HIP_VISIBLE_DEVICES={hip[0].text} differ"
        yield Finding("device-variables", cuda[0].span, message, "verl's workers refuse to start", "set one of them")


def _leftovers(launch: Launch) -> Iterator[Finding]:
    for name, value in launch.settings:
        if name == "RAY_DEBUG" and value.text == "legacy":
            message = "RAY_DEBUG=legacy enables Ray's old debugger"
            why = "a breakpoint or an exception then waits for ray debug, and newer debuggers don't see it"
            yield Finding("ray-debug-leftover", value.span, message, why, "remove it, or use RAY_DEBUG_POST_MORTEM=1")
        elif name == "RAY_DEBUG" and value.known and value.text not in ("", "1"):
            message = (
                f"RAY_DEBUG={value.text}: Ray accepts 1 and legacy; with any other value breakpoint() does nothing"
            )
            why = "with RAY_DEBUG_POST_MORTEM=1 a failed worker waits where no debugger can find it"
            yield Finding("ray-debug-leftover", value.span, message, why, "remove it")
        elif name == "RAY_DEBUG_POST_MORTEM" and value.text == "1" and launch.kind in ("sbatch", "dstack"):
            message = "RAY_DEBUG_POST_MORTEM=1 is set in an unattended job"
            why = "a failed worker waits for a debugger and keeps its GPUs"
            yield Finding("ray-debug-leftover", value.span, message, why, "remove it, and use devkit submit")
        elif name in _SLOW and value.text.upper() == _SLOW[name][0] and launch.settings_of(name)[0] == value:
            message = f"{name}={value.text} is for debugging"
            yield Finding("debug-leftover", value.span, message, _SLOW[name][1], "remove it for a long run")
        elif name in _NEW_NAMES and launch.settings_of(name)[0] == value:
            message = f"{name} has been renamed to {_NEW_NAMES[name]}"
            yield Finding(
                "deprecated-variable", value.span, message, "newer versions don't read it", "use the new name"
            )
    for _, _, words in launch.commands:
        for word in words:
            if word.text == "--ray-debugger-external":
                message = "--ray-debugger-external belongs to Ray's old debugger"
                why = "it opens a debugger port to the network, and newer debuggers don't use it"
                yield Finding("ray-debug-leftover", word.span, message, why, "remove it")


def _allocator(launch: Launch) -> Iterator[Finding]:
    frees = [
        training
        for training in launch.trainings
        if training.value("actor_rollout_ref.rollout.name") == "vllm"
        and training.is_on("actor_rollout_ref.rollout.free_cache_engine", True)
    ]
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        for value in launch.settings_of(name):
            if frees and re.search(r"expandable_segments:\s*true", value.text, re.IGNORECASE):
                message = f"{name} enables expandable segments, but vLLM releases its memory between rollouts"
                why = "vLLM's memory pool rejects them, and the engine does not start"
                yield Finding("allocator-conflict", value.span, message, why, f"remove {name}")


def _jobs(launch: Launch, unit: Unit) -> Iterator[Finding]:
    jobs = [(command, words) for command, words in unit.commands if has_words(words, "ray", "job", "submit")]
    yield from _not_sent(launch, unit, jobs)
    for command, words in jobs:
        yield from _no_log(unit, command, words)


def _not_sent(launch: Launch, unit: Unit, jobs: Sequence[tuple[Command, tuple[Argument, ...]]]) -> Iterator[Finding]:
    """Exports that a job's workers will not have: a job gets the cluster's environment."""
    if not jobs or any(has_words(other, "ray", "start") for _, other in unit.commands):
        return  # Ray was started in this environment, and its workers have it
    exported = [
        assignment
        for assignment in unit.script.assignments
        if (assignment.exported or assignment.name in unit.script.exports) and _FOR_WORKERS.fullmatch(assignment.name)
    ]
    last = _last_without(launch, jobs, {assignment.name for assignment in exported})
    for assignment in exported:
        if assignment.at >= last.get(assignment.name, 0):
            continue
        message = f"{assignment.name} is exported here, but the Ray job does not inherit it"
        why = "a Ray job gets the environment of ray start plus its runtime_env"
        hint = f"add {assignment.name} to the runtime_env's env_vars, or export it before ray start"
        yield Finding("env-not-sent", assignment.span, message, why, hint)


def _last_without(
    launch: Launch, jobs: Sequence[tuple[Command, tuple[Argument, ...]]], names: set[str]
) -> dict[str, int]:
    """Where the last job stands that does not get a variable."""
    found: dict[str, int] = {}
    missing = set(names)
    for command, words in reversed(jobs[-_MOST_JOBS:]):
        sent = _sent(launch, words)
        lacking = missing - sent if sent is not None else set()
        found |= dict.fromkeys(lacking, command.at)
        missing -= lacking
    return found


def _sent(launch: Launch, words: tuple[Argument, ...]) -> set[str] | None:
    """The variables that a job's runtime_env sets; None where it can't be read."""
    inline, file = option(words, "--runtime-env-json"), option(words, "--runtime-env")
    if inline is None and file is None:
        return set()
    if inline is not None:
        found = _json_of(inline.text)
    else:
        name = file.text if file is not None else ""
        near = join(dirname(launch.source.name), name)
        found = _of_file(near if isfile(near) else name)
    variables = found.get("env_vars") if isinstance(found, dict) else None
    return set(variables) if isinstance(variables, dict) else (set() if isinstance(found, dict) else None)


def _json_of(text: str) -> Any:
    try:
        return json_of(text)
    except ValueError:
        return None


def _of_file(path: str) -> Any:
    """What a file of a runtime_env says; None where it can't be read."""
    try:
        return yaml_of(read_regular(path, _LARGEST).decode("utf-8"))
    except (ValueError, OSError, yaml.YAMLError):
        return None


def _no_log(unit: Unit, command: Command, words: tuple[Argument, ...]) -> Iterator[Finding]:
    no_wait = next((word for word in words if word.text == "--no-wait"), None)
    first, position = command.pipe or (-1, 0)
    near = unit.pipelines.get(first, ())[:_MOST_PIPED]
    is_piped = any(c.pipe == (first, position + 1) and others and others[0].text == "tee" for c, others in near)
    if no_wait is not None and is_piped:
        message = "--no-wait returns as soon as the job is submitted, so the log ends there"
        why = "the run's own output is not in the file"
        yield Finding("log-of-no-wait", no_wait.span, message, why, "remove --no-wait, or use ray job logs --follow")


def _srun(launch: Launch, unit: Unit) -> Iterator[Finding]:
    per_node = launch.surroundings.get("ntasks-per-node", 1)
    for command, words in unit.commands:
        if not words or words[0].text != "srun":
            continue
        own = option(words, "--ntasks", "-n", "--ntasks-per-node")
        named = _names_a_container(" ".join(word.raw for word in command.words))
        if per_node > 1 and own is None and named:
            message = f"srun starts this {per_node} times on each node (--ntasks-per-node={per_node})"
            why = "the second container fails on the name of the first, or removes it"
            span = Span(words[0].span.start, words[0].span.end)
            yield Finding("srun-tasks", span, message, why, "use srun --ntasks-per-node=1")
        nodes, tasks = option(words, "--nodes", "-N"), option(words, "--ntasks", "-n")
        if nodes and tasks and _number(tasks) is not None and (_number(nodes) or 0) > (_number(tasks) or 0):
            message = f"{nodes.text} nodes for {tasks.text} task{'s' if tasks.text != '1' else ''}"
            why = "Slurm can't spread that few tasks over that many nodes and uses fewer"
            yield Finding("srun-nodes", nodes.span, message, why, f"use --nodes={tasks.text}")


def _names_a_container(text: str) -> bool:
    parts = re.sub(r"\\\n", " ", text).split(";")
    runs = (re.search(r"\b(?:docker|podman) run\b(.*)", part, re.DOTALL) for part in parts)
    return any(run is not None and "--name" in run[1] for run in runs)


def _number(argument: Argument) -> int | None:
    return int(argument.text) if argument.known and argument.text.isdecimal() and len(argument.text) < 9 else None
