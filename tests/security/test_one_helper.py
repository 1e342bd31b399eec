"""What devkit writes inside of somebody's process is written by one module, which looks at whose place that is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

INWORKER = Path(__file__).parents[2] / "devkit" / "debug" / "inworker"
HELPER = "private.py"
# A name of its own with O_EXCL, in whatever folder: nobody can be there before it.
ALLOWED = {("card.py", "mkstemp")}
OPENED = {("relay.py", "open")}  # what the helper has made
MAKES = frozenset(
    {"mkstemp", "mkdtemp", "NamedTemporaryFile", "write_text", "write_bytes", "touch", "mkdir", "makedirs", "symlink"}
)
MODES = frozenset("wax")


def made(text: str) -> Iterator[str]:
    """The calls of a module that may make a file or a folder, by their names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            modes = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            writes = any(isinstance(each, str) and len(each) <= 3 and MODES & set(each) for each in modes)
            if name in MAKES or (name in ("open", "fdopen") and (writes or "O_CREAT" in ast.unparse(node))):
                yield name


@pytest.mark.parametrize(
    "text",
    ["open(path, 'w')", "path.open('ab')", "os.open(path, os.O_WRONLY | os.O_CREAT)", "path.write_text('')",
     "tempfile.mkdtemp()"],
)  # fmt: skip
def test_it_would_be_seen(text: str) -> None:
    assert list(made(text))
    assert not list(made("open(path); path.open('rb'); path.open('r+b'); os.open(path, os.O_RDONLY)"))


def test_files_are_made_by_one_module() -> None:
    found = {(path.name, name) for path in INWORKER.glob("*.py") for name in made(path.read_text())}
    assert any(file == HELPER for file, _ in found)
    assert {each for each in found if each[0] != HELPER} == ALLOWED | OPENED
