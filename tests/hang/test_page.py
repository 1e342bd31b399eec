"""The first example of docs/hang.md, as it stands there: the program, and what is said of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.debug.conftest import Cluster, Job, eventually

PAGE = (Path(__file__).parents[2] / "docs" / "hang.md").read_text()
PROGRAM = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
TRANSCRIPT = re.search(r"\$ devkit hang\n(.*?)\n\nwho ", PAGE, re.DOTALL)


@pytest.mark.verdicts
def test_the_first_example(cluster: Cluster, launch: Callable[..., Job], tmp_path: Path) -> None:
    assert PROGRAM and TRANSCRIPT
    (tmp_path / "stuck.py").write_text(PROGRAM[1])
    job = launch("--", sys.executable, str(tmp_path / "stuck.py")).joined()

    def hang() -> str:
        said = cluster.devkit("hang", "--job", job.id, check=None)
        return said if "has not reached" in said else ""

    said = eventually(hang, "the hang")  # three processes import torch before
    plain = said.replace(f"{tmp_path}/", "").split("\n\nwho ")[0]
    assert without_seconds(plain) == without_seconds(TRANSCRIPT[1])


def without_seconds(text: str) -> str:
    return re.sub(r"for \d+ s", "for N s", text)
