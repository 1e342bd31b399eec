"""`devkit debug-cluster` on the terminal: what it prints, and the exit codes of its three verbs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from devkit import console
from devkit.debug import cluster, hold
from devkit.debug.cluster_records import DebugCluster, Stopped
from devkit.debug.ray_start import ClusterOptions
from devkit.errors import UnreachableError

if TYPE_CHECKING:
    from rich.table import Table


def start_main(options: ClusterOptions, *, block: bool = False) -> int:
    """Starts a cluster, or joins one; 0 when all of its nodes are alive; with `block`, when told to end."""
    if not block:
        _start(options)
        return 0
    with hold.terminable():
        return hold.hold(_start(options))


def _start(options: ClusterOptions) -> DebugCluster:
    talk = console.talk()
    started = cluster.start(options, lambda note: talk.print(note, soft_wrap=True))
    if options.json:
        console.emit(started.to_json())
        return started
    out = console.result()
    out.print(_nodes(started))
    for line in _joined(started) if options.join else _next_steps(started):
        out.print(line, soft_wrap=True)
    return started


def status_main(*, json: bool) -> int:
    """0: all that devkit started is fine; 1: something isn't. Raises UnreachableError if it started nothing."""
    found = cluster.status()
    if not found:
        raise UnreachableError("no cluster that devkit started runs here", hint="devkit debug-cluster starts one")
    if json:
        console.emit({"clusters": [each.to_json() for each in found]})
    else:
        out = console.result()
        for each in found:
            out.print(_headline(each), soft_wrap=True)
            out.print(_nodes(each))
            out.print(f"logs       {each.logs}\n", soft_wrap=True)
    return 1 if any(each.problem for each in found) else 0


def stop_main(target: str | None = None, *, json: bool) -> int:
    """Ends what devkit started here, or the one with that name or address. 0 also if there was nothing."""
    stopped = cluster.stop(target)
    if json:
        console.emit({"stopped": [each.to_json() for each in stopped]})
        return 0
    for each in stopped:
        console.result().print(_ended(each), soft_wrap=True)
    if not stopped:
        console.talk().print("nothing to stop: no cluster that devkit started runs here", soft_wrap=True)
    return 0


def _nodes(shown: DebugCluster) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("node", "ip", "state", "CPUs", "GPUs"):
        table.add_column(heading, justify="right" if heading.endswith("s") else "left", no_wrap=True)
    for node in shown.nodes:
        name = node.node_id[:8] + (" (head)" if node.head else "")
        table.add_row(name, node.ip, "alive" if node.alive else "dead", f"{node.cpus:g}", f"{node.gpus:g}")
    return table


def _headline(shown: DebugCluster) -> str:
    where = shown.dashboard_url or "no dashboard that can be reached from here"
    problem = f"  NOT FINE: {shown.problem}" if shown.problem else ""
    return f"{shown.name}  {shown.gcs_address}  {where}  {shown.debug.mode}{problem}"


def _ended(stopped: Stopped) -> str:
    # Ray itself waits ten seconds for an actor that lives, and the hub is one.
    killed = f" ({stopped.killed} killed: Ray waits for living actors)" if stopped.killed else ""
    return f"stopped {stopped.name} ({stopped.gcs_address}): {stopped.processes} processes{killed}"


def _joined(joined: DebugCluster) -> Iterator[str]:
    yield ""
    yield f"joined     {joined.gcs_address}"
    yield f"logs       {joined.logs}"
    yield "stop       devkit debug-cluster stop"


def _next_steps(started: DebugCluster) -> Iterator[str]:
    yield ""
    yield f"GCS        {started.gcs_address}"
    yield f"dashboard  {started.dashboard_url}"
    yield f"token      {_token(started)}"
    yield f"logs       {started.logs}"
    yield ""
    yield "Use it from this terminal, for devkit and for your own programs:"
    yield f"  export RAY_ADDRESS={started.gcs_address} RAY_AUTH_MODE={started.auth.mode}"
    yield "Add another machine, there:"
    yield f"  {started.join_command}"
    if started.auth.mode == "token":
        yield "  with the same token: " + _travel(started.auth.source)
    yield ""
    yield from _legacy(started) if started.debug.mode == "legacy" else _vs_code(started)
    yield ""
    yield "Stop it:  devkit debug-cluster stop"


def _token(started: DebugCluster) -> str:
    return f"asked for; yours is in {started.auth.source}" if started.auth.mode == "token" else "none asked for"


def _travel(source: str) -> str:
    if source == "RAY_AUTH_TOKEN":
        return "set RAY_AUTH_TOKEN there to what it is here"
    return f"scp {source} MACHINE:.ray/auth_token (the folder and the file for its owner alone)"


def _vs_code(started: DebugCluster) -> Iterator[str]:
    yield "In VS Code:"
    yield "  1. install the extension: devkit vscode install (Ray's Distributed Debugger works, too)"
    yield f"  2. in its panel, add the cluster {started.dashboard_url}"
    yield "  3. run your program; what stops is listed in the panel: click to attach"


def _legacy(started: DebugCluster) -> Iterator[str]:
    yield "Old debugger: run your program; when it has stopped at a breakpoint()"
    yield f"  ray debug --address={started.gcs_address}"
