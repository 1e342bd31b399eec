"""Which file is which: unpacked code, pickled drivers, explicit mappings, and messages with paths in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.debug.dap_ids import Ids, UnknownId
from devkit.debug.dap_link import Replay
from devkit.debug.dap_paths import Paths, bases, explicit_mappings, find_local, find_remote, unpacked_roots
from devkit.debug.dap_translate import FIRST_REFERENCE, Translation

ROOT = "/tmp/ray/session_2026/runtime_resources/working_dir_files/_ray_pkg_0f3abc"
MODULES = "/tmp/ray/session_2026/runtime_resources/py_modules_files/_ray_pkg_99"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    for name in ("pkg/m.py", "job.py", "src/lib/deep.py", ".venv/pkg/hidden.py", "env/pkg/hidden.py", "__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n")
    (folder / "env" / "pyvenv.cfg").touch()
    return folder


def unpacked(tmp_path: Path, *names: str, text: str = "") -> str:
    """A folder like those of Ray, which can be read from here."""
    root = tmp_path / "ray" / "working_dir_files" / "_ray_pkg_0f3abc"
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text or f"# {name}\n")
    return str(root)


def test_unpacked_roots_in_paths_and_in_other_texts() -> None:
    assert unpacked_roots(f"{ROOT}/pkg/m.py") == [ROOT]
    assert unpacked_roots(f"['', '{MODULES}', '{ROOT}', '{ROOT}/x', '/usr/lib']") == [MODULES, ROOT]
    assert unpacked_roots("/home/a/_ray_pkg_12/m.py") == []


@pytest.mark.parametrize("root", [ROOT, MODULES])
def test_unpacked_code_is_found_on_another_machine(workspace: Path, root: str) -> None:
    paths = Paths(str(workspace))
    assert paths.to_editor(f"{root}/pkg/m.py") == f"{workspace}/pkg/m.py"
    assert paths.to_editor(f"{root}/lib/deep.py") == f"{workspace}/src/lib/deep.py"
    assert paths.to_worker(f"{workspace}/src/lib/deep.py") == f"{root}/lib/deep.py"
    assert paths.to_worker(f"{workspace}/job.py") == f"{root}/job.py"
    assert paths.to_editor(f"{root}/pkg/other.py") == f"{root}/pkg/other.py"
    assert paths.to_editor(f"{root}/pkg/hidden.py") == f"{root}/pkg/hidden.py"


def test_the_content_must_be_the_same_where_it_can_be_read(workspace: Path, tmp_path: Path) -> None:
    root = unpacked(tmp_path, "pkg/m.py")
    assert Paths(str(workspace)).to_editor(f"{root}/pkg/m.py") == f"{workspace}/pkg/m.py"
    (workspace / "pkg" / "m.py").write_text("# edited since\n")
    paths = Paths(str(workspace), [root])
    assert paths.to_editor(f"{root}/pkg/m.py") == f"{root}/pkg/m.py"
    assert paths.to_worker(f"{workspace}/pkg/m.py") == f"{workspace}/pkg/m.py"


def test_a_breakpoint_finds_its_way_before_any_frame_was_seen(workspace: Path, tmp_path: Path) -> None:
    root = unpacked(tmp_path, "lib/deep.py", text="# src/lib/deep.py\n")
    paths = Paths(str(workspace))
    assert paths.to_worker(f"{workspace}/src/lib/deep.py") == f"{workspace}/src/lib/deep.py"
    paths.learn(f"['{root}']")
    assert paths.to_worker(f"{workspace}/src/lib/deep.py") == f"{root}/lib/deep.py"
    assert paths.to_worker(f"{workspace}/job.py") == f"{workspace}/job.py"  # it was not sent along


def test_a_pickled_drivers_path_is_found_by_its_end(workspace: Path) -> None:
    paths = Paths(str(workspace))
    assert paths.to_editor("/home/somebody/code/pkg/m.py") == f"{workspace}/pkg/m.py"
    assert paths.to_worker(f"{workspace}/pkg/m.py") == "/home/somebody/code/pkg/m.py"
    assert paths.to_editor("/home/somebody/job.py") == f"{workspace}/job.py"
    for foreign in ("/x/y/__init__.py", "/v/lib/python3.11/site-packages/pkg/m.py", "<string>", "pkg/m.py"):
        assert paths.to_editor(foreign) == foreign


def test_a_file_that_is_here_is_itself(workspace: Path, tmp_path: Path) -> None:
    here = tmp_path / "other" / "pkg" / "m.py"
    here.parent.mkdir(parents=True)
    here.touch()
    assert find_local(str(here), str(workspace)) is None


def test_explicit_mappings_win(workspace: Path) -> None:
    paths = Paths(str(workspace))
    paths.attach({"pathMappings": [{"localRoot": str(workspace), "remoteRoot": "/job"}]})
    # The worker translates these itself; what it sends is the editor's already.
    assert paths.to_worker(f"{workspace}/pkg/m.py") == f"{workspace}/pkg/m.py"
    assert paths.to_editor(f"{workspace}/pkg/m.py") == f"{workspace}/pkg/m.py"
    assert paths.to_editor("/job/pkg/m.py") == "/job/pkg/m.py"
    other = Paths(str(workspace))
    other.attach({"pathMappings": [{"localRoot": "/elsewhere", "remoteRoot": "/job"}]})
    assert other.to_editor(f"{ROOT}/pkg/m.py") == f"{workspace}/pkg/m.py"
    assert explicit_mappings({"pathMappings": None}) == []


def test_local_root_names_the_workspace(workspace: Path, tmp_path: Path) -> None:
    paths = Paths(str(tmp_path / "nowhere"))
    paths.to_editor(f"{ROOT}/pkg/m.py")
    paths.attach({"localRoot": str(workspace)})
    assert paths.to_editor(f"{ROOT}/pkg/m.py") == f"{workspace}/pkg/m.py"


def test_folders_of_tools_are_not_looked_into(workspace: Path) -> None:
    assert [Path(each).name for each in bases(str(workspace))] == ["workspace", "pkg", "src", "lib"]
    assert find_remote("/not/in/it.py", str(workspace), [], [ROOT]) is None


def test_messages_are_translated_both_ways(workspace: Path) -> None:
    translation = Translation(Paths(str(workspace)))
    frames = {"stackFrames": [{"id": 1, "source": {"path": f"{ROOT}/pkg/m.py", "name": "m.py", "sourceReference": 4}}]}
    [there] = translation.to_editor(frames)["stackFrames"]
    assert there["source"] == {"path": f"{workspace}/pkg/m.py", "name": "m.py", "sourceReference": 0}
    back = translation.to_worker({"source": {"path": f"{workspace}/pkg/m.py"}, "breakpoints": [{"line": 3}]})
    assert back == {"source": {"path": f"{ROOT}/pkg/m.py"}, "breakpoints": [{"line": 3}]}
    assert frames["stackFrames"][0]["source"]["path"].startswith(ROOT)  # what came in is left as it was


def test_a_file_that_only_the_worker_has_gets_a_reference(workspace: Path) -> None:
    translation = Translation(Paths(str(workspace)))
    path = "/opt/venv/lib/python3.11/site-packages/torch/nn/functional.py"
    for _ in range(2):
        source = translation.to_editor({"source": {"path": path}})["source"]
        assert (source["path"], source["sourceReference"]) == (path, FIRST_REFERENCE)
    asked = translation.to_worker({"sourceReference": FIRST_REFERENCE, "source": source})
    assert asked["source"]["path"] == path
    assert asked["sourceReference"] == asked["source"]["sourceReference"] == 0
    kept = translation.to_editor({"source": {"path": "<string>", "sourceReference": 2}})["source"]
    assert kept["sourceReference"] == 2


def test_ids_of_many_members() -> None:
    ids = Ids()
    frames = ids.outward({"stackFrames": [{"id": 5, "source": {"sourceReference": 0}}]}, "a")
    other = ids.outward({"stackFrames": [{"id": 5}]}, "b")
    assert (frames["stackFrames"][0]["id"], other["stackFrames"][0]["id"]) == (1, 2)
    assert ids.inward({"frameId": 2, "expression": "x"}) == ("b", {"frameId": 5, "expression": "x"})
    listed = ids.outward({"variables": [{"name": "id", "variablesReference": 0}, {"variablesReference": 9}]}, "b")
    assert [each["variablesReference"] for each in listed["variables"]] == [0, 1]
    assert ids.inward({"variablesReference": 1, "start": 3}) == ("b", {"variablesReference": 9, "start": 3})
    assert ids.inward({"source": {"path": "/x"}}) == (None, {"source": {"path": "/x"}})
    source = ids.outward({"source": {"sourceReference": 7}}, "a")["source"]["sourceReference"]
    assert ids.inward({"source": {"sourceReference": source}})[0] == "a"
    with pytest.raises(UnknownId, match="no thread 8"):
        ids.inward({"threadId": 8})


def test_a_replay_is_in_order() -> None:
    replay = Replay()
    assert replay.requests() == []
    replay.note("configurationDone", {})
    replay.note("setExceptionBreakpoints", {"filters": []})
    replay.note("setBreakpoints", {"source": {"path": "/a"}, "breakpoints": []})
    replay.note("setBreakpoints", {"source": {"path": "/a"}, "breakpoints": [{"line": 1}]})
    replay.note("attach", {"x": 1})
    replay.note("initialize", {"adapterID": "devkit"})
    replay.note("evaluate", {"expression": "x"})
    assert [command for command, _ in replay.requests()] == [
        "initialize", "attach", "setBreakpoints", "setExceptionBreakpoints", "configurationDone"
    ]  # fmt: skip
    assert replay.requests()[2][1]["breakpoints"] == [{"line": 1}]
