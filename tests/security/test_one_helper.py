"""Files where others may write, too, are made by one module, which looks at what is there.

What devkit writes inside of somebody's process by `private.py`, what a run writes into its folders by `own_files.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INWORKER = ROOT / "devkit" / "debug" / "inworker"
TRAINER = ROOT / "trainer"
OF_TRAINER = "own_files.py"
HELPER = "private.py"
# A name of its own with O_EXCL, in whatever folder: nobody can be there before it.
ALLOWED = {("card.py", "mkstemp")}
OPENED = {("relay.py", "open")}  # what the helper has made
MAKES = frozenset(
    {"mkstemp", "mkdtemp", "NamedTemporaryFile", "write_text", "write_bytes", "touch", "mkdir", "makedirs", "symlink"}
)
MODES = frozenset("wax")
NEW_FOLDER = "a folder that was made a moment ago: a save's, an export's, a temporary one"
ALONE = "a folder that is this user's alone by its mode"
OWN_NAME = "a name of its own with O_EXCL"
NO_FILE = "no file of a folder: /dev/null, a process's, what is open already"
TRAINERS = {  # what makes files without the helper, and why it may; folders that are made are no files
    ("agent/tools/python.py", "TemporaryDirectory"): OWN_NAME,
    ("apart.py", "mkstemp"): OWN_NAME,
    ("apart.py", "open"): "the terminal; the smoke test's log, in " + ALONE,
    ("capsules.py", "write_bytes"): NEW_FOLDER,
    ("demo/__main__.py", "write_text"): "a new folder that --output names",
    ("demo/lake.py", "write_text"): "a new folder that --output names",
    ("demo/search.py", "write_text"): "a new folder that --output names",
    ("demo/task.py", "write_text"): "a new folder that --output names",
    ("export.py", "copyfile"): NEW_FOLDER,
    ("export.py", "copytree"): NEW_FOLDER,
    ("learner/checkpoint.py", "write_text"): NEW_FOLDER,
    ("learner/lora_files.py", "write_text"): NEW_FOLDER,
    ("learner/snapshot.py", "mkdtemp"): OWN_NAME,
    ("learner/snapshot.py", "ZipFile"): "what the helper has made",
    ("capsules.py", "ZipFile"): "what the helper has opened",
    ("learner/tensor_files.py", "touch"): NEW_FOLDER,
    ("learner/tensor_files.py", "save_file"): NEW_FOLDER,
    ("memory.py", "write_text"): NO_FILE,
    ("ray_token.py", "mkstemp"): OWN_NAME,
    ("ray_token.py", "fdopen"): OWN_NAME,
    ("replay.py", "TemporaryDirectory"): OWN_NAME,
    ("rewards/checker.py", "fdopen"): NO_FILE,
    ("rollout/bucket.py", "mkstemp"): OWN_NAME,
    ("rollout/inside.py", "write_text"): ALONE,
    ("rollout/report_folder.py", "mkdtemp"): OWN_NAME,
    ("rollout/report_folder.py", "open"): ALONE,
    ("runlock.py", "open"): "O_NOFOLLOW, and what it has opened is looked at",
    ("runlock.py", "NamedTemporaryFile"): OWN_NAME,
}
LIBRARIES = frozenset({"ZipFile", "save_file", "copytree", "copyfile", "copy", "TemporaryDirectory"})
FOLDERS = frozenset({"mkdir", "makedirs"})
OPENS = frozenset({"open", "fdopen"})


def made(text: str, makes: frozenset[str] = MAKES) -> Iterator[str]:
    """The calls of a module that may make a file or a folder, by their names."""
    for node in ast.walk(ast.parse(text)):
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if name in makes or name in OPENS:
            modes = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            writes = any(isinstance(each, str) and len(each) <= 3 and MODES & set(each) for each in modes)
            if name == "ZipFile":
                if writes and name in makes:
                    yield name
            elif name in makes or (name in OPENS and (writes or "O_CREAT" in ast.unparse(node))):
                yield name


@pytest.mark.parametrize(
    "text",
    ["open(path, 'w')", "path.open('ab')", "os.open(path, os.O_WRONLY | os.O_CREAT)", "path.write_text('')",
     "tempfile.mkdtemp()"],
)  # fmt: skip
def test_it_would_be_seen(text: str) -> None:
    assert list(made(text))
    assert not list(made("open(path); path.open('rb'); path.open('r+b'); os.open(path, os.O_RDONLY)"))
    assert list(made("zipfile.ZipFile(path, 'a')", MAKES | LIBRARIES))


def test_files_are_made_by_one_module() -> None:
    found = {(path.name, name) for path in INWORKER.glob("*.py") for name in made(path.read_text())}
    assert any(file == HELPER for file, _ in found)
    assert {each for each in found if each[0] != HELPER} == ALLOWED | OPENED


def test_a_runs_files_are_made_by_one_module() -> None:
    makes = (MAKES | LIBRARIES) - FOLDERS
    found = {
        (path.relative_to(TRAINER).as_posix(), name)
        for path in TRAINER.rglob("*.py")
        for name in made(path.read_text(), makes)
    }
    assert any(file == OF_TRAINER for file, _ in found)
    assert {each for each in found if each[0] != OF_TRAINER} == TRAINERS.keys()
