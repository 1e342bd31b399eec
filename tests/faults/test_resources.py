"""Resources that are not there.

A run asks Ray for what it does not have, what somebody else holds, or the machine for more memory than it may.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.faults import cluster
from tests.faults.cluster import PROGRAMS, Cluster, Job
from tests.faults.gallery import Clinic, fault
from tests.hosts.launching import PYTHON, devkit, document, eventually
from tests.pace import stretched

pytestmark = [pytest.mark.timeout(600), pytest.mark.ray]
MEMORY = Path("/sys/fs/cgroup/memory")
LIMIT = 1 << 30  # bytes


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with cluster.up() as made:
        yield made


@contextmanager
def asking(three: Cluster, bundles: str) -> Iterator[None]:
    """A program that waits for a placement group."""
    command = (PYTHON, "-m", "devkit", "run", "--", PYTHON, str(PROGRAMS / "asks.py"), bundles)
    program = three.head.popen(*command, env=three.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with program:
        assert program.stdout is not None
        try:
            eventually(lambda: program.stdout.readline() == "waits\n", "program")  # type: ignore[union-attr]
            eventually(lambda: document(three.head, "ps", env=three.environ, code=None).get("workers"), "driver")
            yield
        finally:
            for pid, words in three.head.processes().items():
                if "asks.py" in words:
                    three.head.run("kill", "-KILL", str(pid), check=False)
            program.kill()


@fault("A placement group that can never be granted", "The run waits, and Ray's log says `pending` now and then.")
def test_never(three: Cluster, clinic: Clinic) -> None:
    with asking(three, '[{"CPU": 1}, {"GPU": 8}]'):
        clinic.symptom()
        found = clinic.hang(three.head, three.environ)
    assert found["kind"] == "resource", found
    assert (
        "can never be scheduled on these nodes: it requests (1 CPU) and (8 GPU), and no node has any GPU"
        in found["sentence"]
    )


@fault("A zombie of an earlier run holds the resources", "The run waits; `ray status` shows all GPUs in use.")
def test_zombie(three: Cluster, clinic: Clinic) -> None:
    devkit(three.head, "run", "--", PYTHON, str(PROGRAMS / "stays.py"), env=three.environ)
    with asking(three, '[{"CPU": 2}] * 3'):
        clinic.symptom()
        found = clinic.hang(three.head, three.environ)
    three.head.run(PYTHON, str(PROGRAMS / "stays.py"), "end", env={**three.environ, "RAY_ADDRESS": cluster.HEAD})
    assert found["kind"] == "resource", found
    assert "the actor Keeper of job " in found["sentence"], found
    assert "which has ended, still holds 2 CPU" in found["sentence"], found


@pytest.mark.skipif(not MEMORY.is_dir(), reason="this machine has no cgroup of the first version")
@fault("A worker is killed by the kernel for memory", "`ActorDiedError`, or the others' `Connection closed by peer`.")
def test_memory(three: Cluster, clinic: Clinic) -> None:
    job = Job(three)
    limits = MEMORY / f"dk-{three.share.name}"
    limits.mkdir()
    try:
        (limits / "memory.limit_in_bytes").write_text(str(LIMIT))
        (limits / "cgroup.procs").write_text(str(pid_of_rank_1(three)))
        job.do("eats")
        job.process.wait(stretched(120))
        clinic.symptom()
        said = clinic.first_error(three.head, three.environ)
    finally:
        job.end()
        eventually(lambda: not (limits / "cgroup.procs").read_text(), "end of the rank")
        limits.rmdir()
    assert "killed by the kernel at " in said and "its container or cgroup ran out of memory" in said, said
    assert "rank 1" in said, said


def pid_of_rank_1(three: Cluster) -> int:
    """As this machine counts."""
    [inside] = [pid for pid, words in three.lan[1].processes().items() if words.startswith("ray::Trainer")]
    theirs = Path(f"/proc/{three.lan[1].pid}/ns/pid").readlink()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, StopIteration):
            status = (folder / "status").read_text().splitlines()
            numbers = next(line.split() for line in status if line.startswith("NSpid:"))
            if numbers[-1] == str(inside) and (folder / "ns/pid").readlink() == theirs:
                return int(folder.name)
    raise AssertionError(f"no process {inside} of h1")
