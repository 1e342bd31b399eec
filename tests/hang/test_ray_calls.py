"""Actors of a real Ray that wait for each other's calls, and such whose calls can still be taken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.debug.conftest import PROGRAMS, Cluster, Job, eventually, mark

PROGRAM = "hang_calls.py"
Document = dict[str, Any]
pytestmark = pytest.mark.xdist_group("hang")

CIRCLES = [
    ("actors", "ask", r"Node.ask for Node.answer, queued at Node pid", 2),
    ("itself", "outer", r"Me.outer for Me.inner, queued at itself", 1),
    ("task", "go", r"Tasker.go for through, which runs in task through pid", 2),
    ("async", "gather", r"Async.ask for Async.answer, queued at Async pid", 2),
]


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> Iterator[Callable[[str], Job]]:
    """Each program, all at once."""
    kinds = [*(kind for kind, *_ in CIRCLES), "groups", "wide", "behind"]
    started = {kind: Job(cluster, "--", sys.executable, str(PROGRAMS / PROGRAM), kind) for kind in kinds}
    try:
        yield started.__getitem__
    finally:
        for job in started.values():
            job.kill()


def hang(cluster: Cluster, job: Job) -> Document:
    found: Document = cluster.json("hang", "--job", job.joined().id, "--after", "3", check=None)
    return found


@pytest.mark.parametrize(("kind", "at", "said", "waits"), CIRCLES)
def test_a_circle_of_calls_is_told(
    cluster: Cluster, jobs: Callable[[str], Job], kind: str, at: str, said: str, waits: int
) -> None:
    found = eventually(
        lambda: (found := hang(cluster, jobs(kind))) and found["kind"] == "deadlock" and found, f"a deadlock of {kind}"
    )
    assert said in found["sentence"] and found["sentence"].count(" waits at ") == waits, found["sentence"]
    who = found["culprit"]
    lines = {mark(PROGRAM, at), mark(PROGRAM, "through")}
    assert Path(who["file"]).name == PROGRAM and who["line"] in lines and found["hang"]
    assert any("Ray lists " in line for line in found["evidence"])


@pytest.mark.parametrize(("kind", "line"), [("groups", "grouped"), ("wide", "wide")])
def test_a_call_that_can_be_taken_is_no_circle(
    cluster: Cluster, jobs: Callable[[str], Job], kind: str, line: str
) -> None:
    found = eventually(
        lambda: (
            (found := hang(cluster, jobs(kind)))
            and any(each["line"] == mark(PROGRAM, line) for each in found["ranks"])
            and found
        ),
        f"waits of {kind}",
    )
    assert found["kind"] != "deadlock", found["sentence"]


def test_a_call_behind_one_without_its_arguments_is_named(cluster: Cluster, jobs: Callable[[str], Job]) -> None:
    def about() -> list[str]:
        return [line for line in hang(cluster, jobs("behind"))["evidence"] if "waits for its arguments" in line]

    [line] = eventually(about, "an actor that waits for an argument")
    assert "Late.step, which was called there, waits for its arguments, with Late.push queued behind it" in line


def test_the_watchdog_tells_it(cluster: Cluster) -> None:
    job = Job(cluster, "--hang-timeout", "4", "--", sys.executable, str(PROGRAMS / PROGRAM), "actors")
    try:
        eventually(lambda: "deadlock: Node pid" in job.out, f"an alarm in {job.out}")
        assert "no progress for 4 s: deadlock" in job.out
    finally:
        job.kill()
