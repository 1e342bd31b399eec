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
            metavar="FILE or -- CMD", help="A training command or a launch script, to be placed on the nodes."
        ),
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="This machine alone, whatever runs on it.")] = False,
    timeout: Annotated[float, duration(help="For all nodes together.")] = 30.0,
    no_collective: Annotated[
        bool, typer.Option("--no-collective", help="Leave the all-reduce out: no torch is imported.")
    ] = False,
    address: Address = None,
    json: Json = False,
) -> int:
    """Say whether this machine, or each node of a cluster, is fit to train, and what mends it."""
    from devkit.doctor.run import DoctorOptions, main

    return main(DoctorOptions(tuple(command or ()), address, here, timeout, not no_collective, json))
