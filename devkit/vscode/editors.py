"""The editors of this machine that take VS Code's extensions: their command lines, and which of them is meant."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit.errors import DevkitError, UsageError

KNOWN = ("code", "code-insiders", "code-server", "cursor", "codium", "windsurf")
HOOK = "VSCODE_IPC_HOOK_CLI"  # set in the terminals of an editor's server: over SSH, in a container, in a browser
# Where the server of a remote editor keeps its command line, below the home folder; the newest one is meant.
REMOTE = (
    ".vscode-server/cli/servers/*/server/bin/remote-cli/code",
    ".vscode-server/bin/*/bin/remote-cli/code",
    ".vscode-remote/bin/*/bin/remote-cli/code",
    ".cursor-server/*/bin/remote-cli/cursor",
    ".cursor-server/bin/*/*/bin/remote-cli/cursor",
    ".vscodium-server/bin/*/bin/remote-cli/codium",
)
# On a Mac the command line is in the application, whether or not it was put on the PATH.
APPLICATIONS = {
    "code": "/Applications/Visual Studio Code.app/Contents/Resources/app/bin/code",
    "cursor": "/Applications/Cursor.app/Contents/Resources/app/bin/cursor",
    "codium": "/Applications/VSCodium.app/Contents/Resources/app/bin/codium",
}


@dataclass(frozen=True)
class Editor:
    """An editor's command line."""

    name: str
    path: str

    @property
    def is_remote(self) -> bool:
        """Whether it asks the editor whose terminal this is, and no other."""
        return "remote-cli" in Path(self.path).parts


def choose(wanted: Sequence[str], environ: Mapping[str, str], home: Path) -> tuple[Editor, ...]:
    """The editors that are wanted; by default the one whose terminal this is, else all that are found.

    Raises UsageError for one that isn't there, DevkitError when there is none at all.
    """
    if wanted:
        return tuple(_named(name, environ, home) for name in wanted)
    found = tuple(find(environ, home))
    here = tuple(editor for editor in found if editor.is_remote)
    if not found:
        raise DevkitError(
            f"no editor found: {', '.join(KNOWN)} are not on the PATH",
            hint="in VS Code: `Shell Command: Install 'code' command in PATH`; or --editor PATH",
        )
    return here[:1] or found


def find(environ: Mapping[str, str], home: Path) -> Iterator[Editor]:
    """Every editor once. A remote command line works in its editor's terminal only."""
    seen: set[Path] = set()
    for editor in _candidates(environ, home):
        path = Path(editor.path).resolve()
        if path not in seen and (not editor.is_remote or environ.get(HOOK)):
            seen.add(path)
            yield editor


def _candidates(environ: Mapping[str, str], home: Path) -> Iterator[Editor]:
    for name in KNOWN:
        path = shutil.which(name, path=environ.get("PATH", ""))
        if path is not None:
            yield Editor(name, path)
    if environ.get(HOOK):
        places = [place for pattern in REMOTE for place in home.glob(pattern) if os.access(place, os.X_OK)]
        for place in sorted(places, key=lambda each: -each.stat().st_mtime)[:1]:
            yield Editor(place.name, str(place))
    for name, application in APPLICATIONS.items():
        if os.access(application, os.X_OK):
            yield Editor(name, application)


def _named(name: str, environ: Mapping[str, str], home: Path) -> Editor:
    if "/" in name:
        if not os.access(name, os.X_OK) or not Path(name).is_file():
            raise UsageError(f"no such program: {name}", hint="pass an editor's command with --editor")
        return Editor(Path(name).name, name)
    found = next((editor for editor in _candidates(environ, home) if editor.name == name), None)
    path = found.path if found else shutil.which(name, path=environ.get("PATH", ""))
    if path is None:
        there = ", ".join(editor.name for editor in find(environ, home)) or "none"
        raise UsageError(f"no editor {name} is on the PATH", hint=f"found here: {there}; or --editor PATH")
    return Editor(name, path)
