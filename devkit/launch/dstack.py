"""`devkit launch dstack`: a task for dstack, as YAML. Pure; `dstack apply` is the user's.

dstack starts the same commands on every node. Here they are one shell program, so that a failure ends the node, and
what belongs together stands together: the words of the training command are words, and none can fall behind a pipe.
It is for /bin/sh, which dstack takes where there is an image.

The token is `RAY_AUTH_TOKEN` by name alone: `dstack apply` takes its value from the environment that it is called in.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from devkit import console
from devkit.debug.launch import POST_MORTEM
from devkit.errors import UsageError
from devkit.launch.files import as_yaml, write

GCS_PORT, DASHBOARD_PORT = 6379, 8265
_NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")  # dstack's own rule
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?\s?(MB|GB|TB)", re.IGNORECASE)

# Prints nothing while it waits but the number of nodes, whenever it changes; fails with those that are missing.
AWAIT_NODES = """\
import os, sys, time
from ray._raylet import GcsClient
wanted, seconds = int(sys.argv[2]), float(sys.argv[3])
client, deadline, told = GcsClient(address=sys.argv[1]), time.monotonic() + seconds, -1
while True:
    there = sorted(n.node_manager_address for n in client.get_all_node_info(timeout=10).values() if n.state == 0)
    if len(there) != told:
        told = len(there)
        print("devkit:", told, "of", wanted, "nodes:", *there, file=sys.stderr, flush=True)
    if told >= wanted:
        break
    if time.monotonic() > deadline:
        missing = sorted(set(os.environ.get("DSTACK_NODES_IPS", "").split()) - set(there))
        print(f"error: after {seconds:g} s {wanted - told} of {wanted} nodes are missing:", *missing, file=sys.stderr)
        print("hint: dstack logs --job NUMBER shows what a node says", file=sys.stderr)
        sys.exit(4)
    time.sleep(0.5)
"""
AWAIT_HEAD = """\
import socket, sys, time
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
deadline = time.monotonic() + seconds
while True:
    try:
        socket.create_connection((host, port), 5).close()
        break
    except OSError as error:
        if time.monotonic() > deadline:
            print(f"error: after {seconds:g} s no Ray answers at the head, {host}:{port}: {error}", file=sys.stderr)
            print("hint: dstack logs --job 0 shows what the head says", file=sys.stderr)
            sys.exit(4)
        time.sleep(0.5)
