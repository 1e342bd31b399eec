"""The debugger's verbs of the command line. Each is one short function over one module, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from devkit import destinations
from devkit.asking import asking
from devkit.durations import duration

JSON_FLAG = "--json"

NAMES = {"stop_job": "stop"}  # what a verb is called when a function cannot be
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="The cluster: its dashboard's URL or GCS address; else RAY_ADDRESS, else here."
    ),
]
Json = Annotated[bool, typer.Option(JSON_FLAG, help="Print one JSON record on stdout.")]
Command = Annotated[list[str] | None, typer.Argument(metavar="-- CMD", help="What to run, as it stands.")]
Break = Annotated[
    list[str] | None,
    typer.Option("--break", metavar="SPEC", help="FILE:LINE or MODULE:NAME [@ROLE[RANKS]] [if EXPR]; may be repeated."),
]
Hits = Annotated[str, typer.Option(metavar="N", help="Which hits stop, per process: 3, >=3, >3 or %3.")]
Log = Annotated[str, typer.Option(metavar="EXPR", help="Print this at each hit, and don't stop.")]
StopTimeout = Annotated[float, duration("--timeout", help="How long a stop may last; 0: without end.", never=True)]
PostMortem = Annotated[
    str, typer.Option(metavar="snapshot|pause|off", help="What to do when an exception leaves the program's code.")
]
HangTimeout = Annotated[
    float, duration(help="Say why, on stderr, when nothing has moved for so long; 0: never.", never=True)
]
OfJob = Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only of this job.")]
KeepTimeouts = Annotated[
    bool, typer.Option("--keep-timeouts", help="Leave Ray's and torch.distributed's time-outs; a stop may end the run.")
]
RayExtension = Annotated[
    str,
    typer.Option(
        metavar="local|open|off",
        help="Who may attach by Ray's Distributed Debugger: this user here, everybody, nobody.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="A breakpoint() in the driver waits though there is no terminal.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs to `devkit`."""
    for verb in (run, submit, jobs, logs, stop_job, break_, ps, attach, eval_, continue_, stacks, dap):
        app.command(name=NAMES.get(verb.__name__, verb.__name__.rstrip("_")))(asking(verb))
    app.add_typer(crashes_app)


def run(
    command: Command = None,
    specs: Break = None,
    hits: Hits = "",
    log: Log = "",
    timeout: StopTimeout = 0.0,
    post_mortem: PostMortem = "snapshot",
    keep_timeouts: KeepTimeouts = False,
    ray_extension: RayExtension = "local",
    wait: Wait = False,
    hang_timeout: HangTimeout = 0.0,
    address: Address = None,
    json: Json = False,
) -> int:
    """Run a Ray driver on this machine with the debugger in it and in all its workers."""
    from devkit.debug.launch import DebugOptions, main

    return main(
        DebugOptions(
            command=tuple(command or ()),
            specs=tuple(specs or ()),
            hits=hits,
            log=log,
            timeout=timeout,
            post_mortem=post_mortem,
            keep_timeouts=keep_timeouts,
            ray_extension=ray_extension,
            wait=wait,
            hang_timeout=hang_timeout,
            address=address,
            json=json,
        )
    )


def submit(
    command: Command = None,
    specs: Break = None,
    hits: Hits = "",
    log: Log = "",
    timeout: StopTimeout = 0.0,
    post_mortem: PostMortem = "snapshot",
    keep_timeouts: KeepTimeouts = False,
    ray_extension: RayExtension = "local",
    wait: Wait = False,
    hang_timeout: HangTimeout = 0.0,
    working_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="The folder to send along and to start in.")
    ] = None,
    runtime_env: Annotated[str, typer.Option(metavar="JSON", help="More of the job's runtime_env.")] = "",
    submission_id: Annotated[str | None, typer.Option(metavar="ID", help="The job's name; made up by default.")] = None,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="Don't wait for the job and its log.")] = False,
    address: Address = None,
    json: Json = False,
) -> int:
    """The same through Ray Jobs: the driver runs on the cluster, which needs no devkit."""
    from devkit.debug.launch import DebugOptions
    from devkit.debug.submit import SubmitOptions, main

    options = DebugOptions(
        command=tuple(command or ()),
        specs=tuple(specs or ()),
        hits=hits,
        log=log,
        timeout=timeout,
        post_mortem=post_mortem,
        keep_timeouts=keep_timeouts,
        ray_extension=ray_extension,
        wait=wait,
        hang_timeout=hang_timeout,
        address=address,
        json=json,
    )
    return main(SubmitOptions(options, working_dir, runtime_env, submission_id, not no_follow))


def jobs(address: Address = None, json: Json = False) -> int:
    """List the jobs of the cluster."""
    from devkit.debug.jobs import list_main

    return list_main(address=address, json=json)


Job = Annotated[str, typer.Argument(metavar="JOB", help="Its submission ID, or its job ID.")]


