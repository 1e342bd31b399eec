"""The verbs of `devkit debug-cluster`: each is one short function over one module, imported when it is called."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from devkit.asking import asking
from devkit.debug.verbs import Json
from devkit.durations import duration

app = typer.Typer(
    name="debug-cluster",
    help="Start Ray with debugging enabled, on one or many machines.",
    invoke_without_command=True,
)


@app.callback()
def debug_cluster(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Simulate this many nodes on this machine.")] = 1,
    join: Annotated[str | None, typer.Option(metavar="HEAD:PORT", help="Join that head as a worker node.")] = None,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="FILE|H1,H2", help="Start it on these machines through ssh; the first is the head."),
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Python on the remote hosts [default: same path as here].")
    ] = None,
    from_env: Annotated[
        bool,
        typer.Option(
            "--from-env",
            help="For a command run on every machine: take MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK from there.",
        ),
    ] = False,
    legacy: Annotated[bool, typer.Option("--legacy", help="Enable Ray's older debugger, for `ray debug`.")] = False,
    auth: Annotated[
        str | None,
        typer.Option(metavar="token|disabled", help="Ray's token authentication [default: $RAY_AUTH_MODE, or token]."),
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="GCS port [default: 6379, or a free one].")] = None,
    dashboard_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Dashboard port [default: 8265, or a free one].")
    ] = None,
    dashboard_host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="Address the dashboard listens on [default: 127.0.0.1, or 0.0.0.0 on many machines]."
        ),
    ] = None,
    no_dashboard: Annotated[
        bool, typer.Option("--no-dashboard", help="Start no dashboard; jobs, logs, stop and submit need one.")
    ] = False,
    temp_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Ray's session folder.")] = None,
    num_cpus: Annotated[int | None, typer.Option(metavar="N", min=0, help="CPUs of each node.")] = None,
    num_gpus: Annotated[int | None, typer.Option(metavar="N", min=0, help="GPUs of each node.")] = None,
    node_ip: Annotated[
        str | None, typer.Option(metavar="IP", help="The address other nodes use to reach this one.")
    ] = None,
    timeout: Annotated[
        float | None, duration(help="Time limit for all nodes to start [default: 60; 300 with --from-env].", least=1)
    ] = None,
    block: Annotated[
        bool, typer.Option("--block", help="Run in the foreground; stop the nodes on SIGTERM or Ctrl-C.")
    ] = False,
    json: Json = False,
) -> int:
    """Start a cluster that can be debugged; see also `status` and `stop`."""
    context.meta["json"] = json
    if context.invoked_subcommand is not None:
        return 0
    from devkit.debug.ray_start import ClusterOptions
    from devkit.launch.ways import main

    given = {"dashboard_host": dashboard_host, "timeout": timeout}
    options = ClusterOptions(
        nodes=nodes,
        join=join,
        legacy=legacy,
        auth=auth,
        port=port,
        dashboard_port=dashboard_port,
        dashboard=not no_dashboard,
        temp_dir=temp_dir,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        node_ip=node_ip,
        json=json,
    )
    return main(options, given, hosts=hosts, python=python, from_env=from_env, block=block)


@app.command()
@asking
def status(context: typer.Context, json: Json = False) -> int:
    """Show the clusters that devkit started on this machine."""
    from devkit.debug.cluster_view import status_main

    return status_main(json=json or context.meta["json"])


@app.command()
@partial(asking, text="How long its processes may take to end before they are killed.")
def stop(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name or address of a cluster [default: all].")
    ] = None,
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", help="Keep Ray's logs even where devkit would delete them.")
    ] = False,
    json: Json = False,
) -> int:
    """Stop the clusters that devkit started here, and nothing else."""
    from devkit.debug.cluster_view import stop_main

    return stop_main(target, json=json or context.meta["json"], keep_logs=keep_logs)
