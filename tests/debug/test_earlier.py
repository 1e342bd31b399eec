"""Values that a failing line has not come to set in this round of its loop are said to be of an earlier one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devkit.debug.crash_page import clues_of
from devkit.debug.inworker import clues
from tests.debug.test_other_versions import raised_by

PROGRAMS = {
    "a loop": """
def f(batches):
    total = 0
    for at, batch in enumerate(batches):
        first = 1
        scores = 6 / batch  # fails
        total += scores
        loss = scores * 2
    return loss
""",
    "while, several lines": """
def f(batches):
    at, mean = 0, None
    while at < len(batches):
        scores, found = [
            6  # fails
            / batches[at]
        ], at
        mean = sum(scores)
        if mean > 2:
            loss = mean
        at += 1
""",
    "in a with in a loop in a loop": """
def f(batches):
    for epoch in range(2):
        for batch in batches:
            with open("/dev/null") as file:
                scores = 6 / batch  # fails
        mean = epoch
    return mean
""",
    "a handler has run": """
def f(batches):
    for batch in batches:
        try:
            scores = 6 / batch  # fails
            loss = scores
        except OSError:
            pass
        finally:
            done = batch
""",
    "no loop": """
def f(batches):
    if len(batches) > 1:
        scores = 6 / batches[-1]  # fails
        loss = scores
""",
    "set before": """
def f(batches, loss=0):
    scores = 1
    for batch in batches:
        if batch == 7:
            mean = 2
        scores = 6 / batch  # fails
        loss = mean = scores
""",
    "others' names": """
def f(batches):
    global known
    known = 1
    for batch in batches:
        6 / batch  # fails
        known = 2
        def inner():
            only = 3
            return only
        rows = [one for one in batches]
""",
    "a comprehension": """
def f(batches):
    for _ in range(3):
        scores = [6 / each for each in batches]  # fails
""",
}
WANTED = {
    "a loop": "scores, loss are of",
    "while, several lines": "scores, found, loss are of",
    "in a with in a loop in a loop": "scores is of",
    "a handler has run": "scores, loss are of",
    "others' names": "inner, rows are of",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_set_at_the_line_or_below_it_is_of_an_earlier_round(name: str, tmp_path: Path) -> None:
    path, text = tmp_path / "job.py", PROGRAMS[name].lstrip()
    path.write_text(text)
    space: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), space)
    error = raised_by(lambda: space["f"]([3, 2, 0]))
    found = clues.found(clues.Failure(error, "task")).get("earlier", [])
    line = next(at for at, each in enumerate(text.splitlines(), 1) if each.endswith("# fails"))
    wanted = WANTED.get(name)
    said = [f"{wanted} an earlier round of the loop: set at job.py:{line} or below it"] if wanted else []
    assert found == said == list(clues_of({"earlier": found}))


def test_of_the_first_round_nothing_is_said(tmp_path: Path) -> None:
    path, text = tmp_path / "job.py", PROGRAMS["a loop"].lstrip()
    path.write_text(text)
    space: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), space)
    assert "earlier" not in clues.found(clues.Failure(raised_by(lambda: space["f"]([0, 1])), "task"))
