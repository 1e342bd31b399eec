"""`devkit launch` on the command line. Each verb is one short function over one module, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from devkit import destinations
from devkit.dashes import Runner
from devkit.debug.verbs import Command, Json
from devkit.durations import duration

app = typer.Typer(name="launch", help="Start a cluster through Slurm, dstack or Kubernetes.")

Nodes = Annotated[int, typer.Option(metavar="N", min=1, help="Number of nodes.")]
Breaks = Annotated[
    list[str] | None,
    typer.Option("--break", metavar="FILE:LINE", help="A breakpoint in CMD, as for devkit run; repeatable."),
]
PostMortem = Annotated[
    str, typer.Option(metavar="snapshot|pause|off", help="What to do on an uncaught exception in CMD.")
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="Set on all nodes; NAME alone passes on the value found there."),
]
Timeout = Annotated[float, duration(help="Time limit for all nodes to start.", least=1)]
Output = Annotated[str, destinations.file(help="Write to this file [default: stdout, as with -].")]


@app.command(cls=Runner)
def slurm(
    command: Command = None,
    nodes: Nodes = 2,
    gpus: Annotated[str, typer.Option(metavar="N|TYPE:N", help="GPUs of each node.")] = "",
    cpus: Annotated[int | None, typer.Option(metavar="N", min=1, help="CPUs of each node.")] = None,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of each node, for example 200G.")] = "",
    time: Annotated[str, typer.Option(metavar="TIME", help="Time limit in Slurm's format: 2-00:00:00.")] = "",
    partition: Annotated[str, typer.Option(metavar="NAME", help="Partition to run in.")] = "",
    account: Annotated[str, typer.Option(metavar="NAME", help="Account to charge.")] = "",
    job_name: Annotated[str, typer.Option(metavar="NAME", help="The job's name.")] = "devkit",
    log: Annotated[str, typer.Option(metavar="FILE", help="File for the job's output.")] = "slurm-%j.out",
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", metavar="OPTION", help="Additional sbatch option: --sbatch=--qos=high; repeatable."),
    ] = None,
    specs: Breaks = None,
    post_mortem: PostMortem = "snapshot",
    container: Annotated[
        str, typer.Option(metavar="docker|podman|enroot|pyxis", help="Run the nodes and CMD in containers.")
    ] = "",
    image: Annotated[str, typer.Option(metavar="IMAGE", help="Container image; devkit must be installed in it.")] = "",
    mount: Annotated[
        list[str] | None,
        typer.Option("--mount", metavar="SRC:DST", help="Mount in addition to the current folder; repeatable."),
    ] = None,
    container_option: Annotated[
        list[str] | None,
        typer.Option(
            "--container-option", metavar="OPTION", help="Additional option for the container runtime; repeatable."
        ),
    ] = None,
    rocm: Annotated[bool, typer.Option("--rocm", help="Use AMD GPUs.")] = False,
    env: Variables = None,
    python: Annotated[
        str, typer.Option(metavar="PATH", help="Python with devkit on every node [default: this one, or the image's].")
    ] = "",
    dashboard_host: Annotated[str, typer.Option(metavar="HOST", help="Address the dashboard listens on.")] = "0.0.0.0",
    timeout: Timeout = 300.0,
    output: Output = "",
    submit: Annotated[
        bool, typer.Option("--submit", help="Submit the script and follow the job until it ends.")
    ] = False,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="With --submit: don't wait for the job.")] = False,
    here: Annotated[bool, typer.Option("--here", help="Run in this shell's Slurm allocation.")] = False,
    queue_timeout: Annotated[
        float, duration(help="How long the job may wait in the queue; 0 means no limit.", never=True)
    ] = 0.0,
    json: Json = False,
) -> int:
    """Write an sbatch script that starts Ray on a job's nodes."""
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


@app.command(cls=Runner)
def kuberay(
    command: Command = None,
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="Image for every node; Ray must be installed in it.")
    ] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the RayCluster or RayJob.")] = "devkit",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace [default: kubectl's].")
    ] = "",
    nodes: Nodes = 2,
    gpus: Annotated[int, typer.Option(metavar="N", min=0, help="GPUs of each node.")] = 0,
    cpus: Annotated[str, typer.Option(metavar="N", help="CPUs of each node.")] = "4",
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of each node, for example 64Gi.")] = "16Gi",
    shared_memory: Annotated[str, typer.Option(metavar="SIZE", help="/dev/shm of each node.")] = "8Gi",
    rocm: Annotated[bool, typer.Option("--rocm", help="Use AMD GPUs.")] = False,
    ray_version: Annotated[
        str, typer.Option(metavar="VERSION", help="Ray version in the image [default: same as here].")
    ] = "",
    token_secret: Annotated[
        str, typer.Option(metavar="NAME", help="A Secret with the token under auth_token [default: a new one].")
    ] = "",
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Set on all nodes; repeatable.")
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option("--claim", metavar="NAME:PATH", help="Mount a PersistentVolumeClaim; repeatable."),
    ] = None,
    specs: Breaks = None,
    post_mortem: PostMortem = "snapshot",
    output: Output = "",
    apply: Annotated[bool, typer.Option("--apply", help="Apply it with kubectl and wait until it is up.")] = False,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="With --apply: don't wait for the job.")] = False,
    context: Annotated[str, typer.Option(metavar="NAME", help="kubectl context.")] = "",
    timeout: Timeout = 600.0,
    json: Json = False,
) -> int:
    """Write a RayCluster with debugging on, or a RayJob for CMD."""
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


@app.command(cls=Runner)
def dstack(
    command: Command = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the run.")] = "devkit",
    nodes: Nodes = 2,
    gpus: Annotated[str, typer.Option(metavar="TYPE:N", help="GPUs of each node, for example 80GB:8 or H100:8.")] = "",
    image: Annotated[str, typer.Option(metavar="IMAGE", help="Image; Ray must be installed in it.")] = "",
    shared_memory: Annotated[str, typer.Option(metavar="SIZE", help="/dev/shm of each node, for example 128GB.")] = "",
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]",
            help="Set on all nodes; NAME alone passes on the value from where dstack apply runs.",
        ),
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option("--volume", metavar="SRC:DST", help="Mount a volume or a folder of the host; repeatable."),
    ] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option("--setup", metavar="COMMAND", help="Shell command to run first on each node; repeatable."),
    ] = None,
    specs: Breaks = None,
    post_mortem: PostMortem = "snapshot",
    timeout: Timeout = 600.0,
    output: Output = "",
    json: Json = False,
) -> int:
    """Write a .dstack.yml that starts Ray on a task's nodes."""
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
