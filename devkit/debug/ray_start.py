"""The `ray start` commands of a cluster with debugging on, and the environment that its workers inherit.

Pure but for a look at ports and a link to Python: what is run, and who waits for it, is in `cluster.py`.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from devkit import destinations
from devkit.debug import processes
from devkit.debug.address import temporary_folder
from devkit.debug.gcs import GcsAddress
from devkit.debug.plain_python import plain_python
from devkit.debug.state import Mode
from devkit.debug.tokens import MODE, TOKEN, AuthMode
from devkit.errors import UsageError

QUIET_PORTS = 20_000, 29_999  # above those of Ray's workers, below those that Linux gives to connections
TRIES = 20
GCS_PORT, DASHBOARD_PORT, CLIENT_PORT, AGENT_PORT = 6379, 8265, 10001, 52365  # Ray's defaults
OBJECT_STORE_SHARE = 0.3  # of the memory; Ray's default, which simulated nodes have to share
SHARED_MEMORY = "/dev/shm"
OBJECT_STORE_ANYWHERE = 10**10  # bytes; more than that Ray refuses to have in another place than shared memory
OBJECT_STORE_LEAST = 80 * 1024**2  # bytes; Ray refuses less than 75 MiB
NODE_LEAST = 350 * 1024**2  # bytes of a simulated node: its raylet, its agents and the least object store
# What would make a worker's `breakpoint()` or our own engine answer to somebody else, or to nobody.
DEBUG_VARIABLES = ("RAY_DEBUG", "RAY_DEBUG_POST_MORTEM", "PYTHONBREAKPOINT")
EXTERNAL = "--ray-debugger-external"
# `ray start` itself would not follow these, but a driver that is started inside of a worker would.
ELSEWHERE = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_NAMESPACE", "RAY_JOB_ID")
OURS = {
    "--head": "",
    "--block": "",
    "--address": "--join",
    "--port": "--port",
    "--dashboard-port": "--dashboard-port",
    "--dashboard-host": "--dashboard-host",
    "--include-dashboard": "",
    "--temp-dir": "--temp-dir",
    "--num-cpus": "--num-cpus",
    "--num-gpus": "--num-gpus",
    "--node-ip-address": "--node-ip",
}


@dataclass(frozen=True)
class ClusterOptions:
    """What `devkit debug-cluster` was asked for. None is: as Ray does, or as is free."""

    nodes: int = 1
    join: str | None = None  # HEAD:PORT
    legacy: bool = False
    auth: str | None = None  # "token" | "disabled"
    port: int | None = None
    dashboard_port: int | None = None
    dashboard_host: str = "127.0.0.1"
    dashboard: bool = True
    temp_dir: Path | None = None
    num_cpus: int | None = None  # of each node
    num_gpus: int | None = None  # of each node
    node_ip: str | None = None
    timeout: float = 60.0  # seconds until it has to be up
    wait_for: int = 0  # so many nodes of the whole cluster have to be alive, not only those started here
    await_head: bool = False  # with `join`: the head may come up later than this node
    head_is_ours: bool = False  # with `join`: the head was started with the same `auth`, so it need not be asked
    json: bool = False
    ray_arguments: tuple[str, ...] = ()  # further ones for each `ray start`

    @property
    def mode(self) -> Mode:
        return "legacy" if self.legacy else "distributed"


@dataclass(frozen=True)
class Plan:
    """The commands, heads first, each with the environment of its own."""

    port: int
    dashboard_port: int
    commands: tuple[tuple[str, ...], ...]
    environments: tuple[Mapping[str, str], ...] = field(repr=False)
    notes: tuple[str, ...]  # what the user should know of


def check(options: ClusterOptions) -> None:
    """Raises UsageError for options that cannot be right together."""
    if options.nodes < 1:
        raise UsageError(f"--nodes is {options.nodes}", hint="a cluster has at least one node, its head")
    if options.nodes > (most := max(1, processes.load_psutil().virtual_memory().total // NODE_LEAST)):
        raise UsageError(
            f"--nodes is {options.nodes}: each takes {NODE_LEAST >> 20} MB, but this machine has memory for {most}",
            hint="two to eight are enough to see what happens between nodes; add other machines with --join",
        )
    if options.temp_dir:
        destinations.refuse("--temp-dir", options.temp_dir, destinations.try_folder)
    if options.timeout <= 0:
        raise UsageError(f"--timeout is {options.timeout:g}", hint="a node needs a few seconds to start")
    if options.node_ip in ("127.0.0.1", "localhost", "::1"):
        raise UsageError(
            f"--node-ip is {options.node_ip}, which Ray replaces by this machine's address",
            hint="remove --node-ip, or use an address that other machines can reach",
        )
    if options.join:
        GcsAddress.parse(options.join)
        for name, value in (("--port", options.port), ("--dashboard-port", options.dashboard_port)):
            if value is not None:
                raise UsageError(f"{name} is an option of the head, which --join does not start", hint=f"remove {name}")
    for word in options.ray_arguments:
        name = word.partition("=")[0]
        if name in OURS:
            hint = f"devkit has its own {OURS[name]}" if OURS[name] else "devkit sets it itself"
            raise UsageError(f"{name} is not for `ray start` here", hint=hint)


def environment(
    options: ClusterOptions, auth: AuthMode, environ: Mapping[str, str], extra: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the nodes get, and which leftovers were taken out of it.

    >>> env, removed = environment(ClusterOptions(), "disabled", {"RAY_DEBUG": "legacy"}, {})
    >>> env["RAY_DEBUG"], removed
    ('1', ('RAY_DEBUG=legacy',))
    """
    # Post-mortem is the newer debugger's: with the older one a user who wants it says so.
    asked = {name: environ[name] for name in ("RAY_DEBUG_POST_MORTEM",) if options.legacy and name in environ}
    wanted = {"RAY_DEBUG": "legacy", **asked} if options.legacy else {"RAY_DEBUG": "1", "RAY_DEBUG_POST_MORTEM": "1"}
    removed = [
        f"{name}={environ[name]}" for name in DEBUG_VARIABLES if name in environ and environ[name] != wanted.get(name)
    ]
    if EXTERNAL in options.ray_arguments and not options.legacy:
        removed.append(EXTERNAL)
    kept = {name: value for name, value in environ.items() if name not in (*DEBUG_VARIABLES, *ELSEWHERE)}
    if auth == "disabled":
        kept.pop(TOKEN, None)
    merged = {
        "RAY_USAGE_STATS_ENABLED": "0",  # Ray would ask a person first; here nobody is asked
        **kept,
        **wanted,
        MODE: auth,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # nodes that join, on a Mac too
        **{name: value for name, value in extra.items() if name != "PYTHONPATH"},
    }
    # A job's `python` and `ray` are those of its nodes, also where no virtual environment was on PATH.
    merged["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    paths = [path for path in (extra.get("PYTHONPATH"), kept.get("PYTHONPATH")) if path]
    if paths:
        merged["PYTHONPATH"] = os.pathsep.join(paths)
    return merged, tuple(removed)


def plan(options: ClusterOptions, environ: Mapping[str, str]) -> Plan:
    """Decides on ports and shares of the machine. Raises UsageError if a wanted port is taken."""
    notes: list[str] = []
    joining = options.join is not None
    port = 0 if joining else _port("--port", options.port, GCS_PORT, "0.0.0.0", notes)
    dashboard = (
        0
        if joining or not options.dashboard
        else _port("--dashboard-port", options.dashboard_port, DASHBOARD_PORT, options.dashboard_host, notes)
    )
    alone = options.nodes == 1 and not processes.gcs_addresses()
    shared = [*_of_node(options, alone), *_own_arguments(options)]
    address = options.join or f"{options.node_ip or '127.0.0.1'}:{port}"
    folders = _folders(options, environ)
    heads = [] if joining else [("--head", *_of_head(options, port, dashboard), *folders.pop(0), *shared)]
    workers = [("--address", address, *folder, *shared) for folder in folders]
    python = plain_python()
    commands = tuple((python, *_RAY_START, *words) for words in (*heads, *workers))
    return Plan(port, dashboard, commands, _split_gpus(len(commands), options, environ), tuple(notes))


# -P: the current folder may hold modules with the names of those that Ray imports.
_RAY_START = ("-P", "-m", "ray.scripts.scripts", "start", "--block", "--log-color=false")


def _of_head(options: ClusterOptions, port: int, dashboard: int) -> list[str]:
    words = [f"--port={port}", f"--include-dashboard={str(options.dashboard).lower()}"]
    if options.dashboard:
        words += [f"--dashboard-host={options.dashboard_host}", f"--dashboard-port={dashboard}"]
    if find_spec("grpc") and (port != GCS_PORT or not is_free("0.0.0.0", CLIENT_PORT)):
        # Taken, it would end the server of Ray's client, and with that the whole node; another cluster that is about to
        # start may take it yet, so only the one on Ray's usual port has the usual one.
        words.append(f"--ray-client-server-port={free_port('0.0.0.0')}")
    return words


def _folders(options: ClusterOptions, environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Where each node keeps its files: one of several on a machine must not meet those of another.

    With one folder for all, a node that unpacks a job's --working-dir deletes what another one has unpacked there,
    under the feet of the job's driver (ray._private.runtime_env.working_dir, `overwrite=True`), and each node's log
    monitor prints every worker's lines once more. Up to 2.53 Ray gives all nodes the head's folder, whatever it is
    told.
    """
    named: tuple[str, ...] = (f"--temp-dir={options.temp_dir.absolute()}",) if options.temp_dir else ()
    top = (options.temp_dir or temporary_folder(environ)).absolute()
    beside = GcsAddress.parse(options.join).is_local if options.join and not options.temp_dir else False
    first = () if beside else named
    taken = f"{secrets.token_hex(2)}-" if options.join else ""  # others may have joined before
    return [
        (f"--temp-dir={top / f'node-{taken}{number}'}",) if number or beside else first
        for number in range(options.nodes)
    ]


def _of_node(options: ClusterOptions, alone: bool) -> list[str]:
    words = []
    if options.node_ip:
        words.append(f"--node-ip-address={options.node_ip}")
    if options.num_cpus is not None:
        words.append(f"--num-cpus={options.num_cpus}")
    if options.num_gpus is not None:
        words.append(f"--num-gpus={options.num_gpus}")
    if not alone:  # Ray's fixed ports are for one node per machine; 0 is any that is free
        words += ["--min-worker-port=0", "--max-worker-port=0"]
    if not alone or not is_free("0.0.0.0", AGENT_PORT):
        words.append("--dashboard-agent-listen-port=0")
    if options.nodes > 1 and not any(word.startswith("--object-store-memory") for word in options.ray_arguments):
        words.append(f"--object-store-memory={max(_for_stores() // options.nodes, OBJECT_STORE_LEAST)}")
    return words


def _for_stores() -> int:
    """Bytes for the object stores of this machine, all together: as many as Ray would take for one."""
    wanted = int(processes.load_psutil().virtual_memory().available * OBJECT_STORE_SHARE)
    try:
        shared = os.statvfs(SHARED_MEMORY)
    except OSError:  # not on Linux
        return wanted
    return min(wanted, max(int(shared.f_bsize * shared.f_bavail * 0.95), OBJECT_STORE_ANYWHERE))


def _own_arguments(options: ClusterOptions) -> list[str]:
    words = [word for word in options.ray_arguments if word != EXTERNAL]
    return [*words, EXTERNAL] if options.legacy else words


def _split_gpus(nodes: int, options: ClusterOptions, environ: Mapping[str, str]) -> tuple[Mapping[str, str], ...]:
    """Simulated nodes share the machine's GPUs out; left to itself each would claim them all."""
    devices = _devices(environ)
    if nodes < 2 or not devices:
        return ({},) * nodes
    if options.num_gpus is None:
        return tuple({"CUDA_VISIBLE_DEVICES": ",".join(devices[number::nodes])} for number in range(nodes))
    each = options.num_gpus
    if each * nodes > len(devices):
        raise UsageError(
            f"--num-gpus {each} for each of {nodes} nodes, but {len(devices)} are visible here",
            hint="remove --num-gpus: the nodes then share the GPUs",
        )
    shares = [devices[number * each : (number + 1) * each] for number in range(nodes)]
    return tuple({"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares)


def _devices(environ: Mapping[str, str]) -> list[str]:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device for device in visible.split(",") if device and device != "-1"]
    with suppress(OSError):
        return [str(number) for number, _ in enumerate(os.listdir("/proc/driver/nvidia/gpus"))]
    return []


def _port(option: str, wanted: int | None, default: int, host: str, notes: list[str]) -> int:
    if wanted is not None:
        if not 0 <= wanted < 65536:
            raise UsageError(f"{option} is {wanted}", hint="a port is a number from 1 to 65535; 0 means any free port")
        if wanted and not is_free(host, wanted):
            raise UsageError(f"{option} {wanted}: that port is in use", hint=f"remove {option} to use a free port")
        return wanted or free_port(host)
    if is_free(host, default):
        return default
    found = free_port(host)
    notes.append(f"port {default} is in use: {option} is {found}")
    return found


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there, as Ray's do: also while connections of an earlier one linger."""
    try:
        with _listener(host, port):
            pass
    except OSError:
        return False
    return host == "0.0.0.0" or _nobody_on_all(port)


def _nobody_on_all(port: int) -> bool:
    try:
        with _listener("0.0.0.0", port):
            return True
    except OSError:
        return False


def free_port(host: str) -> int:
    """One that is likely to be free still when a server starts there.

    What the kernel gives by itself may be taken by any connection until then, and by Ray's workers what is below.
    """
    for _ in range(TRIES):
        port = random.randint(*QUIET_PORTS)
        if is_free(host, port):
            return port
    with _listener(host, 0) as listener:
        return int(listener.getsockname()[1])


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    with ExitStack() as unfinished:
        unfinished.callback(listener.close)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1)
        unfinished.pop_all()
    return listener


def debugpy_problem() -> str | None:
    """Why Ray's own extension could not attach to a worker here. Our engine does without debugpy."""
    if find_spec("debugpy"):
        return None
    return (
        "debugpy is missing in the workers' Python: Ray's own VS Code extension needs it, devkit does not; install: "
        f"{sys.executable} -m pip install debugpy"
    )
