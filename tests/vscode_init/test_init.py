"""`devkit vscode init`: what it writes, and what it leaves."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devkit import cli
from devkit.errors import DevkitError, UsageError
from devkit.vscode import entries, jsonc
from devkit.vscode.entries import Programs
from devkit.vscode.init import init
from trainer.config.load import load

BARE = Programs("devkit", "python")
NAMES = [entry["name"] for entry in entries.launch_configurations(BARE)]
LABELS = [entry["label"] for entry in entries.tasks(BARE)]

USERS = """\
// Shared by the team.
{
  "version": "0.2.0",
  /* Theirs. */
  "configurations": [
    { "name": "Server", "type": "python", "request": "launch" }, // keep, please
    // The next one is broken on ARM.
    { "name": "Client", "args": ["--fast",], },
  ],
  "compounds": [],
}
"""


def launch(folder: Path) -> Path:
    return folder / ".vscode" / "launch.json"


def tasks(folder: Path) -> Path:
    return folder / ".vscode" / "tasks.json"


def value(path: Path) -> Any:
    node = jsonc.parse(path.read_text())
    assert node is not None
    return node.value


def users(folder: Path, text: str = USERS) -> Path:
    """The folder of somebody who has a launch.json."""
    path = launch(folder)
    path.parent.mkdir()
    path.write_text(text)
    return path


# ---- what is written


def test_a_folder_without_anything_gets_both_files(tmp_path: Path) -> None:
    record = init(tmp_path)
    assert [each["name"] for each in value(launch(tmp_path))["configurations"]] == NAMES
    assert [each["label"] for each in value(tasks(tmp_path))["tasks"]] == LABELS
    assert (value(launch(tmp_path))["version"], value(tasks(tmp_path))["version"]) == ("0.2.0", "2.0.0")
    assert record.files[0].added == (*NAMES, "devkitCrash") and record.files[1].added == tuple(LABELS)
    assert "`devkit vscode init`" in jsonc.comments(launch(tmp_path).read_text())[0]


def test_the_folders_own_environment_is_used(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "devkit").touch()
    init(tmp_path)
    assert {each["command"] for each in value(tasks(tmp_path))["tasks"]} == {"${workspaceFolder}/.venv/bin/devkit"}
    trainer = value(launch(tmp_path))["configurations"][-1]
    assert trainer["command"][0] == "${workspaceFolder}/.venv/bin/python"


def test_the_trainer_knows_its_arguments() -> None:
    loaded = load(list(entries.TRAINER_ARGUMENTS))
    assert loaded.config.trainer.total_training_steps == 4


# ---- what is left


def test_what_is_there_stays_with_comments_and_commas(tmp_path: Path) -> None:
    path = users(tmp_path)
    init(tmp_path)
    text = path.read_text()
    head, tail = USERS.split("  ],\n")
    assert text.startswith(head + '    {\n      "name": "devkit: run the current file",\n')
    assert '  ],\n  "compounds": [],\n  "inputs": [\n' in text and tail == '  "compounds": [],\n}\n'
    assert jsonc.comments(text) == jsonc.comments(USERS)
    before = value_of(USERS)
    after = value(path)
    assert after["configurations"][:2] == before["configurations"] and after["compounds"] == []


def value_of(text: str) -> Any:
    node = jsonc.parse(text)
    assert node is not None
    return node.value


@pytest.mark.parametrize("before", [USERS, "", "// only this\n"])
def test_the_second_time_nothing_is_written(tmp_path: Path, before: str) -> None:
    path = users(tmp_path, before)
    init(tmp_path)
    text, written = path.read_bytes(), path.stat().st_ino
    record = init(tmp_path)
    assert (path.read_bytes(), path.stat().st_ino) == (text, written)
    assert record.files[0].unchanged == (*NAMES, "devkitCrash") and not record.files[0].added


def test_comments_alone_stay_on_top(tmp_path: Path) -> None:
    path = users(tmp_path, "// only this\n")
    init(tmp_path)
    assert path.read_text().startswith("// only this\n{\n") and value(path)["configurations"]


def test_line_ends_and_a_byte_order_mark_stay(tmp_path: Path) -> None:
    path = users(tmp_path, "")
    path.write_bytes(b"\xef\xbb\xbf" + USERS.replace("\n", "\r\n").encode())
    init(tmp_path)
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf//") and data.count(b"\n") == data.count(b"\r\n") > 30


def test_an_entry_that_the_user_changed_is_kept_unless_forced(tmp_path: Path) -> None:
    init(tmp_path)
    path = launch(tmp_path)
    path.write_text(path.read_text().replace("trainer.n_gpus_per_node=2", "trainer.n_gpus_per_node=8"))
    changed = path.read_text()
    record = init(tmp_path)
    assert record.files[0].kept == ("devkit: train with PPO",) and path.read_text() == changed
    record = init(tmp_path, force=True)
    assert record.files[0].updated == ("devkit: train with PPO",) and "per_node=2" in path.read_text()


def test_an_entry_of_another_environment_is_brought_up_to_date(tmp_path: Path) -> None:
    init(tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "devkit").touch()
    record = init(tmp_path)
    assert record.files[1].updated == tuple(LABELS) and record.files[0].updated == ("devkit: train with PPO",)


def test_an_entry_of_an_earlier_version_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = {"name": NAMES[1], "type": "devkit", "request": "attach", "everything": True}
    path = users(tmp_path, json.dumps({"version": "0.2.0", "configurations": [former]}))
    assert init(tmp_path).files[0].kept == (NAMES[1],)
    monkeypatch.setattr(entries, "FORMER", frozenset({entries.digest_of(former)}))
    assert init(tmp_path).files[0].updated == (NAMES[1],)
    assert value(path)["configurations"][0]["all"] is True


def test_a_comment_in_an_entry_makes_it_the_users(tmp_path: Path) -> None:
    init(tmp_path)
    path = tasks(tmp_path)
    path.write_text(path.read_text().replace('"command": "devkit",', '"command": "/opt/devkit", // ours', 1))
    assert init(tmp_path).files[1].kept == (LABELS[0],)


# ---- what goes wrong


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"tasks": [}', "is not JSON with comments: line 1, column 12"),
        ('{"tasks": {}}', "'tasks' is not an array"),
        ("[]", "does not contain an object"),
        ("<<<<<<< HEAD\n{}", "is not JSON with comments: line 1, column 1"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_file_is_named_and_nothing_is_written(tmp_path: Path, text: str, problem: str) -> None:
    path = users(tmp_path)
    tasks(tmp_path).write_text(text)
    with pytest.raises(UsageError, match=problem) as caught:
        init(tmp_path)
    assert "nothing was written" in caught.value.hint
    assert path.read_text() == USERS and tasks(tmp_path).read_text() == text
    assert sorted(os.listdir(path.parent)) == ["launch.json", "tasks.json"]


def test_bytes_that_are_no_text_are_left(tmp_path: Path) -> None:
    users(tmp_path, "").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(UsageError, match="not UTF-8"):
        init(tmp_path)


def test_a_folder_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".vscode").write_text("a file")
    with pytest.raises(DevkitError, match=r"cannot (read|write) .*launch\.json") as caught:
        init(tmp_path)
    assert caught.value.hint
    with pytest.raises(UsageError, match="no such folder"):
        init(tmp_path / "nowhere")


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    real = tmp_path / "shared.json"
    real.write_text(USERS)
    real.chmod(0o640)
    (tmp_path / ".vscode").mkdir()
    launch(tmp_path).symlink_to(real)
    init(tmp_path)
    assert launch(tmp_path).is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o640
    assert "devkit" in real.read_text()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = users(tmp_path)

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(DevkitError, match="No space left on device"):
        init(tmp_path)
    assert path.read_text() == USERS and os.listdir(path.parent) == ["launch.json"]


# ---- the command line


def test_the_command_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["vscode", "init"]) == 0
    out = capsys.readouterr().out
    assert f"{launch(tmp_path)}\n  devkit: run the current file: added\n" in out
    assert cli.main(["vscode", "init", "--folder", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [len(file["unchanged"]) for file in document["files"]] == [len(NAMES) + 1, len(LABELS)]
    launch(tmp_path).write_text("{")
    assert cli.main(["vscode", "init", "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_code"] == 2 and err.count("hint: ") == 1


# ---- any file

names = st.sampled_from([*NAMES, "mine", "yours", ""])
configurations = st.lists(
    st.dictionaries(st.sampled_from(["name", "type", "args"]), names | st.lists(names, max_size=2)) | st.integers(),
    max_size=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(configurations=configurations, force=st.booleans(), indent=st.sampled_from([None, 1, 4, "\t"]))
def test_entries_of_other_names_are_never_touched(
    tmp_path: Path, configurations: list[Any], force: bool, indent: int | str | None
) -> None:
    path = launch(tmp_path)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"configurations": configurations, "other": [1]}, indent=indent))
    init(tmp_path, force=force)
    after = value(path)

    def others(found: list[Any]) -> list[Any]:
        return [each for each in found if not (isinstance(each, dict) and each.get("name") in NAMES)]

    assert others(after["configurations"]) == others(configurations) and after["other"] == [1]
    named = [each.get("name") for each in after["configurations"] if isinstance(each, dict)]
    assert set(NAMES) <= {name for name in named if isinstance(name, str)}
