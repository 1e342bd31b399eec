"""The loops around a line, the nearest first, and which of how many a `for` is at."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import polls

ONE_LINE = """
class Job:
    def __init__(self, look):
        self.look, self.found = look, []

    def is_done(self):
        return bool(self.found)

    def run(self):
        while not self.is_done(): self.found.append(self.look())

    def runs(self, rows):
        for row in rows:
            while not self.is_done(): self.found.append(self.look())
"""


def look() -> Any:
    return polls.around(sys._getframe(1))


@pytest.mark.parametrize(("call", "outer"), [("run", []), ("runs", ["for row in rows"])])
def test_a_loop_on_one_line_is_not_around_itself(tmp_path: Path, call: str, outer: list[str]) -> None:
    path = tmp_path / "job.py"
    path.write_text(ONE_LINE)
    names: dict[str, Any] = {}
    exec(compile(ONE_LINE, str(path), "exec"), names)
    job = names["Job"](look)
    getattr(job, call)(*([[3]] if outer else []))
    [found] = job.found
    assert found["loop"] == "while not self.is_done()"
    assert [each["loop"] for each in found.get("outer", ())] == outer


def test_the_place_in_a_list_is_that_of_its_variable() -> None:
    told, rows = [], [1, 2, 3]
    for row in rows:
        told.append((row, look()["values"]["row"])[1])
    assert told == ["1 (no. 1 of 3)", "2 (no. 2 of 3)", "3 (no. 3 of 3)"]


def test_no_place_is_told_of_a_variable_that_the_loop_sets() -> None:
    told, rows = [], [1, 2, 3]
    for row in rows:
        row += 1
        told.append(look()["values"]["row"])
    for row in rows:
        told.append(look()["values"]["row"])
        rows = [*rows, row]
    assert told == ["2", "3", "4", "1", "2", "3"]


def test_only_an_if_that_the_line_is_under_is_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file has thousands of them, and each line of each stack is looked at."""
    others = "".join(f"    if at == {number}:\n        pass\n" for number in range(50))
    text = f"def run(look, at):\n{others}    if at > 5:\n        return look()\n"
    path = tmp_path / "job.py"
    path.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), names)
    written: list[ast.AST] = []
    unparse = ast.unparse
    monkeypatch.setattr(ast, "unparse", lambda node: written.append(node) or unparse(node))
    assert names["run"](lambda: polls.under(sys._getframe(1)), 7) == {"if": "at > 5", "values": {"at": "7"}}
    assert len(written) < 5
