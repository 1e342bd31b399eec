"""`devkit vscode`: what an editor needs. Each verb is a short function over one module, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from devkit.debug.verbs import Json

app = typer.Typer(name="vscode", help="Set up VS Code: debug configurations and the extension.")


@app.command()
def init(
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder you open in the editor [default: the current folder]."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also overwrite devkit entries that you have changed.")
    ] = False,
    json: Json = False,
) -> int:
    """Add devkit to .vscode/launch.json and tasks.json."""
    from devkit.vscode.init import main

    return main(folder, force=force, json=json)


@app.command()
def install(
    editor: Annotated[
        list[str] | None,
        typer.Option(metavar="EDITOR", help="code, code-server, cursor, codium or a path; repeatable."),
    ] = None,
    json: Json = False,
) -> int:
    """Install the extension that ships with devkit."""
    from devkit.vscode.install import main

    return main(tuple(editor or ()), json=json)
