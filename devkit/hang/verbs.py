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
        duration(help="How long a rank must be waiting to count as hung.", least=1),
    ] = 10.0,
    address: Address = None,
    json: Json = False,
) -> int:
    """Check whether a job makes progress, and find what blocks it.

    If the job hangs, this names the rank and the line at fault.
    """
    from devkit.hang.run import main

    return main(job=job, after=after, address=address, json=json)
