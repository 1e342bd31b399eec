"""VS Code itself finds nothing wrong in what `devkit vscode init` writes, by its schemas and our extension's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devkit.vscode import install
from devkit.vscode.init import init
from tests.pace import stretched
from tests.vscode_init.conftest import DEADLINE, CodeServer

CHECKER = Path(__file__).with_name("checker")
SETTINGS = {
    "security.workspace.trust.enabled": False,
    "telemetry.telemetryLevel": "off",
    "chat.disableAIFeatures": True,
}
QUIET = ("--auth", "none", "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust")
CHROMIUM = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0")
# Each has one mistake that only a schema can know.
WRONG = {
    "launch.json": {"configurations": [{"name": "x", "type": "devkit", "request": "attach", "all": 1}]},
    "tasks.json": {"version": "2.0.0", "tasks": [{"label": "x", "type": "process", "command": "x", "group": "tests"}]},
}
# A user's: with comments, trailing commas, and a debugger that VS Code brings along.
THEIRS = """\
{
  "version": "0.2.0",
  "configurations": [
    { "name": "Server", "type": "node", "request": "launch", "program": "x.js", }, // theirs
  ],
}
"""


@contextmanager
def running(command: list[str], environ: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file, subprocess.Popen(command, env=environ, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(stretched(10))
            except subprocess.TimeoutExpired:
                process.kill()


def until(found: object, what: str) -> object:
    """What `found` gives, once it is true."""
    assert callable(found)
    end = time.monotonic() + DEADLINE
    while not (answer := found()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return answer


@pytest.mark.ray
def test_vscode_finds_nothing_wrong_in_them(code_server: CodeServer, tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None or not install.VSIX.exists():
        pytest.skip("no chromium, or the extension is not built: vscode/e2e/install, make vscode")
    # given a folder without anything, one with a user's file, and one with mistakes
    new, theirs, wrong = (tmp_path / name for name in ("new", "theirs", "wrong"))
    for folder in (new, theirs, wrong):
        (folder / ".vscode").mkdir(parents=True)
    (theirs / ".vscode" / "launch.json").write_text(THEIRS)
    init(new)
    init(theirs)
    for name, document in WRONG.items():
        (wrong / ".vscode" / name).write_text(json.dumps(document))
    # when VS Code opens them
    files = {folder: [str(folder / ".vscode" / name) for name in WRONG] for folder in (new, theirs, wrong)}
    answer = tmp_path / "answer.json"
    asked = {"right": files[new] + files[theirs], "wrong": files[wrong], "answer": str(answer)}
    code_server.environ["DEVKIT_CHECK"] = json.dumps(asked)
    _install(code_server, tmp_path)
    with _editor(code_server, tmp_path, chromium):
        until(answer.exists, f"VS Code said nothing: {(tmp_path / 'server.log').read_text()[-2000:]}")
    found = json.loads(answer.read_text())
    # then it finds the mistakes, and none in ours
    assert [name for name in files[wrong] if not found[name]] == []
    assert {name: problems for name, problems in found.items() if problems and name not in files[wrong]} == {}


def _install(code_server: CodeServer, folder: Path) -> None:
    checker = folder / "checker.vsix"
    with zipfile.ZipFile(checker, "w") as archive:
        for file in CHECKER.iterdir():
            archive.write(file, f"extension/{file.name}")
    code_server.run("--install-extension", str(install.VSIX), "--install-extension", str(checker), "--force")
    settings = code_server.home / ".local" / "share" / "code-server" / "User" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(SETTINGS))


@contextmanager
def _editor(code_server: CodeServer, folder: Path, chromium: str) -> Iterator[None]:
    log = folder / "server.log"
    command = [str(code_server.program), *QUIET, "--bind-addr", "127.0.0.1:0", str(folder / "new")]
    with running(command, code_server.environ, log):
        found = until(lambda: re.search(r"HTTP server listening on (http:\S+?)/?\s", log.read_text()), "no server")
        assert isinstance(found, re.Match)
        profile = f"--user-data-dir={folder / 'browser'}"
        environ = {**os.environ, "HOME": str(code_server.home)}
        with running([chromium, *CHROMIUM, profile, found[1]], environ, folder / "browser.log"):
            yield
