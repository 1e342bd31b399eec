"""`devkit vscode install`: the extension that ships with devkit, put into the editors of this machine."""

from __future__ import annotations

import json as json_format
import os
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from devkit import console
from devkit.errors import DevkitError
from devkit.vscode.editors import Editor, choose

VSIX = Path(__file__).with_name("ray-devkit.vsix")
MANIFEST = "extension/package.json"
SECONDS = 120.0  # a desktop editor takes a few; one over a slow line longer


@dataclass(frozen=True)
class Installed:
    """What became of it in one editor."""

    editor: str
    path: str
    ok: bool
    detail: str  # the last line that the editor said


@dataclass(frozen=True)
class InstallRecord:
    """`devkit vscode install`."""

    extension: str  # PUBLISHER.NAME
    version: str
    file: str
    editors: tuple[Installed, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def main(wanted: Sequence[str] = (), *, json: bool = False, vsix: Path = VSIX) -> int:
    """Installs it; 1 when an editor refused it."""
    name, version = identify(vsix)
    editors = choose(wanted, os.environ, Path.home())
    record = InstallRecord(name, version, str(vsix), tuple(put_into(editor, vsix) for editor in editors))
    failed = [each for each in record.editors if not each.ok]
    if json:
        console.emit(record.to_json())
        return 1 if failed else 0
    for each in record.editors:
        if each.ok:
            console.result().print(f"{each.editor}: installed {name} {version} ({each.path})", soft_wrap=True)
    if failed:
        names = ", ".join(each.editor for each in failed)
        raise DevkitError(f"{names} did not accept it: {failed[0].detail}", hint=_by_hand(failed[0], vsix))
    return 0


def identify(vsix: Path) -> tuple[str, str]:
    """The extension's identifier and version. Raises DevkitError if the file isn't there or is none."""
    if not vsix.is_file():
        raise DevkitError(f"the extension is not built: {vsix}", hint="in a checkout, build it with make vscode")
    try:
        manifest = json_format.loads(zipfile.ZipFile(vsix).read(MANIFEST))
        return f"{manifest['publisher']}.{manifest['name']}", str(manifest["version"])
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise DevkitError(f"{vsix} is not an extension: {error}", hint="rebuild it with make vscode") from error


def put_into(editor: Editor, vsix: Path) -> Installed:
    """Asks one editor; it replaces an older or a newer version."""
    command = [editor.path, "--install-extension", str(vsix), "--force"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return Installed(editor.name, editor.path, False, f"did not finish within {SECONDS:g} s")
    except OSError as error:
        return Installed(editor.name, editor.path, False, error.strerror or str(error))
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    complaint = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    ok = done.returncode == 0
    shown = said if ok else complaint or said or [f"exit code {done.returncode}"]
    return Installed(editor.name, editor.path, ok, shown[-1] if shown else "")


def _by_hand(failed: Installed, vsix: Path) -> str:
    return f"by hand: {failed.path} --install-extension {vsix} --force"
