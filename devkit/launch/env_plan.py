"""MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and the interface variables: who this machine is, and what it is to do.

Pure: what is read from the machine comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from devkit.debug.cluster_launch import RANK_LABEL
from devkit.debug.gcs import GcsAddress
from devkit.debug.ray_start import GCS_PORT, ClusterOptions
from devkit.errors import UsageError

ADDRESS, PORT, SIZE, RANK = "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"
NCCL, GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
# They are of the machines, not of the ranks of a training: a worker that found them would take them for its own.
OF_THE_MACHINES = (ADDRESS, PORT, SIZE, RANK)
EXAMPLE = "export MASTER_ADDR=10.0.0.5 WORLD_SIZE=2 RANK=0, with RANK=1 on the other machine"
Interfaces = Mapping[str, str]  # name -> IPv4 address


@dataclass(frozen=True)
class World:
    """What the environment says."""

    head: GcsAddress
    size: int  # machines
    rank: int  # of this machine; 0 is the head


def read(environ: Mapping[str, str]) -> World:
    """Raises UsageError for what is missing or cannot be.

    >>> read({"MASTER_ADDR": "10.0.0.5", "WORLD_SIZE": "2", "RANK": "1"})
    World(head=GcsAddress(host='10.0.0.5', port=6379), size=2, rank=1)
    """
    missing = [name for name in (ADDRESS, SIZE, RANK) if not environ.get(name, "").strip()]
    if missing:
        raise UsageError(f"--from-env: {' and '.join(missing)} not set", hint=EXAMPLE)
    if "LOCAL_RANK" in environ:
        raise UsageError(
            "--from-env: LOCAL_RANK is set, so WORLD_SIZE counts processes and not machines",
            hint="run it once per machine, outside of torchrun, with RANK and WORLD_SIZE of the machines",
        )
    size, rank = _number(SIZE, environ), _number(RANK, environ)
    if size < 1 or rank >= size:
        raise UsageError(f"RANK is {rank} and WORLD_SIZE is {size}", hint="ranks are 0 to WORLD_SIZE - 1")
    host = environ[ADDRESS].strip()
    port = _number(PORT, environ) if environ.get(PORT, "").strip() else GCS_PORT
    try:
        head = GcsAddress.parse(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except UsageError as error:
        raise UsageError(f"MASTER_ADDR and MASTER_PORT: {error.message}", hint=EXAMPLE) from None
    if " " in host:
        raise UsageError(f"MASTER_ADDR is {host!r}", hint="replace it with the address of the machine with RANK=0")
    if size > 1 and (host == "localhost" or host.startswith("127.") or host == "::1"):
        raise UsageError(
            f"MASTER_ADDR is {host}, which is a different machine on each of the {size} machines",
            hint="use the address at which the others reach the machine with RANK=0",
        )
    return World(head, size, rank)


def interface(environ: Mapping[str, str], there: Interfaces) -> tuple[str, str] | None:
    """Name and address of the interface that NCCL and gloo are told to use; None: they are told nothing.

    NCCL's grammar: prefixes by default, `=` exact names, `^` all but these. gloo's: exact names.

    >>> interface({"NCCL_SOCKET_IFNAME": "eth"}, {"lo": "127.0.0.1", "eth1": "10.0.0.5"})
    ('eth1', '10.0.0.5')
    >>> interface({"NCCL_SOCKET_IFNAME": "^docker,lo"}, {"docker0": "172.17.0.1", "ib0": "10.0.0.5"})
    ('ib0', '10.0.0.5')

    Raises UsageError where there is none of that name, and where the two name different ones.
    """
    found: dict[str, str] = {}
    for variable, pick in ((NCCL, _of_nccl), (GLOO, _of_gloo)):
        wanted = environ.get(variable, "").strip()
        if not wanted:
            continue
        names = pick(wanted, there)
        if not names:
            have = ", ".join(f"{name} ({ip})" for name, ip in there.items())
            raise UsageError(f"{variable} is {wanted}, but this machine has {have}", hint=f"set {variable} to one")
        # What both allow is best: a prefix of NCCL's may allow more than gloo's one name.
        common = [name for name in names if name in found] if found else names
        if not common:
            raise UsageError(
                f"{NCCL} means {next(iter(found))} and {GLOO} means {names[0]}", hint="set both to the same interface"
            )
        found = {name: there[name] for name in common}
    return next(iter(found.items()), None)


def options(world: World, base: ClusterOptions, node_ip: str | None) -> ClusterOptions:
    """What `devkit debug-cluster` does on this machine: be the head, or join it."""
    same = replace(
        base,
        node_ip=node_ip or base.node_ip,
        wait_for=world.size,
        ray_arguments=(*base.ray_arguments, f"--labels={RANK_LABEL}={world.rank}"),
    )
    if world.rank == 0:
        return replace(same, port=world.head.port)
    return replace(same, join=str(world.head), await_head=True)


def _of_nccl(wanted: str, there: Interfaces) -> list[str]:
    exact, other = wanted.startswith(("=", "^=")), wanted.startswith("^")
    words = [word for word in wanted.lstrip("^=").split(",") if word]

    def named(name: str) -> bool:
        return name in words if exact else any(name.startswith(word) for word in words)

    return [name for name in there if named(name) != other]


def _of_gloo(wanted: str, there: Interfaces) -> list[str]:
    words = wanted.split(",")
    return [name for name in there if name in words]


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ[name].strip()
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{name} is {text!r}", hint=f"{name} is a whole number; {EXAMPLE}")
    return int(text)


def describe(world: World, chosen: Sequence[str]) -> str:
    """One line of what is about to happen."""
    by = f", {chosen[0]} set to {chosen[1]}" if chosen else ""
    what = "the head" if world.rank == 0 else f"joins {world.head}"
    return f"rank {world.rank} of {world.size}: {what}{by}"
