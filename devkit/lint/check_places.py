"""Rules about where things are: paths, addresses and interfaces that one node has and the others have not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from devkit.lint.launch import Launch, Training, Unit, has_words, option
from devkit.lint.records import Finding, Severity
from devkit.lint.values import Argument

_LOCAL = re.compile(
    r"(?:^|[\[,'\"\s])(/(?:root|tmp|var/tmp|dev/shm|mnt/(?:nvme|local|ssd)\w*|local|scratch/local)(?:/|$))"
)
_HOME = re.compile(r"(?:^|[\[,'\"\s])(\$\{HOME\}|~|/home/[^/]+)(?:/|$)")
_LOOPBACK = re.compile(r"(?<![\w.])(127\.\d+\.\d+\.\d+|localhost|::1|0\.0\.0\.0)(?![\w.])")
_ON_THE_FIRST = re.compile(r"RANK\S{0,20}\s{0,20}(==?|-eq)\s{0,20}[\"']?0\b")
_DASHBOARD = re.compile(r"[\w.-]+:8265/?")
_READ = ("data.train_files", "data.val_files", "actor_rollout_ref.model.path", "critic.model.path")
_WRITTEN = ("trainer.default_local_dir",)
_OUTPUTS = ("--local_dir", "--local-dir", "--output", "--output_dir", "--output-dir", "--save_dir", "--local_save_dir")
_ADDRESSES = ("MASTER_ADDR", "RAY_HEAD_IP", "HEAD_IP", "HEAD_NODE_IP")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def check(launch: Launch) -> Iterator[Finding]:
    for training in launch.trainings:
        nodes = training.number("trainer.nnodes", 1) or launch.nodes
        if nodes > 1:
            yield from _local_paths(launch, training, int(nodes))
            yield from _services(training, int(nodes))
        if training.through_jobs:
            yield from _relative_paths(training)
    for _, _, words in launch.commands:
        yield from _dashboard(words)
    if launch.nodes > 1:
        yield from _heads(launch)
        yield from _interfaces(launch)
        for unit in launch.units:
            yield from _prepared(launch, unit)


def _local_paths(launch: Launch, training: Training, nodes: int) -> Iterator[Finding]:
    for key in (*_READ, *_WRITTEN):
        argument = training.by_key.get(key)
        match = _local_path(launch, argument.value) if argument is not None else None
        if argument is None or match is None:
            continue
        hub = key.endswith("model.path")
        what = (
            "a home folder may be" if "HOME" in match or "home" in match or match == "~" else f"{match.rstrip('/')} is"
        )
        message = f"{key} is under {match.rstrip('/') or match}, but the run has {nodes} nodes: {what} local to one"
        why = (
            "each node writes its part of the checkpoint to its own disk"
            if key in _WRITTEN
            else "the driver and the workers each look for it on their own node"
        )
        hint = "use a folder shared by all nodes" + (", or a hub id" if hub else "")
        severity: Severity = "note" if match.startswith(("$", "~", "/home")) else "warning"
        yield Finding("node-local-path", argument.span, message, why, hint, severity)


def _local_path(launch: Launch, value: str) -> str | None:
    local = _LOCAL.search(value)
    if local:
        return local[1]
    home = _HOME.search(value)
    return home[1] if home and launch.kind != "sbatch" else None  # a Slurm cluster shares its homes


def _services(training: Training, nodes: int) -> Iterator[Finding]:
    """URLs in the command, such as a retriever's."""
    for argument in training.overrides:
        match = re.search(r"\w+://" + _LOOPBACK.pattern, argument.value)
        if match:
            message = f"{argument.key} is at {match[1]}, but the run has {nodes} nodes"
            why = "the service would have to run on every node that calls it"
            hint = "give the address of the node where it runs"
            if argument.key == "retriever.url" and training.is_ours:
                hint += ", or retriever.serve=CORPUS.jsonl instead: it starts one on each node"
            yield Finding("loopback-address", argument.span, message, why, hint, "warning")


def _relative_paths(training: Training) -> Iterator[Finding]:
    for key in (*_READ, *_WRITTEN):
        argument = training.by_key.get(key)
        value = argument.value if argument is not None else ""
        relative = re.match(r"['\"\[]*(?!\$\{)[\w.][\w./-]*/", value) and "://" not in value
        if argument is None or not relative or (key.endswith("model.path") and value.count("/") == 1):
            continue
        message = f"{key}={value} is a relative path, but the job starts in a different folder on the cluster"
        if key in _WRITTEN:
            why, severity = "checkpoints go there, and Ray deletes the working_dir afterwards", "warning"
        else:
            why, severity = "it is found only if it is uploaded with the working_dir", "note"
        yield Finding("relative-path", argument.span, message, why, "use an absolute path", _severity(severity))


def _severity(name: str) -> Severity:
    return "note" if name == "note" else "warning"


def _dashboard(words: tuple[Argument, ...]) -> Iterator[Finding]:
    """Ray takes HOST:PORT without a scheme for that of the cluster, which speaks another protocol."""
    value = option(words, "--address") if has_words(words, "ray", "job") else None
    if value is not None and _DASHBOARD.fullmatch(value.text):
        message = f"ray job --address={value.text} has the dashboard's port, but not http://"
        why = "Ray takes it for the address of its GCS, and waits there in vain"
        yield Finding("dashboard-address", value.span, message, why, f"use http://{value.text}")


def _heads(launch: Launch) -> Iterator[Finding]:
    """Addresses at which other nodes look for the head."""
    why = "every other node looks for the head on itself and waits forever"
    hint = "use the head's address on the nodes' network"
    for name in _ADDRESSES:
        for value in launch.settings_of(name):
            match = _LOOPBACK.search(value.text)
            if match:
                yield Finding("loopback-address", value.span, f"{name} is {match[1]}", why, hint)
    for _, _, words in launch.commands:
        if has_words(words, "ray", "start"):
            yield from _ray_start(words, why, hint)


def _ray_start(words: tuple[Argument, ...], why: str, hint: str) -> Iterator[Finding]:
    for name in ("--address", "--node-ip-address"):
        value = option(words, name)
        match = _LOOPBACK.search(value.text) if value is not None else None
        if value is not None and match:
            yield Finding("loopback-address", value.span, f"ray start {name} is {match[1]}", why, hint)


def _interfaces(launch: Launch) -> Iterator[Finding]:
    for name in _INTERFACES:
        for value in launch.settings_of(name):
            names = [part.strip().lstrip("=") for part in value.text.split(",")]
            if "lo" in names and not value.text.startswith("^"):
                message = f"{name}={value.text} is the loopback interface"
                why = "ranks on different nodes can't reach each other, and the first collective times out"
                hint = "use the interface on the nodes' network (see ip -br addr)"
                yield Finding("loopback-interface", value.span, message, why, hint)


def _prepared(launch: Launch, unit: Unit) -> Iterator[Finding]:
    """Data that `if [ $RANK = 0 ]` writes into a folder of that node."""
    first_only = frozenset(at for at, text in unit.script.conditions if _ON_THE_FIRST.search(text))
    for command, words in unit.commands:
        if first_only.isdisjoint(command.branches):
            continue
        target = option(words, *_OUTPUTS)
        match = _local_path(launch, target.text) if target is not None else None
        if target is not None and match is not None:
            message = f"only the first node writes {target.text}, which may be local to it"
            why = "the driver may run on another node and not find the data there"
            hint = "write to a folder shared by all nodes, or prepare the data on every node"
            yield Finding("prepared-on-one-node", target.span, message, why, hint)