def logs(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Its ID; with --first-error, the newest that failed by default.")
    ] = None,
    first_error: Annotated[
        bool, typer.Option("--first-error", help="What went wrong first, from all logs of all nodes.")
    ] = False,
    bundle: Annotated[
        Path | None,
        destinations.file(help="With --first-error: a .tar.gz or .zip for a bug report, without secrets."),
    ] = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Follow what a submitted job prints; or say what went wrong first, in any job."""
    if first_error or bundle:
        from devkit.logs.run import main

        return main(job, bundle=bundle, address=address, json=json)
    from devkit.debug.jobs import logs_main

    return logs_main(job, address=address, json=json)


def stop_job(job: Job, address: Address = None, json: Json = False) -> int:
    """Ask a submitted job to end."""
    from devkit.debug.jobs import stop_main

    return stop_main(job, address=address, json=json)


def break_(
    spec: Annotated[str | None, typer.Argument(metavar="SPEC", help="LOCATION [@TARGET] [if EXPR].")] = None,
    hits: Hits = "",
    log: Log = "",
    timeout: StopTimeout = 0.0,
    job: Annotated[str, typer.Option(metavar="JOB", help="Only in this job.")] = "",
    show: Annotated[bool, typer.Option("--list", help="Show the breakpoints.")] = False,
    clear: Annotated[str | None, typer.Option(metavar="ID|all", help="Remove one, or all.")] = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Set a breakpoint in a job that is running; or list them, or clear one."""
    from devkit.debug.breaks import BreakOptions, main

    return main(BreakOptions(spec, hits, log, timeout, job, show, clear, address, json))


def ps(
    watch: Annotated[bool, typer.Option("--watch", help="Show it again at each change.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --watch --json: wait for a job, also after the last one.")
    ] = False,
    address: Address = None,
    json: Json = False,
) -> int:
    """Show what is stopped where: role, rank, file:line, why, since when."""
    from devkit.debug.ps import main

    return main(address=address, json=json, watch=watch, wait=wait)


def attach(
    stop: Annotated[str | None, typer.Argument(metavar="ID", help="The stop; the only one by default.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All stopped ranks together.")] = False,
    ranks: Annotated[str | None, typer.Option(metavar="RANKS", help="These ranks, as in 0,2:4.")] = None,
    job: OfJob = None,
    address: Address = None,
) -> int:
    """A debugger in the terminal, with the words of pdb."""
    from devkit.debug.terminal import main

    return main(stop, everything=everything, ranks=ranks, job=job, address=address)


def eval_(
    expressions: Annotated[list[str], typer.Argument(metavar="EXPR", help="Any Python expressions.")],
    target: Annotated[str, typer.Option(metavar="T", help="Stop IDs, ranks as in 0,2:4, a role, or all.")] = "all",
    job: OfJob = None,
    timeout: Annotated[float, duration(help="How long a rank may take.")] = 10.0,
    address: Address = None,
    json: Json = False,
) -> int:
    """Evaluate on many stopped ranks; equal values are grouped, the odd ranks named."""
    from devkit.debug.evaluate import main

    return main(*expressions, target=target, job=job, address=address, json=json, timeout=timeout)


def continue_(
    stops: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The stops to resume.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    job: OfJob = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Resume what is stopped."""
    from devkit.debug.continue_ import main

    return main(tuple(stops or ()), everything=everything, job=job, address=address, json=json)


def stacks(
    job: OfJob = None,
    native: Annotated[bool, typer.Option("--native", help="With native frames, by py-spy.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Frames of libraries and idle threads too.")] = False,
    address: Address = None,
    json: Json = False,
) -> int:
    """Show the stacks of all ranks, running or hung: equal ones merged, odd ranks named."""
    from devkit.debug.stacks import main

    return main(job=job, native=native, everything=everything, address=address, json=json)


def dap(
    stop: Annotated[str | None, typer.Option("--id", metavar="ID", help="One stop.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All ranks, each as a child session.")] = False,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="With --all: only of this job.")] = None,
    ranks: Annotated[str | None, typer.Option(metavar="RANKS", help="With --all: only these, as in 0,2:4.")] = None,
    crash: Annotated[str | None, typer.Option(metavar="ID", help="A crash: its frames and variables, to read.")] = None,
    launch: Annotated[
        bool, typer.Option("--launch", help="A program, as the editor's launch request names it.")
    ] = False,
    address: Address = None,
) -> int:
    """A Debug Adapter on stdin and stdout, for any editor."""
    from devkit.debug.dap import main

    return main(id=stop, everything=everything, job=job, ranks=ranks, crash=crash, launch=launch, address=address)


crashes_app = typer.Typer(
    name="crashes",
    help="What failed: snapshots that outlive their worker.",
    invoke_without_command=True,
)


@crashes_app.callback()
@asking
def crashes(
    context: typer.Context,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Only of this job, or of this run that has ended.")
    ] = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """List the crashes; `show ID` opens one. Where no cluster runs: those that the last `devkit run` has left."""
    context.meta["address"], context.meta["json"] = address, json
    if context.invoked_subcommand is not None:
        return 0
    from devkit.debug.crashes import main

    return main(job=job, address=address, json=json)


@crashes_app.command()
@asking
def show(
    context: typer.Context,
    crash: Annotated[str, typer.Argument(metavar="ID", help="The crash, or the beginning of its ID.")],
    everything: Annotated[bool, typer.Option("--all", help="Frames of libraries too.")] = False,
    address: Address = None,
    json: Json = False,
) -> int:
    """Show one crash: its exceptions, frames with source and variables, the root cause first."""
    from devkit.debug.crashes import main

    before = context.meta
    return main(crash, everything=everything, address=address or before["address"], json=json or before["json"])
