"""`devkit lint` on the command line: a short function over one module, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from devkit.dashes import BehindDashes, behind_dashes
from devkit.debug.verbs import Json


def register(app: typer.Typer) -> None:
    """Adds the verb to `devkit`."""
    app.command(name="lint", cls=BehindDashes)(lint)


def lint(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE or -- CMD",
            help="Launch scripts: shell, sbatch, dstack YAML or Markdown; - for stdin; or, after --, a command.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="VERSION",
            help="verl-0.2 to verl-head, search-r1 or ours [default: detected from the keys].",
        ),
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME|GB", help="GPU to assume for the memory estimate.")] = None,
    json: Json = False,
) -> int:
    """Check training commands and launch scripts before they run."""
    from devkit.lint.run import LintOptions, main

    return main(LintOptions(tuple(files or ()), behind_dashes(context), target, gpu, json))
