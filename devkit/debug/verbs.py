"""The debugger's verbs of the command line. Each is one short function over one module, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from devkit import destinations
from devkit.asking import asking
from devkit.dashes import Runner
from devkit.durations import duration

JSON_FLAG = "--json"

NAMES = {"stop_job": "stop"}  # what a verb is called when a function cannot be
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="The cluster's dashboard URL or GCS address [default: $RAY_ADDRESS, or this machine]."
    ),
]
Json = Annotated[bool, typer.Option(JSON_FLAG, help="Print one JSON record on stdout.")]
Command = Annotated[list[str] | None, typer.Argument(metavar="-- CMD", help="The command to run.")]
Break = Annotated[
    list[str] | None,
    typer.Option(
        "--break",
        metavar="FILE:LINE",
        help="Where to pause: FILE:LINE or MODULE:NAME [@ROLE[RANKS]] [if EXPR]; repeatable.",
    ),
]
BreakOn = Annotated[
    list[str] | None,
    typer.Option("--break-on", metavar="TYPE", help="Pause where an exception of this type is raised; repeatable."),
]
CountCaught = Annotated[
    bool | None,
    typer.Option(
        "--count-caught/--no-count-caught",
        help="Count the exceptions that the program catches [default: on Python 3.12 and later].",
    ),
]
Hits = Annotated[
    str, typer.Option(metavar="N", help="Pause only on these hits, counted per process: 3, '>=3', '>3' or %3.")
]
Log = Annotated[str, typer.Option(metavar="EXPR", help="Print this expression at each hit instead of pausing.")]
StopTimeout = Annotated[
    float, duration("--timeout", help="Resume a paused rank after this long; 0 means never.", never=True)
]
PostMortem = Annotated[str, typer.Option(metavar="snapshot|pause|off", help="What to do on an uncaught exception.")]
HangTimeout = Annotated[
    float, duration(help="Report why on stderr if there is no progress for this long; 0 means never.", never=True)
]
OfJob = Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only this job.")]
KeepTimeouts = Annotated[
    bool,
    typer.Option(
        "--keep-timeouts", help="Keep Ray's and torch.distributed's timeouts (a long pause may then abort the run)."
    ),
]
RayExtension = Annotated[
    str,
    typer.Option(
        metavar="local|open|off",
        help="Who may attach through Ray's Distributed Debugger: only you on this machine, anyone, or no one.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Let breakpoint() in the driver wait even without a terminal.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs to `devkit`."""
    for runner in (run, submit):
        app.command(cls=Runner)(asking(runner))
    for verb in (jobs, logs, stop_job, break_, ps, attach, eval_, continue_, stacks, dap):
        app.command(name=NAMES.get(verb.__name__, verb.__name__.rstrip("_")))(asking(verb))
    app.add_typer(crashes_app)


def run(
    command: Command = None,
    specs: Break = None,
    break_on: BreakOn = None,
    hits: Hits = "",
    log: Log = "",
    timeout: StopTimeout = 0.0,
    post_mortem: PostMortem = "snapshot",
    count_caught: CountCaught = None,
    keep_timeouts: KeepTimeouts = False,
    ray_extension: RayExtension = "local",
    wait: Wait = False,
    hang_timeout: HangTimeout = 0.0,
    address: Address = None,
    json: Json = False,
) -> int:
    """Run a command with the debugger in its driver and workers.

    The command is a Ray program on this machine, typed as without devkit. Its exit code is passed on.
    """
    from devkit.debug.launch import DebugOptions, main

    return main(
        DebugOptions(
            command=tuple(command or ()),
            specs=tuple(specs or ()),
            break_on=tuple(break_on or ()),
            count_caught=count_caught,
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
    break_on: BreakOn = None,
    hits: Hits = "",
    log: Log = "",
    timeout: StopTimeout = 0.0,
    post_mortem: PostMortem = "snapshot",
    count_caught: CountCaught = None,
    keep_timeouts: KeepTimeouts = False,
    ray_extension: RayExtension = "local",
    wait: Wait = False,
    hang_timeout: HangTimeout = 0.0,
    working_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder to upload; the job starts in it.")
    ] = None,
    runtime_env: Annotated[str, typer.Option(metavar="JSON", help="Additional runtime_env for the job.")] = "",
    submission_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The job's submission ID [default: generated].")
    ] = None,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="Don't wait for the job or follow its log.")] = False,
    address: Address = None,
    json: Json = False,
) -> int:
    """Submit a command as a Ray job, with the debugger attached.

    The driver runs on the cluster, where devkit need not be installed.
    """
    from devkit.debug.launch import DebugOptions
    from devkit.debug.submit import SubmitOptions, main

    options = DebugOptions(
        command=tuple(command or ()),
        specs=tuple(specs or ()),
        break_on=tuple(break_on or ()),
        count_caught=count_caught,
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
    """List the jobs on the cluster."""
    from devkit.debug.jobs import list_main

    return list_main(address=address, json=json)


Job = Annotated[str, typer.Argument(metavar="JOB", help="Submission ID or job ID.")]


def logs(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="Job ID; with --first-error it defaults to the newest failed job."),
    ] = None,
    first_error: Annotated[
        bool, typer.Option("--first-error", help="Find the first error in the logs of all nodes.")
    ] = False,
    bundle: Annotated[
        Path | None,
        destinations.file(help="With --first-error: write a .tar.gz or .zip for a bug report, with secrets removed."),
    ] = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Follow a submitted job's log, or find any job's first error."""
    if first_error or bundle:
        from devkit.logs.run import main

        return main(job, bundle=bundle, address=address, json=json)
    from devkit.debug.jobs import logs_main

    return logs_main(job, address=address, json=json)


def stop_job(job: Job, address: Address = None, json: Json = False) -> int:
    """Stop a submitted job."""
    from devkit.debug.jobs import stop_main

    return stop_main(job, address=address, json=json)


def break_(
    spec: Annotated[
        str | None,
        typer.Argument(metavar="FILE:LINE", help="Where to pause: FILE:LINE or MODULE:NAME [@ROLE[RANKS]] [if EXPR]."),
    ] = None,
    hits: Hits = "",
    log: Log = "",
    timeout: StopTimeout = 0.0,
    job: Annotated[str, typer.Option(metavar="JOB", help="Only in this job.")] = "",
    show: Annotated[bool, typer.Option("--list", help="List the breakpoints.")] = False,
    clear: Annotated[str | None, typer.Option(metavar="ID|all", help="Remove one breakpoint, or all.")] = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Set, list or clear breakpoints in running jobs."""
    from devkit.debug.breaks import BreakOptions, main

    return main(BreakOptions(spec, hits, log, timeout, job, show, clear, address, json))


