"""The verbs of `devkit debug-cluster`: each is one short function over one module, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from devkit.debug.verbs import Json
from devkit.durations import duration

app = typer.Typer(
    name="debug-cluster",
    help="Ray with post-mortem debugging on, here or on many machines.",
    invoke_without_command=True,
)


@app.callback()
def debug_cluster(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Simulate this many nodes here.")] = 1,
    join: Annotated[str | None, typer.Option(metavar="HEAD:PORT", help="Be a worker node of that head.")] = None,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="FILE|H1,H2", help="Through ssh on these machines; the first is the head."),
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="With --hosts: the interpreter there; the path of this one.")
    ] = None,
    from_env: Annotated[
        bool,
        typer.Option(
            "--from-env",
            help="The same command on every machine: MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK say who.",
        ),
    ] = False,
    legacy: Annotated[bool, typer.Option("--legacy", help="With Ray's older debugger, for `ray debug`.")] = False,
    auth: Annotated[
        str | None,
        typer.Option(metavar="token|disabled", help="Ray's token authentication; RAY_AUTH_MODE, else token."),
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="Of the GCS; 6379 or a free one.")] = None,
    dashboard_port: Annotated[int | None, typer.Option(metavar="PORT", help="8265 or a free one.")] = None,
    dashboard_host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Where the dashboard listens; 127.0.0.1, or 0.0.0.0 on many machines."),
    ] = None,
    no_dashboard: Annotated[
        bool, typer.Option("--no-dashboard", help="Without; jobs, logs, stop and submit need one.")
    ] = False,
    temp_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Ray's folder for sessions.")] = None,
    num_cpus: Annotated[int | None, typer.Option(metavar="N", min=0, help="Of each node.")] = None,
    num_gpus: Annotated[int | None, typer.Option(metavar="N", min=0, help="Of each node.")] = None,
    node_ip: Annotated[str | None, typer.Option(metavar="IP", help="The address that other nodes see.")] = None,
    timeout: Annotated[float | None, duration(help="Until it has to be up; 60, with --from-env 300.", least=1)] = None,
    block: Annotated[bool, typer.Option("--block", help="Stay, and end the nodes on SIGTERM or Ctrl-C.")] = False,
    json: Json = False,
) -> int:
    """Start a cluster that can be debugged; `status` and `stop` know what was started."""
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
def status(context: typer.Context, json: Json = False) -> int:
    """Say how the clusters are that devkit started here."""
    from devkit.debug.cluster_view import status_main

    return status_main(json=json or context.meta["json"])


@app.command()
def stop(
    context: typer.Context,
    target: Annotated[str | None, typer.Argument(metavar="NAME", help="Its name or address; all by default.")] = None,
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", help="Leave Ray's logs also where they are in a folder of devkit's own.")
    ] = False,
    json: Json = False,
) -> int:
    """End what devkit started here, and nothing else."""
    from devkit.debug.cluster_view import stop_main

    return stop_main(target, json=json or context.meta["json"], keep_logs=keep_logs)
