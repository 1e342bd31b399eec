"""Phases side by side: on a real Ray, whose ranks wait for one another's marks, so that no other order ever ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.pace import stretched
from tests.trainer.asked_main import BOTH, FOUND, LEFT, RIGHT, marks
from tests.trainer.runs import ROOT
from trainer.asked import Asked, Talk, together

Cases = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def ray_folder() -> Iterator[Path]:
    """Short, for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="as", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, ray_folder: Path) -> Cases:
    """What came of each case of `asked_main.py`."""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": str(ray_folder), "PYTHONPATH": str(ROOT)}
    for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        environment.pop(name, None)
    folder = tmp_path_factory.mktemp("marks")
    words = [sys.executable, str(Path(__file__).with_name("asked_main.py")), str(folder)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=stretched(150), check=False)
    assert done.returncode == 0, done.stderr
    found: Cases = json.loads((folder / FOUND).read_text())
    return found


pytestmark = [pytest.mark.trainer, pytest.mark.timeout(240)]


def test_teams_work_side_by_side(cases: Cases) -> None:
    """Each of the two phases ends only after the other has begun."""
    found = cases["beside"]
    assert set(found["results"]) == {"first", "second"} and found["most_open"] == 2 and found["open"] == []
    first, second = found["results"]["first"], found["results"]["second"]
    assert [answer is None for answer in first] == [False, False, True, True]
    assert [answer is None for answer in second] == [True, True, False, False]


def test_phases_of_the_same_ranks_keep_their_order(cases: Cases) -> None:
    """None begins before all ranks have ended the one before it; another team's goes on beside both."""
    assert cases["queues"]["most_open"] == 2
    found = cases["queues"]["results"]
    for rank in LEFT:
        assert {*marks("a", LEFT, "ended"), *marks("ccc", RIGHT)} <= set(found["b"][rank])
    assert not set(marks("bb", LEFT)) & {mark for rank in LEFT for mark in found["a"][rank]}


def test_phases_of_all_ranks_run_in_turn(cases: Cases) -> None:
    found = cases["in turn"]
    assert found["most_open"] == 1 and list(found["results"]) == ["x", "y"]
    assert all(set(marks("x", BOTH, "ended")) <= set(answer) for answer in found["results"]["y"])


def test_each_phase_has_its_own_memory(cases: Cases) -> None:
    """The most of its ranks, which report the length of its name less their number."""
    assert cases["beside"]["memory"] == {"first": len("one"), "second": len("three") - 2}
    assert cases["queues"]["memory"] == {"a": len("a"), "b": len("bb"), "c": len("ccc") - 2}


def test_who_is_late_is_noted_while_others_work(cases: Cases) -> None:
    noted = [note for note in cases["note"]["notes"] if note.startswith("right is taking long")]
    assert len(noted) == 1 and "rank 2, rank 3" in noted[0] and set(cases["note"]["results"]) == {"l", "r"}


def test_a_failure_does_not_wait_for_the_other_team(cases: Cases) -> None:
    error = cases["failure"]["error"]
    assert error.startswith("WorkerFailed: rank ") and error.endswith(" failed during broken: ValueError: oh")
    assert error.split()[2] in "23"


def test_a_death_beside_another_team_is_named(cases: Cases) -> None:
    found = cases["death"]
    assert found["error"] == f"WorkerDied: rank 3 (pid {found['pid']} on 10.0.0.1) died during deadly"
    assert not set(marks("left5", LEFT, "ended")) & set(found["marks"])


def test_clocks_are_left_when_a_phase_fails(cases: Cases) -> None:
    assert [cases[name]["open"] for name in ("failure", "deadline", "death")] == [[], [], []]


def test_a_deadline_names_the_phase_and_who_is_missing(cases: Cases) -> None:
    assert cases["deadline"]["error"] == "DeadlineError: late: no answer within 2 s from rank 2, rank 3"


class InTurn:
    """`Calls` of which only one can be under way."""

    world_size = 2

    def __init__(self) -> None:
        self.called: list[str] = []

    def all(self, phase: str, args: Any) -> list[Any]:
        self.called.append(phase)
        return [f"{phase} {arg[0]}" if arg is not None else None for arg in args]


def test_ranks_of_one_process_work_in_turn() -> None:
    calls = InTurn()

    def talk(rank: int) -> Talk[str]:
        assert len(calls.called) == rank, "not split before it begins"
        answers = yield f"p{rank}", [("x",) if rank == each else None for each in range(2)]
        return str(answers[rank])

    asked = {name: Asked(calls, (name,), lambda name=name: talk(name)) for name in range(2)}
    named = {str(name): each for name, each in asked.items()}
    assert together(calls, named, lambda name: nullcontext()) == {"0": "p0 x", "1": "p1 x"}
    assert together(calls, {}, lambda name: nullcontext()) == {}
