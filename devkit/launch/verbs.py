"""`devkit launch` on the command line. Each verb is one short function over one module, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from devkit import destinations
from devkit.debug.verbs import Command, Json
from devkit.durations import duration

app = typer.Typer(name="launch", help="Bring a cluster up where Slurm, dstack or Kubernetes has the machines.")

Nodes = Annotated[int, typer.Option(metavar="N", min=1, help="How many.")]
Breaks = Annotated[
    list[str] | None, typer.Option("--break", metavar="SPEC", help="A breakpoint in CMD; may be repeated.")
]
PostMortem = Annotated[str, typer.Option(metavar="snapshot|pause|off", help="What an exception in CMD leaves.")]
Variables = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="For all nodes; NAME alone: as it is there.")
]
Timeout = Annotated[float, duration(help="Until all nodes have to be up.", least=1)]
Output = Annotated[str, destinations.file(help="Write it there; - or nothing: to stdout.")]


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
        float, duration(help="How long the job may wait for its nodes; 0: without end.", never=True)
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


@app.command()
def kuberay(
    command: Command = None,
    image: Annotated[str, typer.Option(metavar="IMG", help="With Ray in it, on every node.")] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the RayCluster, or of the RayJob.")] = "devkit",
    namespace: Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="Where; kubectl's own.")] = "",
    nodes: Nodes = 2,
    gpus: Annotated[int, typer.Option(metavar="N", min=0, help="GPUs of each node.")] = 0,
    cpus: Annotated[str, typer.Option(metavar="N", help="CPUs of each node.")] = "4",
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of each node, as in 64Gi.")] = "16Gi",
    shared_memory: Annotated[str, typer.Option(metavar="SIZE", help="/dev/shm of each node.")] = "8Gi",
    rocm: Annotated[bool, typer.Option("--rocm", help="AMD's GPUs.")] = False,
    ray_version: Annotated[str, typer.Option(metavar="VERSION", help="The image's Ray; as here by default.")] = "",
    token_secret: Annotated[
        str, typer.Option(metavar="NAME", help="A Secret that has the token as auth_token; else one is made.")
    ] = "",
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="For all nodes; repeatable.")
    ] = None,
    claim: Annotated[
        list[str] | None, typer.Option("--claim", metavar="NAME:PATH", help="A PersistentVolumeClaim; repeatable.")
    ] = None,
    specs: Breaks = None,
    post_mortem: PostMortem = "snapshot",
    output: Output = "",
    apply: Annotated[bool, typer.Option("--apply", help="Apply it with kubectl, and wait for it.")] = False,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="With --apply: don't wait for the job.")] = False,
    context: Annotated[str, typer.Option(metavar="NAME", help="kubectl's context.")] = "",
    timeout: Timeout = 600.0,
    json: Json = False,
) -> int:
    """A RayCluster with debugging on; with CMD, a RayJob that runs it on one."""
    from importlib.metadata import version

    from devkit.launch.kuberay import KubeRayOptions
    from devkit.launch.kuberay_run import KubeRayAction, main

    options = KubeRayOptions(
        image=image,
        command=tuple(command or ()),
        name=name,
        namespace=namespace,
        nodes=nodes,
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        shared_memory=shared_memory,
        rocm=rocm,
        ray_version=ray_version or version("ray"),
        secret=token_secret,
        variables=tuple(env or ()),
        claims=tuple(claim or ()),
        specs=tuple(specs or ()),
        post_mortem=post_mortem,
    )
    return main(options, KubeRayAction(output, apply, not no_follow, context, timeout, json))


@app.command()
def dstack(
    command: Command = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the run.")] = "devkit",
    nodes: Nodes = 2,
    gpus: Annotated[str, typer.Option(metavar="SPEC", help="GPUs of each node, as in 80GB:8 or H100:8.")] = "",
    image: Annotated[str, typer.Option(metavar="IMG", help="With Ray in it.")] = "",
    shared_memory: Annotated[str, typer.Option(metavar="SIZE", help="/dev/shm of each node, as in 128GB.")] = "",
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME[=VALUE]", help="NAME alone: as it is where dstack apply is called."),
    ] = None,
    volume: Annotated[
        list[str] | None, typer.Option("--volume", metavar="SRC:DST", help="A volume or a host's folder; repeatable.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option("--setup", metavar="SHELL", help="What each node does first; repeatable.")
    ] = None,
    specs: Breaks = None,
    post_mortem: PostMortem = "snapshot",
    timeout: Timeout = 600.0,
    output: Output = "",
    json: Json = False,
) -> int:
    """A .dstack.yml: a Ray with debugging on over the nodes of a task, and CMD on it."""
    from devkit.launch.dstack import DstackOptions, main

    options = DstackOptions(
        command=tuple(command or ()),
        name=name,
        nodes=nodes,
        gpus=gpus,
        image=image,
        shared_memory=shared_memory,
        variables=tuple(env or ()),
        volumes=tuple(volume or ()),
        setup=tuple(setup or ()),
        specs=tuple(specs or ()),
        post_mortem=post_mortem,
        timeout=timeout,
    )
    return main(options, output, json=json)
