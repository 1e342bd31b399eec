"""`devkit launch slurm`: the sbatch script. Pure: `slurm_run.py` submits it, follows it, or runs it here.

The script is what the user reads, keeps and changes, so it is plain bash and needs nothing but Slurm's commands and a
Python with devkit on the nodes (or in the image). Its beginning is made here from the options; the rest of it is
`slurm_job.sh` as it stands.
"""

from __future__ import annotations

import re
import shlex
import string
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources

from devkit.debug.launch import POST_MORTEM
from devkit.errors import UsageError

CONTAINERS = ("docker", "podman", "enroot", "pyxis")
LOG = "slurm-%j.out"
_SAFE = frozenset(string.ascii_letters + string.digits + "%+,-./:=@_[]{}~^")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GPUS = re.compile(r"(?:[A-Za-z][\w.-]*:)?[0-9]+")
# What the script decides itself, by the name that an option of sbatch has.
_OURS = {
    "nodes": "--nodes",
    "N": "--nodes",
    "gres": "--gpus",
    "gpus-per-node": "--gpus",
    "cpus-per-task": "--cpus",
    "c": "--cpus",
    "output": "--log",
    "o": "--log",
    "ntasks": "",
    "n": "",
    "ntasks-per-node": "",
    "job-name": "--job-name",
    "J": "--job-name",
}


@dataclass(frozen=True)
class SlurmOptions:
    """What the script is to be. Empty and None are: as the cluster has it."""

    command: tuple[str, ...] = ()  # empty: the cluster alone, until the job ends
    nodes: int = 2
    gpus: str = ""  # of each node: N or TYPE:N
    cpus: int | None = None  # of each node
    memory: str = ""  # of each node, as in 200G
    time: str = ""
    partition: str = ""
    account: str = ""
    job_name: str = "devkit"
    log: str = LOG
    sbatch: tuple[str, ...] = ()  # further options, as in --qos=high
    specs: tuple[str, ...] = ()  # breakpoints
    post_mortem: str = "snapshot"
    container: str = ""
    image: str = ""
    mounts: tuple[str, ...] = ()  # SRC:DST
    container_options: tuple[str, ...] = ()  # further ones of docker run, enroot start or srun
    rocm: bool = False
    variables: tuple[str, ...] = ()  # NAME=VALUE, or NAME to hand it on into the container
    python: str = ""  # with devkit, on the nodes or in the image
    dashboard_host: str = "0.0.0.0"  # a token guards it
    timeout: float = 300.0  # seconds until all nodes have to be up

    @property
    def interpreter(self) -> str:
        """This Python, which the nodes are to share with us; an image has its own."""
        return self.python or ("python3" if self.container else sys.executable)


@dataclass(frozen=True)
class Setting:
    """A variable of the script: a word, or a tuple of them for an array."""

    name: str
    value: str | tuple[str, ...] = field(default=())

    def line(self) -> str:
        """
        >>> Setting("CMD", ("python", "a b.py")).line(), Setting("IMAGE", "").line()
        ("CMD=(python 'a b.py')", "IMAGE=''")
        """
        if isinstance(self.value, str):
            return f"{self.name}={shlex.quote(self.value)}"
        return f"{self.name}=({shlex.join(self.value)})"


def script(options: SlurmOptions) -> str:
    """The sbatch script. Raises UsageError for options that cannot be right."""
    check(options)
    body = resources.files("devkit.launch").joinpath("slurm_job.sh").read_text(encoding="utf-8")
    return "\n".join(["#!/bin/bash", *_directives(options), "", *_settings(options), "", body])


def check(options: SlurmOptions) -> None:
    """Raises UsageError for options that cannot be right."""
    if options.nodes < 1:
        raise UsageError(f"--nodes is {options.nodes}", hint="a cluster has at least one node, its head")
    if options.timeout < 1:
        raise UsageError(f"--timeout is {options.timeout:g}", hint="a node needs a few seconds to come up")
    if options.gpus and not _GPUS.fullmatch(options.gpus):
        raise UsageError(f"--gpus is {options.gpus!r}", hint="use --gpus 8, or --gpus a100:8")
    if options.post_mortem not in POST_MORTEM:
        raise UsageError(f"--post-mortem is {options.post_mortem!r}", hint=f"it takes {', '.join(POST_MORTEM)}")
    _check_container(options)
    for name, _, _ in map(_assignment, options.variables):
        if not _NAME.fullmatch(name):
            raise UsageError(f"--env {name!r} is not a variable name", hint="--env NAME=VALUE")
        if name.startswith("RAY_AUTH_"):
            raise UsageError(f"--env {name}: each job creates its own token", hint="remove it")
    for word in options.sbatch:
        _check_sbatch(word)
    for text in _texts(options):
        if "\0" in text:
            raise UsageError("an argument contains a NUL byte", hint="commands cannot take NUL bytes")


