"""`devkit vscode install`: which editors it finds, what it asks of them, and what they make of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from devkit import cli
from devkit.errors import DevkitError, UsageError
from devkit.vscode import install
from devkit.vscode.editors import HOOK, choose
from tests.vscode_init.conftest import DEADLINE, ROOT, CodeServer

HERE = Path("/nowhere")  # a home without any editor's server
EDITOR = """\
#!/bin/sh
for argument in "$@"; do printf '%s\\n' "$argument" >> "$0.asked"; done
{body}
"""
GLAD = "echo Installing extensions...; echo \"Extension 'ray-devkit.vsix' was successfully installed.\""
REFUSING = "echo Installing extensions...; echo 'it is not compatible with VS Code 1.80' >&2; exit 1"


def editor(folder: Path, name: str, body: str = GLAD) -> Path:
    """A program that notes what it was asked."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(EDITOR.format(body=body))
    path.chmod(0o755)
    return path


def asked(path: Path) -> list[str]:
    return path.with_name(f"{path.name}.asked").read_text().splitlines()


@pytest.fixture
def vsix(tmp_path: Path) -> Path:
    path = tmp_path / "ray-devkit.vsix"
    manifest = {"publisher": "ray-devkit", "name": "ray-devkit", "version": "1.2.3"}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("extension/package.json", json.dumps(manifest))
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, but those of the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(HOOK, raising=False)
    return folder


# ---- which editors


def test_all_that_are_on_the_path_are_found_once(path: Path) -> None:
    for name in ("cursor", "code", "vim"):
        editor(path, name)
    (path / "codium").symlink_to(path / "code")
    assert [each.name for each in choose((), os.environ, HERE)] == ["code", "cursor"]


def test_in_an_editors_terminal_it_is_that_editor(path: Path, tmp_path: Path) -> None:
    # given a desktop editor, and the command line of the editor whose terminal this is
    editor(path, "cursor")
    remote = editor(tmp_path / "server" / "bin" / "remote-cli", "code")
    environ = {"PATH": f"{remote.parent}:{path}"}
    # then it is the one that is meant; and outside of a terminal of its own it can do nothing
    assert [each.path for each in choose((), {**environ, HOOK: "/run/x.sock"}, HERE)] == [str(remote)]
    assert [each.name for each in choose((), environ, HERE)] == ["cursor"]


def test_a_remote_editor_is_found_by_its_folder_too(path: Path, tmp_path: Path) -> None:
    """As in tmux, where the PATH is another one. The newest server is the one that runs."""
    servers = tmp_path / ".vscode-server" / "cli" / "servers"
    old, new = (editor(servers / name / "server" / "bin" / "remote-cli", "code") for name in ("Stable-1", "Stable-2"))
    os.utime(old, (1, 1))
    assert [each.path for each in choose((), {"PATH": str(path), HOOK: "/run/x.sock"}, tmp_path)] == [str(new)]


def test_one_that_is_named_is_meant(path: Path, tmp_path: Path) -> None:
    editor(path, "code")
    mine = editor(tmp_path / "opt", "my-editor")
    editor(path, "positron")
    assert [each.name for each in choose(["code"], os.environ, HERE)] == ["code"]
    assert [each.path for each in choose([str(mine), "positron"], os.environ, HERE)] == [
        str(mine),
        str(path / "positron"),
    ]


def test_one_that_is_not_there_is_an_error(path: Path) -> None:
    editor(path, "code")
    with pytest.raises(UsageError, match="no editor cursor is on the PATH") as caught:
        choose(["cursor"], os.environ, HERE)
    assert "found here: code" in caught.value.hint
    with pytest.raises(UsageError, match="no such program: /no/code"):
        choose(["/no/code"], os.environ, HERE)


def test_none_at_all_is_an_error_with_a_way_out(path: Path, vsix: Path) -> None:
    with pytest.raises(DevkitError, match="no editor found") as caught:
        install.main(vsix=vsix)
    assert "--editor PATH" in caught.value.hint


# ---- what they are asked, and what they say


def test_each_editor_is_asked_to_install_it(path: Path, vsix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    programs = [editor(path, name) for name in ("code", "code-server")]
    assert install.main(vsix=vsix) == 0
    assert [asked(program) for program in programs] == [["--install-extension", str(vsix), "--force"]] * 2
    assert f"code: installed ray-devkit.ray-devkit 1.2.3 ({path}/code)\n" in capsys.readouterr().out


def test_one_that_refuses_is_named_and_the_others_have_it(
    path: Path, vsix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    editor(path, "code", REFUSING)
    editor(path, "cursor")
    with pytest.raises(DevkitError, match=r"code did not accept it: it is not compatible with VS Code 1\.80") as caught:
        install.main(vsix=vsix)
    assert caught.value.hint == f"by hand: {path}/code --install-extension {vsix} --force"
    assert "cursor: installed" in capsys.readouterr().out
    assert install.main(json=True, vsix=vsix) == 1
    document = json.loads(capsys.readouterr().out)
    assert [(each["editor"], each["ok"]) for each in document["editors"]] == [("code", False), ("cursor", True)]
    assert document["version"] == "1.2.3" and document["file"] == str(vsix)


def test_one_that_does_not_end_is_given_up(path: Path, vsix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor(path, "code", "exec sleep 60")
    monkeypatch.setattr(install, "SECONDS", 0.2)
    with pytest.raises(DevkitError, match=r"did not finish within 0\.2 s"):
        install.main(vsix=vsix)


def test_an_extension_that_was_not_built_is_an_error(path: Path, tmp_path: Path) -> None:
    editor(path, "code")
    with pytest.raises(DevkitError, match="the extension is not built") as caught:
        install.main(vsix=tmp_path / "none.vsix")
    assert caught.value.hint.startswith("in a checkout, build it with make vscode")
    (tmp_path / "none.vsix").write_bytes(b"PK")
    with pytest.raises(DevkitError, match="is not an extension"):
        install.main(vsix=tmp_path / "none.vsix")
    assert not (path / "code.asked").exists()


def test_the_command_line(
    path: Path, vsix: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install.main, "__kwdefaults__", {"json": False, "vsix": vsix})
    program = editor(path, "codium")
    assert cli.main(["vscode", "install", "--editor", "codium", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["editors"][0]["path"] == str(program)
    assert cli.main(["vscode", "install", "--editor", "code", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


# ---- a real editor


@pytest.mark.ray
def test_code_server_has_it_then(code_server: CodeServer) -> None:
    """What `make vscode` built, as the command installs it."""
    if not install.VSIX.exists():
        pytest.skip("the extension is not built: make vscode")
    environ = {**code_server.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "devkit", "vscode", "install", "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert [(each["editor"], each["ok"]) for each in document["editors"]] == [("code-server", True)]
    name, version = install.identify(install.VSIX)
    assert f"{name}@{version}" in code_server.run("--list-extensions", "--show-versions").splitlines()
