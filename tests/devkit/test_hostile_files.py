"""Files that others wrote, and devkit's own after somebody was at them: each verb that reads one answers."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devkit.debug import launched, processes, runs, state
from devkit.debug.dap_crash_frames import is_as_recorded
from devkit.debug.dap_paths import same_content
from devkit.debug.dap_recorded import look_up
from devkit.debug.dap_stdio import read_frames
from devkit.debug.hub_file import HubPlace
from devkit.debug.kept_values import value_text
from devkit.debug.rest import _gist
from devkit.debug.submit import odd_files
from devkit.debug.terminal_session import _local_text
from devkit.doctor.training import wanted
from devkit.errors import DevkitError, UsageError
from devkit.launch.remote import read_hosts
from devkit.reading import read_source, record_of
from devkit.vscode import jsonc
from devkit.vscode.init import init

DEEP = "[" * 100_000
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture
def no_files(tmp_path: Path) -> list[str]:
    """Paths that no file of a person's is at."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 33)
    names = [str(tmp_path / name) for name in ("fifo", "loop", "zero", "large", "none")]
    return [*names, str(tmp_path), "/dev/zero", "x" * 5000, "a\0b", "~nobody-here/x"]


# ---- files that a command names, or that lie in a folder


def test_hosts(no_files: list[str], tmp_path: Path) -> None:
    for name in no_files:
        if "/" in name:
            with pytest.raises(UsageError, match=r"no such file|cannot be read"):
                read_hosts(name)
    (tmp_path / "hosts").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        read_hosts(str(tmp_path / "hosts"))


def test_doctor(no_files: list[str]) -> None:
    for name in no_files:
        if name.endswith("large"):
            with pytest.raises(UsageError, match="too large"):
                wanted([name])
        else:
            assert wanted([name]).demands == ()


@pytest.mark.parametrize(
    "content", [DEEP, '{"a": ' + "1" * 5000 + "}", '{"a": NaN}', "/*" * 1000, '{"a": "\\q"}', "[]"]
)
def test_a_launch_json_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / ".vscode").mkdir()
    file = tmp_path / ".vscode" / "launch.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"is not JSON with comments|does not contain an object"):
        init(tmp_path)
    assert file.read_text() == content and list((tmp_path / ".vscode").iterdir()) == [file]


def test_a_launch_json_that_is_no_file(tmp_path: Path, no_files: list[str]) -> None:
    for name in no_files[:4]:
        folder = tmp_path / f"of {Path(name).name}" / ".vscode"
        folder.mkdir(parents=True)
        (folder / "launch.json").symlink_to(name)
        with pytest.raises(UsageError, match="cannot read"):
            init(folder.parent)


def test_a_launch_json_with_very_many_entries(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "launch.json").write_text('{"configurations": [' + "{}," * 30_000 + "]}")
    jsonc.parse.cache_clear()
    assert init(tmp_path).files[0].added
    assert jsonc.parse.cache_info().misses < 60


