"""`devkit hang` on the command line: a short function over one module, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from devkit.asking import asking
from devkit.debug.verbs import Address, Json, OfJob
from devkit.durations import duration


def register(app: typer.Typer) -> None:
    """Adds the verb to `devkit`."""
    app.command(name="hang")(asking(hang))


def hang(
    job: OfJob = None,
    after: Annotated[
        float,
        duration(help="How long a wait lasts before it is called a hang.", least=1),
    ] = 10.0,
    address: Address = None,
    json: Json = False,
) -> int:
    """Say whether a job moves; if not, which rank is the first to differ, and at which line."""
    from devkit.hang.run import main

    return main(job=job, after=after, address=address, json=json)
