"""The `devkit` command. Each verb is one short function that imports its module when it is called.

`devkit --help` has to be quick: nothing here imports ray or torch, and what a verb needs stands inside it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from devkit import destinations, loudness, patience
from devkit.agent import verbs as agent_verbs
from devkit.dashes import BehindDashes, behind_dashes
from devkit.debug import cluster_verbs, verbs
from devkit.debug.verbs import JSON_FLAG
from devkit.doctor import verbs as doctor_verbs
from devkit.durations import duration
from devkit.hang import verbs as hang_verbs
from devkit.launch import verbs as launch_verbs
from devkit.lint import verbs as lint_verbs
from devkit.menu import ABOUT, SETTINGS, Menu, dress, first_screen
from devkit.vscode import verbs as vscode_verbs

if TYPE_CHECKING:
    from devkit.records import ErrorRecord

app = typer.Typer(
    name="devkit",
    help=ABOUT,
    epilog="`devkit help VERB` shows a verb's options.",
    cls=Menu,
    context_settings=SETTINGS,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # square brackets in a help text are meant
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"devkit {version('ray-devkit')}\n")
        raise typer.Exit


@app.callback()
def devkit(
    context: typer.Context,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Verbose output; show tracebacks on errors.",
            callback=loudness.verbose,
            is_eager=True,
            expose_value=False,
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Print only results and errors.",
            callback=loudness.quiet,
            is_eager=True,
            expose_value=False,
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        sys.stdout.write(first_screen() + "\n")


@app.command(cls=BehindDashes)
def smoke(
    context: typer.Context,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE or -- CMD",
            help="Overrides of the full run, which is scaled down; or, after --, its command: bash run.sh.",
        ),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Use a tiny model on this machine; no GPU needed.")] = False,
    agent: Annotated[
        str | None,
        typer.Option(metavar="lake|search", help="Conversations with this environment, in place of single turns."),
    ] = None,
    rollout: Annotated[
        str, typer.Option(metavar="ENGINE", help="Rollout engine: hf, or sglang or vllm if installed.")
    ] = "hf",
    dialect: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Which verl release's meaning of the keys to use [default: detected from the keys]."
        ),
    ] = None,
    json: Annotated[bool, typer.Option(JSON_FLAG, help="Print one JSON record on stdout.")] = False,
    junit: Annotated[Path | None, destinations.file(help="Write the checks as JUnit XML.", parents=True)] = None,
    report: Annotated[
        Path | None, destinations.folder(help="Write logs, metrics and the reward curve to this folder.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the working folder.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop after the first failed check.")] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=agent_verbs.LARGEST_SEED, help="Seed for model, data and sampling.")
    ] = 0,
    timeout: Annotated[float | None, duration(help="Give up after this long (exit code 4).")] = None,
) -> int:
    """Run a tiny PPO training end to end and check each part.

    It goes through Ray as a full run does; a check that fails says what is broken.
    """
    from devkit.errors import UsageError
    from devkit.smoke.options import SmokeOptions

    if not tiny and agent is None:
        raise UsageError("devkit smoke needs a size", hint="devkit smoke --tiny runs on any machine")
    from devkit.smoke.run import main as run

    return run(
        SmokeOptions(
            overrides=tuple(overrides or ()),
            command=behind_dashes(context),
            agent=agent,
            rollout=rollout,
            dialect=dialect,
            json=json,
            junit=junit,
            report=report,
            keep=keep,
            fail_fast=fail_fast,
            seed=seed,
            timeout=timeout,
            verbose=loudness.is_verbose(),
        )
    )


verbs.register(app)
app.add_typer(cluster_verbs.app)
doctor_verbs.register(app)
hang_verbs.register(app)
lint_verbs.register(app)
app.add_typer(launch_verbs.app)
app.add_typer(agent_verbs.app)
app.add_typer(vscode_verbs.app)
dress(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return its exit code. The one place where exceptions end."""
    from devkit import output

    arguments = list(sys.argv[1:] if argv is None else argv)
    output.guard()
    patience.forget()
    loudness.forget()
    try:
        code = app(arguments, prog_name="devkit", standalone_mode=False)
        output.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the entry point: whatever it is, two lines tell it
        return _fail(error, arguments)
    if code == 130:  # Typer swallows Ctrl-C and gives its exit code
        return _fail(KeyboardInterrupt(), arguments)
    return code if isinstance(code, int) else 0


def _fail(error: BaseException, arguments: Sequence[str]) -> int:
    from devkit import output
    from devkit.errors import CLOSED_PIPE, OutputError, describe

    problem = describe(error)
    with suppress(OutputError):  # what went wrong matters more than that nobody could be told
        if problem.exit_code != CLOSED_PIPE:
            _tell(error, problem, arguments)
        output.flush()
    return problem.exit_code


def _tell(error: BaseException, problem: ErrorRecord, arguments: Sequence[str]) -> None:
    from devkit.console import report_error
    from devkit.errors import ExitedError, is_puzzling

    if loudness.is_verbose() and is_puzzling(error):
        import traceback

        traceback.print_exception(error)
    as_json = _has_flag(JSON_FLAG, arguments)
    report_error(
        problem,
        getattr(error, "facts", {}),
        as_json=as_json,
        line=error.line if isinstance(error, ExitedError) else None,
    )


def _has_flag(flag: str, arguments: Sequence[str]) -> bool:
    """Whether devkit itself was given the flag; what follows `--` belongs to another command."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return flag in own