"""


@dataclass(frozen=True)
class DstackOptions:
    """What is to be made of it. Empty: as dstack has it."""

    command: tuple[str, ...] = ()  # empty: the cluster alone, until it is stopped
    name: str = "devkit"
    nodes: int = 2
    gpus: str = ""  # of each node, in dstack's words: 80GB:8, H100:8
    image: str = ""
    shared_memory: str = ""  # /dev/shm of each node, as in 128GB
    variables: tuple[str, ...] = ()  # NAME=VALUE, or NAME: as it is where `dstack apply` is called
    volumes: tuple[str, ...] = ()  # SRC:DST
    setup: tuple[str, ...] = ()  # shell commands, before anything else, on every node
    specs: tuple[str, ...] = ()  # breakpoints; the image has devkit then
    post_mortem: str = "snapshot"
    timeout: float = 600.0  # seconds until all nodes have to be up


def main(options: DstackOptions, output: str = "", *, json: bool = False) -> int:
    """Writes the file, and says what is to be typed next."""
    if json and not output:
        console.emit(configuration(options))
        return 0
    write(as_yaml(configuration(options)), output or "-")
    if output not in ("", "-"):
        for line in how_to_use(output):
            console.talk().print(line, soft_wrap=True)
    return 0


def how_to_use(file: str) -> tuple[str, ...]:
    return (
        'export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(openssl rand -hex 32)"',
        f"dstack apply -f {shlex.quote(file)}",
        "devkit ps --address http://127.0.0.1:8265   # from another terminal, with the same token",
    )


def configuration(options: DstackOptions) -> dict[str, Any]:
    """The task. Raises UsageError for options that cannot be right."""
    check(options)
    made: dict[str, Any] = {"type": "task", "name": options.name, "nodes": options.nodes}
    if options.image:
        made["image"] = options.image
    made |= {
        "env": list(_environment(options)),
        "commands": [*options.setup, program(options)],
        "ports": [DASHBOARD_PORT],
        # A worker has no end of its own: it stays for as long as the head has something to do.
        "stop_criteria": "master-done",
    }
    resources = {"gpu": options.gpus, "shm_size": options.shared_memory}
    if any(resources.values()):
        made["resources"] = {name: value for name, value in resources.items() if value}
    if options.volumes:
        made["volumes"] = list(options.volumes)
    return made


def check(options: DstackOptions) -> None:
    """Raises UsageError for options that cannot be right."""
    if not _NAME.fullmatch(options.name):
        raise UsageError(f"--name is {options.name!r}", hint="lower-case letters, digits and -, 2 to 41 characters")
    if options.nodes < 1:
        raise UsageError(f"--nodes is {options.nodes}", hint="a cluster has at least one node, its head")
    if options.shared_memory and not _SIZE.fullmatch(options.shared_memory):
        raise UsageError(f"--shared-memory is {options.shared_memory!r}", hint="in dstack's format: 128GB")
    if options.post_mortem not in POST_MORTEM:
        raise UsageError(f"--post-mortem is {options.post_mortem!r}", hint=f"it takes {', '.join(POST_MORTEM)}")
    for text in options.variables:
        name = text.partition("=")[0]
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"--env is {text!r}", hint="--env NAME=VALUE, or --env NAME")
        if name.startswith("RAY_AUTH_"):
            raise UsageError(
                f"--env {name}: it is already passed by name", hint="dstack apply takes it from its own environment"
            )
    for text in options.volumes:
        if not re.fullmatch(r"[^:]+:/[^:]*", text):
            raise UsageError(f"--volume is {text!r}", hint="--volume NAME:/PATH, or --volume /ON/THE/HOST:/PATH")
    if any("${{" in word for word in options.command):
        raise UsageError("the command contains ${{", hint="dstack would replace it with one of its secrets")


def _environment(options: DstackOptions) -> Iterator[str]:
    yield from ("RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN")
    yield from ("RAY_DEBUG=1", "RAY_DEBUG_POST_MORTEM=1", "RAY_USAGE_STATS_ENABLED=0", "PYTHONUNBUFFERED=1")
    yield from options.variables


def program(options: DstackOptions) -> str:
    """What runs on every node: the head of rank 0, the others join it."""
    words = [f"--break={spec}" for spec in options.specs]
    if options.post_mortem != "snapshot":
        words.append(f"--post-mortem={options.post_mortem}")
    debugged = ("python3", "-P", "-m", "devkit", "run", *words, "--") if words else ()
    # `exec`: the exit code of the command is that of the node, and no pipe can be put behind it by mistake.
    last = f"exec {shlex.join((*debugged, *options.command))}" if options.command else "exec sleep infinity"
    seconds = f"{options.timeout:.0f}"
    return "\n".join(
        (
            "set -eu",
            'ip=$(printf "%s\\n" "$DSTACK_NODES_IPS" | sed -n "$((DSTACK_NODE_RANK + 1))p")',
            'if [ "$DSTACK_NODE_RANK" != 0 ]; then',
            f'  python3 -c {shlex.quote(AWAIT_HEAD)} "$DSTACK_MASTER_NODE_IP" {GCS_PORT} {seconds}',
            f'  exec ray start --block --address="$DSTACK_MASTER_NODE_IP:{GCS_PORT}" ${{ip:+--node-ip-address="$ip"}}',
            "fi",
            f'ray start --head --port={GCS_PORT} --node-ip-address="$DSTACK_MASTER_NODE_IP" '
            f"--dashboard-host=0.0.0.0 --dashboard-port={DASHBOARD_PORT}",
            f'export RAY_ADDRESS="$DSTACK_MASTER_NODE_IP:{GCS_PORT}"',
            f'python3 -c {shlex.quote(AWAIT_NODES)} "$RAY_ADDRESS" "$DSTACK_NODES_NUM" {seconds}',
            last,
            "",
        )
    )
