"""Programs as users of Ray's libraries write them, on the debugger's cluster, and what of them has to be installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.debug.conftest import Cluster, Job, cluster, eventually, launch

__all__ = ["cluster", "launch"]

collect_ignore_glob = ["scripts/*"]
SCRIPTS = Path(__file__).with_name("scripts")
DEADLINE = 150.0  # seconds for a program that loads a library in each worker


def needs(*modules: str, install: str = "make test-programs") -> pytest.MarkDecorator:
    """Skips where one of them is not installed, and says by what it would be."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)} here: {install}")


def line(script: str, mark: str) -> int:
    """The line of a script that wears the mark `# @mark`."""
    lines = (SCRIPTS / script).read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if f"# @{mark}" in text)


def at(script: str, mark: str, rest: str = "") -> str:
    """A breakpoint there, as the command line takes it."""
    return f"{SCRIPTS / script}:{line(script, mark)} {rest}".strip()


def next_stop(job: Job) -> dict[str, Any]:
    """The only one that there is, once there is one."""
    [stop] = job.stops(seconds=DEADLINE)
    return stop


def go_on(job: Job, stop: dict[str, Any]) -> None:
    """Continues it, and waits until it is no longer listed: what stops next is another one."""
    job.cluster.devkit("continue", stop["id"])
    eventually(lambda: stop["id"] not in [each["id"] for each in job.cluster.ps(job.id)["stops"]], "the end of a stop")


def value(cluster: Cluster, stop: dict[str, Any], expression: str) -> str:
    """What an expression is in a stop."""
    [result] = cluster.json("eval", expression, "--target", stop["id"])["results"]
    assert result["error"] is None, result
    return str(result["value"])


def crashes_of(job: Job) -> list[dict[str, Any]]:
    """The causes, without what followed from them."""
    found: list[dict[str, Any]] = job.cluster.json("crashes")["crashes"]
    return [crash for crash in found if crash["job_id"] == job.id and not crash["root"]]


def first_error(job: Job) -> str:
    """The page of `devkit logs --first-error`, of a job that has ended."""
    page = job.cluster.devkit("logs", "--first-error", job.id, check=1)
    assert "such an error usually follows" not in page, page
    return page
