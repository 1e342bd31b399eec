"""`devkit debug-cluster` on the terminal: what it prints, and the exit codes of its three verbs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from devkit import console
from devkit.debug import cluster, hold, launched
from devkit.debug.cluster_records import DebugCluster, Stopped
from devkit.debug.ray_start import ClusterOptions
from devkit.errors import UnreachableError
from devkit.signals import interrupting

if TYPE_CHECKING:
    from rich.table import Table


def start_main(options: ClusterOptions, *, block: bool = False) -> int:
    """Starts a cluster, or joins one; 0 when all of its nodes are alive; with `block`, when told to end."""

    def start() -> DebugCluster:
        talk = console.talk()
        started = cluster.start(options, lambda note: talk.print(note, soft_wrap=True))
        show_started(started, json=options.json, joined=bool(options.join))
        return started

    return stay(start, block=block)


def stay(start: Callable[[], DebugCluster], *, block: bool) -> int:
    """Starts; with `block` it stays until the nodes end, or it is told to end them."""
    with interrupting():
        started = start()
        return hold.hold(started) if block else 0


def show_started(started: DebugCluster, *, json: bool, joined: bool = False) -> None:
    """The cluster that is up now, and what to do with it."""
    if json:
        console.emit(started.to_json())
        return
    out = console.result()
    out.print(_nodes(started))
    for line in _joined(started) if joined else _next_steps(started):
        out.print(line, soft_wrap=True)


def status_main(*, json: bool) -> int:
    """0: all that devkit started is fine; 1: something isn't. Raises UnreachableError if it started nothing."""
    elsewhere = _launched_status()
    known = {each.gcs_address for each in elsewhere}
    here = (each for each in cluster.status() if each.gcs_address not in known)  # this machine may be a host of one
    found = (*here, *elsewhere)
    if not found:
        raise UnreachableError("no cluster started by devkit is running here", hint="devkit debug-cluster starts one")
    if json:
        console.emit({"clusters": [each.to_json() for each in found]})
    else:
        out = console.result()
        for each in found:
            for line in _head(each):
                out.print(line, soft_wrap=True)
            out.print(_nodes(each))
            out.print()
    return 1 if any(each.problem for each in found) else 0


def stop_main(target: str | None = None, *, json: bool, keep_logs: bool = False) -> int:
    """Ends what devkit started from here, or the one with that name or address. 0 also if there was nothing; 1: on a
    host that cannot be reached something may still run."""
    elsewhere = _stop_launched(target, keep_logs)
    here = cluster.stop(target, keep_logs=keep_logs) if target is None or not elsewhere else ()
    stopped = (*here, *elsewhere)
    if json:
        console.emit({"stopped": [each.to_json() for each in stopped]})
    else:
        for each in stopped:
            console.result().print(_ended(each), soft_wrap=True)
    if not stopped:
        console.talk().print("nothing to stop: no cluster started by devkit is running here", soft_wrap=True)
    if os.environ.get("RAY_ADDRESS") in {each.gcs_address for each in stopped if not each.problem}:
        console.talk().print("RAY_ADDRESS still names it: unset RAY_ADDRESS RAY_AUTH_MODE", soft_wrap=True)
    return 1 if any(each.problem for each in stopped) else 0


def _launched_status() -> tuple[DebugCluster, ...]:
    """Of the clusters on other machines, if there are any."""
    if not launched.all_launched():
        return ()
    from devkit.launch import remote

    return remote.status()


def _stop_launched(target: str | None, keep_logs: bool) -> tuple[Stopped, ...]:
    if not launched.all_launched():
        return ()
    from devkit.launch import remote

    return remote.stop(target, keep_logs=keep_logs)


def _nodes(shown: DebugCluster) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    names = {host.ip: host.name for host in shown.hosts}
    for heading in ("node", "ip", "state", "CPUs", "GPUs", *(["host"] if names else [])):
        table.add_column(heading, justify="right" if heading in ("CPUs", "GPUs") else "left", no_wrap=True)
    for node in shown.nodes:
        name = node.node_id[:8] + (" (head)" if node.head else "")
        host = [names.get(node.ip, "")] if names else []
        table.add_row(name, node.ip, "alive" if node.alive else "dead", f"{node.cpus:g}", f"{node.gpus:g}", *host)
    return table


def _head(shown: DebugCluster) -> Iterator[str]:
    """The same names as when it was started."""
    yield f"cluster    {shown.name}"
    if shown.problem:
        yield f"problem    {shown.problem}"
    yield f"GCS        {shown.gcs_address}"
    yield f"dashboard  {shown.dashboard_url or 'not reachable from here'}"
    yield f"debugger   {shown.debug.mode}"
    yield f"logs       {shown.logs}"


def _ended(stopped: Stopped) -> str:
    logs = f"; Ray's logs are kept in {stopped.logs}" if stopped.logs else ""
    problem = f"; NOT FULLY STOPPED: {stopped.problem}" if stopped.problem else ""
    return f"stopped {stopped.name} ({stopped.gcs_address}): {stopped.processes} processes{logs}{problem}"


def _joined(joined: DebugCluster) -> Iterator[str]:
    yield ""
    yield f"joined     {joined.gcs_address}"
    yield f"logs       {joined.logs}"
    yield f"stop       {_stop(joined)}"


def _next_steps(started: DebugCluster) -> Iterator[str]:
    yield ""
    yield f"GCS        {started.gcs_address}"
    yield f"dashboard  {started.dashboard_url or 'none: devkit jobs, logs, stop and submit need one'}"
    yield f"token      {_token(started)}"
    yield f"logs       {started.logs}"
    yield ""
    yield "To use it from a terminal, for devkit and for your own programs:"
    yield f"  export RAY_ADDRESS={started.gcs_address} RAY_AUTH_MODE={started.auth.mode}"
    yield "To add another machine, run there:"
    yield f"  {started.join_command}"
    if started.auth.mode == "token":
        yield "  it needs the same token: " + _travel(started.auth.source)
    yield ""
    if started.debug.mode == "legacy" or started.dashboard_url:
        yield from _legacy(started) if started.debug.mode == "legacy" else _vs_code(started)
        yield ""
    yield f"Stop it:  {_stop(started)}"


def _stop(shown: DebugCluster) -> str:
    """This one alone, whatever else runs by then."""
    return f"devkit debug-cluster stop {shown.name}"


def _token(started: DebugCluster) -> str:
    return f"required (yours: {started.auth.source})" if started.auth.mode == "token" else "not required"


def _travel(source: str) -> str:
    if source == "RAY_AUTH_TOKEN":
        return "set RAY_AUTH_TOKEN there to the value it has here"
    return f"scp {source} MACHINE:.ray/auth_token (readable by the owner only)"


def _vs_code(started: DebugCluster) -> Iterator[str]:
    yield "In VS Code:"
    yield "  1. install devkit's extension: devkit vscode install"
    yield f"  2. in its panel, add the cluster {started.dashboard_url}"
    yield "  3. run your program; paused ranks are listed in the panel: click one to attach"
    yield "Ray's own Distributed Debugger extension should list them too"
    yield f"(not tested with the extension itself{_no_token(started)})"


def _no_token(started: DebugCluster) -> str:
    return "; it needs --auth disabled if it cannot send a token" if started.auth.mode == "token" else ""


def _legacy(started: DebugCluster) -> Iterator[str]:
    yield "Ray's older debugger: run your program; once it is at a breakpoint(), run in another terminal:"
    yield f"  export RAY_DEBUG=legacy{' RAY_AUTH_MODE=token' if started.auth.mode == 'token' else ''}"
    yield f"  ray debug --address={started.gcs_address}"
