"""`devkit doctor` on the command line: a short function over one module, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from devkit.debug.verbs import Address, Json
from devkit.durations import duration


def register(app: typer.Typer) -> None:
    """Adds the verb to `devkit`."""
    app.command(name="doctor")(doctor)


def doctor(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE or -- CMD", help="A training command or launch script to check against the nodes."
        ),
    ] = None,
    here: Annotated[
        bool, typer.Option("--here", help="Check this machine only, even if a cluster is running.")
    ] = False,
    timeout: Annotated[float, duration(help="Time limit for all checks.")] = 30.0,
    no_collective: Annotated[
        bool, typer.Option("--no-collective", help="Skip the all-reduce (torch is not imported).")
    ] = False,
    address: Address = None,
    json: Json = False,
) -> int:
    """Check that this machine or cluster is ready for training.

    On a cluster every node is checked. Each problem comes with a suggested fix.
    """
    from devkit.doctor.run import DoctorOptions, main

    return main(DoctorOptions(tuple(command or ()), address, here, timeout, not no_collective, json))
