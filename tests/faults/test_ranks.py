"""Ranks that wait for each other.

One rank of three, each on a host of its own, does something wrong; the others stand in a collective.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import cluster
from tests.faults.cluster import Cluster, Job
from tests.faults.gallery import Clinic, Document, fault
from tests.pace import stretched

pytestmark = [pytest.mark.timeout(600), pytest.mark.ray]
PROGRAM = "train.py"


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with cluster.up() as made:
        yield made


@pytest.fixture
def job(three: Cluster) -> Iterator[Job]:
    made = Job(three)
    yield made
    made.end()


def culprit(found: Document, kind: str, rank: int = 1, mark: str = "") -> Document:
    """Asserts who is to blame, and at which line."""
    who: Document = found["culprit"]
    assert (found["kind"], who["rank"], who["node_ip"]) == (kind, rank, f"10.77.0.{rank + 1}"), found
    if mark:
        assert who["file"].endswith(PROGRAM) and who["line"] == cluster.line(PROGRAM, mark), found
    return who


def hang(job: Job, clinic: Clinic) -> Document:
    return clinic.hang(job.cluster.head, job.cluster.environ)


@fault("A rank sleeps while the others are in a collective", "The run stands still. Nothing is logged.")
def test_sleeps(job: Job, clinic: Clinic) -> None:
    job.do("sleeps")
    clinic.symptom()
    found = hang(job, clinic)
    culprit(found, "missing", mark="sleeps")
    assert "ranks 0,2 wait for it in all_reduce #" in found["sentence"]


@fault("Two ranks are in different collectives", "The run stands still. Nothing is logged.")
def test_differs(job: Job, clinic: Clinic) -> None:
    job.do("differs")
    clinic.symptom()
    found = hang(job, clinic)
    culprit(found, "mismatch", mark="differs")
    assert "is in broadcast" in found["sentence"] and "are in all_reduce" in found["sentence"]


@fault("Ranks take two process groups in different orders", "The run stands still. Nothing is logged.")
def test_crosses(job: Job, clinic: Clinic) -> None:
    job.do("crosses")
    clinic.symptom()
    found = hang(job, clinic)
    culprit(found, "mismatch", mark="crosses")
    assert "different orders" in found["sentence"]


@fault("A rank raises while the others are in a collective", "The driver waits for all ranks: no error is shown.")
def test_raises(job: Job, clinic: Clinic) -> None:
    job.do("raises")
    clinic.symptom()
    found = hang(job, clinic)
    culprit(found, "raised", mark="raises")
    assert "raised ValueError: advantages are not finite" in found["sentence"]


@fault("A frozen process (SIGSTOP)", "The run stands still. `ps` shows state T, on one of the machines.")
def test_freezes(job: Job, clinic: Clinic) -> None:
    job.do("freezes")
    clinic.symptom()
    found = hang(job, clinic)
    culprit(found, "frozen")
    assert "kill -CONT" in found["sentence"]


@fault("A call into C holds Python", "The run stands still; py-spy and debuggers get no answer from that rank.")
def test_holds(job: Job, clinic: Clinic) -> None:
    job.do("holds")
    clinic.symptom()
    found = hang(job, clinic)
    culprit(found, "silent", mark="holds")


@fault("A read that never ends", "The run stands still: a data loader, a network file system, a pipe.")
def test_reads(job: Job, clinic: Clinic) -> None:
    job.do("reads")
    clinic.symptom()
    found = hang(job, clinic)
    culprit(found, "io", mark="reads")


@fault("Two threads of a rank wait for each other's lock", "The run stands still. Nothing is logged.")
def test_locks(job: Job, clinic: Clinic) -> None:
    job.do("locks")
    clinic.symptom()
    found = hang(job, clinic)
    assert found["kind"] == "deadlock" and found["culprit"]["rank"] == 1, found
    lines = {f"{PROGRAM}:{cluster.line(PROGRAM, mark)}" for mark in ("save_waits", "main_waits")}
    assert all(each in found["sentence"] for each in lines), found["sentence"]


@fault("A worker is killed (SIGKILL)", "The others' `Connection closed by peer`, which is what came of it.")
def test_dies(job: Job, clinic: Clinic) -> None:
    job.do("dies")
    job.process.wait(stretched(60))
    clinic.symptom()
    said = clinic.first_error(job.cluster.head, job.cluster.environ)
    assert "without a message: by SIGKILL" in said and "rank 1" in said, said
