"""`devkit launch` on the command line. Each verb is one short function over one module, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from devkit.debug.verbs import Command, Json

app = typer.Typer(name="launch", help="Bring a cluster up where Slurm, dstack or Kubernetes has the machines.")

Nodes = Annotated[int, typer.Option(metavar="N", min=1, help="How many.")]
Breaks = Annotated[
    list[str] | None, typer.Option("--break", metavar="SPEC", help="A breakpoint in CMD; may be repeated.")
]
PostMortem = Annotated[str, typer.Option(metavar="snapshot|pause|off", help="What an exception in CMD leaves.")]
Variables = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="For all nodes; NAME alone: as it is there.")
]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", min=1, help="Until all nodes have to be up.")]
Output = Annotated[str, typer.Option(metavar="FILE", help="Write it there; - or nothing: to stdout.")]


@app.command()
def slurm(
    command: Command = None,
    nodes: Nodes = 2,
    gpus: Annotated[str, typer.Option(metavar="N|TYPE:N", help="GPUs of each node.")] = "",
    cpus: Annotated[int | None, typer.Option(metavar="N", min=1, help="CPUs of each node.")] = None,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of each node, as in 200G.")] = "",
    time: Annotated[str, typer.Option(metavar="TIME", help="As Slurm writes it: 2-00:00:00.")] = "",
    partition: Annotated[str, typer.Option(metavar="NAME", help="Where to run.")] = "",
    account: Annotated[str, typer.Option(metavar="NAME", help="Who pays.")] = "",
    job_name: Annotated[str, typer.Option(metavar="NAME", help="The job's name.")] = "devkit",
    log: Annotated[str, typer.Option(metavar="FILE", help="Where the job prints to.")] = "slurm-%j.out",
    sbatch: Annotated[
        list[str] | None, typer.Option("--sbatch", metavar="OPTION", help="One more of sbatch: --sbatch=--qos=high.")
    ] = None,
    specs: Breaks = None,
    post_mortem: PostMortem = "snapshot",
    container: Annotated[
        str, typer.Option(metavar="docker|podman|enroot|pyxis", help="Run the nodes and CMD in containers.")
    ] = "",
    image: Annotated[str, typer.Option(metavar="IMG", help="Their image; it has devkit in it.")] = "",
    mount: Annotated[
        list[str] | None, typer.Option("--mount", metavar="SRC:DST", help="Beside the current folder; repeatable.")
    ] = None,
    container_option: Annotated[
        list[str] | None, typer.Option("--container-option", metavar="OPTION", help="One more of the runtime's own.")
    ] = None,
    rocm: Annotated[bool, typer.Option("--rocm", help="AMD's GPUs.")] = False,
    env: Variables = None,
    python: Annotated[
        str, typer.Option(metavar="PATH", help="A Python with devkit on every node; this one, or the image's.")
    ] = "",
    dashboard_host: Annotated[str, typer.Option(metavar="HOST", help="Where the dashboard listens.")] = "0.0.0.0",
    timeout: Timeout = 300.0,
    output: Output = "",
    submit: Annotated[bool, typer.Option("--submit", help="Submit it, and follow the job to its end.")] = False,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="With --submit: don't wait for the job.")] = False,
    here: Annotated[bool, typer.Option("--here", help="Run in the allocation that this shell is in.")] = False,
    queue_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long the job may wait for its nodes.")
    ] = 0.0,
    json: Json = False,
) -> int:
    """An sbatch script: a Ray with debugging on over the nodes of a job, and CMD on it."""
    from devkit.launch.slurm import SlurmOptions
    from devkit.launch.slurm_run import SlurmAction, main

    options = SlurmOptions(
        command=tuple(command or ()),
        nodes=nodes,
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        time=time,
        partition=partition,
        account=account,
        job_name=job_name,
        log=log,
        sbatch=tuple(sbatch or ()),
        specs=tuple(specs or ()),
        post_mortem=post_mortem,
        container=container,
        image=image,
        mounts=tuple(mount or ()),
        container_options=tuple(container_option or ()),
        rocm=rocm,
        variables=tuple(env or ()),
        python=python,
        dashboard_host=dashboard_host,
        timeout=timeout,
    )
    return main(options, SlurmAction(output, submit, not no_follow, here, queue_timeout, json))