def _check_container(options: SlurmOptions) -> None:
    if options.container and options.container not in CONTAINERS:
        raise UsageError(f"--container is {options.container!r}", hint=f"it takes {', '.join(CONTAINERS)}")
    if options.container and not options.image:
        raise UsageError(f"--container {options.container} has no image", hint="add --image IMAGE")
    if not options.container and (options.image or options.mounts or options.container_options):
        raise UsageError("--image, --mount and --container-option need a container", hint="add --container")
    if options.image.startswith("-"):
        raise UsageError(f"--image is {options.image!r}", hint="an image name does not start with -")
    for mount in options.mounts:
        source, colon, target = mount.partition(":")
        if not (source.startswith("/") and colon and target.startswith("/")) or "," in mount:
            raise UsageError(f"--mount is {mount!r}", hint="--mount /ON/THE/NODE:/IN/THE/CONTAINER, without commas")


def _check_sbatch(word: str) -> None:
    """One word, `--name=value`: in an #SBATCH line the next one would be taken for another option."""
    found = re.fullmatch(r"--([a-z][a-z0-9-]*)(=.*)?|-([A-Za-z])(.*)", word, re.DOTALL)
    if not found:
        raise UsageError(f"--sbatch {word!r} is not an sbatch option", hint="--sbatch=--qos=high, in one word")
    name = found[1] or found[3]
    if name in _OURS:
        hint = f"devkit has its own {_OURS[name]}" if _OURS[name] else "there is one task per node"
        raise UsageError(f"{word.partition('=')[0]} is not for --sbatch", hint=hint)


def _texts(options: SlurmOptions) -> Iterator[str]:
    for value in vars(options).values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            yield from value


def _directives(options: SlurmOptions) -> Iterator[str]:
    wanted = {
        "job-name": options.job_name,
        "nodes": str(options.nodes),
        "ntasks-per-node": "1",
        "gres": f"gpu:{options.gpus}" if options.gpus else "",
        "cpus-per-task": str(options.cpus or ""),
        "mem": options.memory,
        "time": options.time,
        "partition": options.partition,
        "account": options.account,
        "output": options.log,
    }
    words = [f"--{name}={value}" for name, value in wanted.items() if value]
    return (f"#SBATCH {directive(word)}" for word in (*words, *options.sbatch))


def directive(word: str) -> str:
    """A word as an #SBATCH line has it: sbatch knows double quotes there, and the backslash within them.

    >>> print(directive('--job-name=my "job"'), directive("--mem=8G"))
    "--job-name=my \\"job\\"" --mem=8G
    """
    if any(ord(c) < 32 or ord(c) == 127 for c in word):
        raise UsageError(f"{word!r} does not fit on one line of the script", hint="remove its line breaks")
    if _SAFE.issuperset(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _settings(options: SlurmOptions) -> Iterator[str]:
    assigned = [(name, value) for name, given, value in map(_assignment, options.variables) if given]
    yield "# Written by devkit launch slurm. These are its options: edit them here, or regenerate the script."
    yield from (f"export {name}={shlex.quote(value)}" for name, value in assigned)
    settings = (
        Setting("CMD", options.command),
        Setting("RUN_OPTIONS", tuple(_run_options(options))),
        Setting("DEVKIT", (options.interpreter, "-P", "-m", "devkit")),
        Setting("TIMEOUT", f"{options.timeout:.0f}"),
        Setting("DASHBOARD_HOST", options.dashboard_host),
        Setting("CONTAINER", options.container or "none"),
        Setting("IMAGE", options.image),
        Setting("MOUNTS", options.mounts),
        Setting("CONTAINER_OPTIONS", options.container_options),
        Setting("VARIABLES", tuple(name for name, _, _ in map(_assignment, options.variables))),
        Setting("ROCM", str(int(options.rocm))),
    )
    yield from (setting.line() for setting in settings)


def _run_options(options: SlurmOptions) -> Iterable[str]:
    for spec in options.specs:
        yield f"--break={spec}"
    if options.post_mortem != "snapshot":
        yield f"--post-mortem={options.post_mortem}"


def _assignment(text: str) -> tuple[str, str, str]:
    return text.partition("=")
