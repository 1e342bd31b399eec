"""The editor of the end-to-end tests, for tests that ask a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pace import stretched

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("DEVKIT_VSCODE_E2E_CACHE") or ROOT / ".cache" / "vscode-e2e")
DEADLINE = stretched(120.0)


class CodeServer:
    """A real code-server with a home of its own, and its command line as the only program on a PATH."""

    def __init__(self, folder: Path, node: Path, entry: Path) -> None:
        self.home = folder / "home"
        self.bin = folder / "bin"
        self.home.mkdir()
        self.bin.mkdir()
        self.program = self.bin / "code-server"
        self.program.write_text(f'#!/bin/sh\nexec "{node}" "{entry}" "$@"\n')
        self.program.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("VSCODE_", "XDG_", "PYTHON"))}
        gallery = {"EXTENSIONS_GALLERY": '{"serviceUrl":""}', "DO_NOT_TRACK": "1"}  # or it asks a public one
        self.environ = {**kept, **gallery, "HOME": str(self.home), "PATH": f"{self.bin}:/usr/bin:/bin"}

    def run(self, *arguments: str) -> str:
        command = [str(self.program), *arguments]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def code_server(tmp_path: Path) -> Iterator[CodeServer]:
    nodes = sorted(CACHE.glob("node_modules/node-linux-*/bin/node"))
    entry = CACHE / "node_modules" / "code-server" / "out" / "node" / "entry.js"
    if not nodes or not entry.exists() or not (CACHE / "stamp").exists():
        pytest.skip("no code-server here: vscode/e2e/install")
    folder = tmp_path / "server"
    folder.mkdir()
    yield CodeServer(folder, nodes[-1].absolute(), entry.absolute())
    shutil.rmtree(folder, ignore_errors=True)
