"""`devkit vscode`: what an editor needs. Each verb is a short function over one module, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from devkit.debug.verbs import Json

app = typer.Typer(name="vscode", help="VS Code: its launch configurations and tasks, and the extension.")


@app.command()
def init(
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that you open in the editor; this one by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also entries of devkit's that you have changed.")] = False,
    json: Json = False,
) -> int:
    """Write .vscode/launch.json and tasks.json, merged into what is there."""
    from devkit.vscode.init import main

    return main(folder, force=force, json=json)


@app.command()
def install(
    editor: Annotated[
        list[str] | None,
        typer.Option(metavar="EDITOR", help="code, code-server, cursor, codium or a path; may be repeated."),
    ] = None,
    json: Json = False,
) -> int:
    """Install the extension that ships with devkit."""
    from devkit.vscode.install import main

    return main(tuple(editor or ()), json=json)