def ps(
    watch: Annotated[bool, typer.Option("--watch", help="Keep watching and print every change.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --watch --json: wait for jobs, also after the last one has ended.")
    ] = False,
    address: Address = None,
    json: Json = False,
) -> int:
    """Show which ranks are paused: where, why and since when."""
    from devkit.debug.ps import main

    return main(address=address, json=json, watch=watch, wait=wait)


def attach(
    stop: Annotated[str | None, typer.Argument(metavar="ID", help="The paused rank [default: the only one].")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All paused ranks together.")] = False,
    ranks: Annotated[str | None, typer.Option(metavar="RANKS", help="Only these ranks, for example 0,2:4.")] = None,
    job: OfJob = None,
    address: Address = None,
) -> int:
    """Attach an interactive debugger (pdb commands)."""
    from devkit.debug.terminal import main

    return main(stop, everything=everything, ranks=ranks, job=job, address=address)


def eval_(
    expressions: Annotated[list[str], typer.Argument(metavar="EXPR", help="Python expressions.")],
    target: Annotated[
        str, typer.Option(metavar="ID|RANKS|ROLE|all", help="IDs from devkit ps, ranks such as 0,2:4, a role, or all.")
    ] = "all",
    job: OfJob = None,
    timeout: Annotated[float, duration(help="How long to wait for each rank.")] = 10.0,
    address: Address = None,
    json: Json = False,
) -> int:
    """Evaluate expressions on paused ranks.

    Equal values are grouped, and the ranks that differ are named.
    """
    from devkit.debug.evaluate import main

    return main(*expressions, target=target, job=job, address=address, json=json, timeout=timeout)


def continue_(
    stops: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Which to resume: IDs from devkit ps.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Resume all paused ranks.")] = False,
    job: OfJob = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Resume paused ranks."""
    from devkit.debug.continue_ import main

    return main(tuple(stops or ()), everything=everything, job=job, address=address, json=json)


def stacks(
    job: OfJob = None,
    native: Annotated[bool, typer.Option("--native", help="Include native frames (uses py-spy).")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Show library frames, and every stack of the program.")
    ] = False,
    address: Address = None,
    json: Json = False,
) -> int:
    """Show the stacks of all ranks, with equal ones merged.

    Works on running and on hung ranks; the ranks that differ are named.
    """
    from devkit.debug.stacks import main

    return main(job=job, native=native, everything=everything, address=address, json=json)


def dap(
    stop: Annotated[str | None, typer.Option("--id", metavar="ID", help="Attach to one paused rank.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Attach to all ranks, each as a child session.")] = False,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="With --all: only this job.")] = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="RANKS", help="With --all: only these ranks, for example 0,2:4.")
    ] = None,
    crash: Annotated[
        str | None, typer.Option(metavar="ID", help="Open a crash read-only: its frames and variables.")
    ] = None,
    launch: Annotated[
        bool, typer.Option("--launch", help="Run the program named in the editor's launch request.")
    ] = False,
    address: Address = None,
) -> int:
    """Serve the Debug Adapter Protocol on stdin and stdout."""
    from devkit.debug.dap import main

    return main(id=stop, everything=everything, job=job, ranks=ranks, crash=crash, launch=launch, address=address)


crashes_app = typer.Typer(
    name="crashes",
    help="List crash snapshots (kept after the worker is gone).",
    invoke_without_command=True,
)


@crashes_app.callback()
@asking
def crashes(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Only crashes of this job or ended run."),
    ] = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """List the crashes; `show ID` shows one. Without a cluster: those of the last `devkit run`."""
    context.meta["address"], context.meta["json"], context.meta["job"] = address, json, job
    if context.invoked_subcommand is not None:
        return 0
    from devkit.debug.crashes import main

    return main(job=job, address=address, json=json)


@crashes_app.command()
@asking
def show(
    context: typer.Context,
    crash: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The crash ID, or a prefix of it.", show_default="what caused the newest crash"
        ),
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Include library frames.")] = False,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Only a crash of this job or ended run.")
    ] = None,
    address: Address = None,
    json: Json = False,
) -> int:
    """Show one crash, root cause first.

    Its exceptions, and its frames with source lines and variables.
    """
    from devkit.debug.crashes import main

    before = context.meta
    return main(
        crash,
        everything=everything,
        job=job or before["job"],
        address=address or before["address"],
        json=json or before["json"],
    )