TOKENS = st.sampled_from(
    [*'{}[]:,"', "//", "/*", "*/", "\n", " ", "1", "-", "true", "null", '"a"', '"\\u00e9"', "\ufeff", "\\"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(TOKENS | st.text(max_size=3), max_size=20).map("".join))
@example("[" + "9" * 5000 + "]")
@example('{"a":1e999}')
@example('{"\\ud800": "\\udfff"}')
def test_any_text_is_json_with_comments_or_is_refused_with_a_place(text: str) -> None:
    try:
        node = jsonc.parse(text)
    except jsonc.JsoncError as error:
        said = str(error)
    else:
        said = "line 1"
        assert node is None or (0 <= node.start < node.end <= len(text))
        jsonc.comments(text)
    assert said.startswith("line ")


# ---- files whose names come from a cluster


def test_sources_that_a_worker_names(no_files: list[str], tmp_path: Path) -> None:
    for name in no_files:
        assert read_source(name) is None
        assert _local_text(name) == ""
        assert same_content(name, __file__)
        assert not is_as_recorded(name, {1: "x"})
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'\n")
    (tmp_path / "odd.py").write_bytes(b"# -*- coding: no-such-thing -*-\n")
    assert "é" in (read_source(str(tmp_path / "latin.py")) or "")
    assert read_source(str(tmp_path / "odd.py")) is None


def test_a_working_folder_with_what_is_no_file(tmp_path: Path) -> None:
    """Ray reads all that is in it, and would wait for a pipe for ever."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    os.mkfifo(tmp_path / "src" / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert odd_files(tmp_path) == ["/src/fifo", "/zero"]


# ---- what devkit remembers


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


ME = (os.getpid(), processes.started(os.getpid()) or "")  # whose record is not that of a process that has ended
HOST = launched.LaunchedHost("h1", "head", "10.0.0.1", "debug", "/logs")
WHOLE: dict[str, Any] = {
    "clusters": state.ClusterState(
        "debug",
        "h:1",
        "http://h:2",
        "distributed",
        "token",
        (state.Started("head", *ME, "/l"),),
        1.0,
        machine=processes.machine(),
    ),
    "launched": launched.Launched("debug", "ssh", "h:1", "http://h:2", "distributed", "token", "python", (HOST,), 1.0),
    "runs": runs.Run(*ME, "h:1", "http://h:2", 1.0, HubPlace("h", "127.0.0.1", 1, "n")),
}
READERS: dict[str, Callable[[], Any]] = {
    "clusters": state.clusters,
    "launched": launched.all_launched,
    "runs": runs.running,
}


def put(folder: str, name: str, text: str) -> None:
    path = state.private_folder(folder) / name
    path.write_text(text)
    path.chmod(0o600)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_record_comes_back_as_it_was(kind: str) -> None:
    whole = WHOLE[kind]
    assert record_of(type(whole), json.loads(json.dumps(asdict(whole)))) == whole


@pytest.mark.parametrize("kind", READERS)
def test_remembered_files_that_are_damaged_are_passed_over(kind: str, home: Path) -> None:
    whole = json.loads(json.dumps(asdict(WHOLE[kind])))
    damaged = [DEEP, "", "[]", "null", "5", '"x"', "{}", '{"name": "\\ud800"}', '{"pid": 1e999}', "\0"]
    damaged += [json.dumps({**whole, name: odd}) for name in whole for odd in (None, [5], {"a": 1}, 1e300)]
    for number, text in enumerate(damaged):
        put(kind, f"run-{number}.json", text)
    put(kind, "run-whole.json", json.dumps(whole))
    kept = READERS[kind]()
    assert WHOLE[kind] in kept
    for found in kept:
        assert {name: type(getattr(found, name)) for name in whole} == {n: type(getattr(WHOLE[kind], n)) for n in whole}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_a_record_has_the_types_that_it_says_or_is_refused(kind: str, data: st.DataObject) -> None:
    whole = json.loads(json.dumps(asdict(WHOLE[kind])))
    name = data.draw(st.sampled_from(sorted(whole)))
    document = {**whole, name: data.draw(JSON), "more": 1}
    try:
        found = record_of(type(WHOLE[kind]), document)
    except ValueError:
        return
    kept = getattr(found, name)
    hint = get_type_hints(type(WHOLE[kind]))[name]
    assert isinstance(kept, (tuple, dict)) or hint in (float,) or type(kept) is type(getattr(WHOLE[kind], name))


@pytest.mark.parametrize(
    "text", [DEEP, "[]", '{"h:1": 5}', '{"h:1": {"dashboard_url": 5, "session": []}}', '{"h:1": {}}']
)
def test_what_was_seen_is_forgotten_when_it_is_damaged(home: Path, text: str) -> None:
    put("", "seen.json", text)
    assert state.seen("h:1") is None
    state.see("h:1", state.Seen("http://h:2", "s"))
    assert state.seen("h:1") == state.Seen("http://h:2", "s")


def test_pids_of_any_size() -> None:
    for pid in (-1, 0, 10**400, 2**63):
        assert processes.started(pid) is None


# ---- messages


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), JSON)
@example(b"", DEEP)
@example(b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", None)
def test_frames_of_an_editor_are_messages_or_refused(junk: bytes, document: Any) -> None:
    text = document if document == DEEP else json.dumps(document)
    frame = b"Content-Length: %d\r\n\r\n%s" % (len(text.encode()), text.encode())
    for data in (frame, junk + frame, frame[:-1], junk):
        try:
            assert all(isinstance(message, dict) for message in read_frames(io.BytesIO(data)))
        except ValueError:
            continue


def test_an_answer_of_a_dashboard_that_nests_deeply() -> None:
    class Answer:
        body, text = DEEP.encode(), "it failed"

    assert _gist(Answer()) == "it failed"  # type: ignore[arg-type]


# ---- snapshots of crashes


@settings(max_examples=200, deadline=None)
@given(JSON, st.text(max_size=30))
@example({"type": "T", "attributes": {}}, "a" + ".a" * 20_000)
@example([1], "x[" * 200)
@example([1], "x[-9]")
@example({"tensor": {"dtype": "x", "shape": 5}}, "x.shape")
@example({"tensor": {"dtype": "x", "shape": [1], "mean": "a"}}, "x")
def test_any_recorded_value_can_be_shown_and_asked_for(value: Any, expression: str) -> None:
    assert isinstance(value_text(value), str)
    try:
        look_up(expression, {"x": value, "a": value})
    except DevkitError:
        return
