"""Breakpoints that a run refuses: its driver is through them before devkit is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.debug import before_ray, breaks
from devkit.errors import UsageError

JOB = """\
import argparse

import ray

lr = argparse.ArgumentParser().prog


@ray.remote
class Worker:
    rank = 0

    def step(self):
        return self.rank


ray.init()
worker = Worker.remote()
"""


def check(tmp_path: Path, spec: str, text: str = JOB, *command: str) -> None:
    (tmp_path / "job.py").write_text(text)
    point = breaks.make(spec, folder=tmp_path)
    before_ray.refuse([point], command or ("python", "job.py"), tmp_path)


@pytest.mark.parametrize("line", [5, 8, 9, 10, 16])
def test_what_a_script_runs_up_to_its_init_is_refused(tmp_path: Path, line: int) -> None:
    with pytest.raises(
        UsageError, match=rf"job.py:{line} is never hit: devkit is in the driver from ray.init on, line 16"
    ):
        check(tmp_path, f"job.py:{line}")


@pytest.mark.parametrize("spec", ["job.py:12", "job.py:13", "job.py:17", "job:Worker.step"])
def test_functions_and_what_comes_later_are_not(tmp_path: Path, spec: str) -> None:
    check(tmp_path, spec)


@pytest.mark.parametrize(
    "text",
    [
        JOB.replace("ray.init()", "if True:\n    ray.init()"),
        JOB.replace("import ray\n", "import ray; ray.put(1)\n"),
        JOB + "ray.init()\n",
        JOB.replace("ray.init()", "main()"),
    ],
    ids=["in a block", "started before", "twice", "elsewhere"],
)
def test_where_it_cannot_be_known_nothing_is_refused(tmp_path: Path, text: str) -> None:
    check(tmp_path, "job.py:5", text)


def test_another_program_s_file_is_not_looked_at(tmp_path: Path) -> None:
    check(tmp_path, "job.py:5", JOB, "python", "other.py")
    check(tmp_path, "job.py:5", JOB, "python", "-m", "job")
    check(tmp_path, "job.py:5", JOB, "bash", "run.sh")
