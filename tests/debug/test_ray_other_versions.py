"""On a real Ray: driver and workers with other versions of a package, and a crash wherever an object of it arrives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from devkit.debug.crash_page import clues_of
from tests.debug.conftest import PROGRAMS, Cluster, Job, eventually, mark
from tests.debug.test_other_versions import install
from tests.pace import stretched

pytestmark = pytest.mark.ray

PROGRAM = "other_versions.py"
MADE_OF = "the argument of take that could not be unpickled contains an object of"
BACK_OF = "what could not be unpickled contains an object of"
OTHERS = ("another copy", "this process has run other tasks before")  # the latter depends on the process that Ray takes
KINDS = {  # in turn: the exception, and what is told of the versions where it came
    "arrives": ("RaySystemError", [f"{MADE_OF} dkside.Fresh", "this process has dkside 1.26.4, the driver 2.1.0"]),
    "stored": ("RaySystemError", [f"{MADE_OF} dkside.Fresh", "this process has dkside 1.26.4, the driver 2.1.0"]),
    "used": ("AttributeError", ["this process has dkside 1.26.4, the driver 2.1.0"]),
    "equal": ("AttributeError", []),
    "absent": ("RaySystemError", [f"{MADE_OF} dkonly.Only", "the driver has dkonly 0.11, this process has none"]),
    "function": ("RuntimeError", ["this process has dkside 1.26.4, the driver 2.1.0"]),
    "back": ("RaySystemError", [f"{BACK_OF} dkside.Stale", "this process has dkside 2.1.0, Holder 1.26.4"]),
}
NEW = "class Both:\n    def fresh(self): ...\n\nclass Fresh: ...\n\ndef fresh(): ...\n"
OLD = "class Both: ...\n\nclass Stale: ...\n"

Document = dict[str, Any]


Found = tuple[Cluster, str, list[Document]]  # the cluster, the job, and the crashes that no other one caused, in turn


@pytest.fixture(scope="module")
def crashes(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    drivers, workers = (tmp_path_factory.mktemp(name) for name in ("drivers", "workers"))
    install(drivers, "dkside", "2.1.0", NEW)
    install(workers, "dkside", "1.26.4", OLD)
    install(drivers, "dkonly", "0.11", "class Only: ...\n")
    for folder in (drivers, workers):
        install(folder, "dkeven", "3.0", "class Both: ...\n")
    kinds = [kind for kind in KINDS if kind != "back"]
    job = Job(cluster, "--", sys.executable, str(PROGRAMS / PROGRAM), str(drivers), str(workers), *kinds)
    try:
        assert job.end(stretched(100)) == 1, job.out

        def all_there() -> list[Document]:
            found = [
                each for each in cluster.json("crashes")["crashes"] if each["job_id"] == job.id and not each["root"]
            ]
            return found if len(found) >= len(KINDS) else []

        found = eventually(all_there, lambda: f"{len(KINDS)} crashes in {job.out}")
        yield cluster, job.id, sorted(found, key=lambda each: float(each["time"]))
    finally:
        job.kill()


def test_both_versions_are_told_where_an_object_arrives(crashes: Found) -> None:
    cluster, _, listed = crashes
    found = [cluster.json("crashes", "show", each["id"]) for each in listed]
    versions = [[line for line in clues_of(each) if not line.startswith(OTHERS)] for each in found]
    told = list(zip([each["exception"]["type"] for each in found], versions, strict=True))
    assert dict(zip(KINDS, told, strict=True)) == KINDS
    assert (listed[2]["line"], listed[-1]["line"]) == (mark(PROGRAM, "use"), mark(PROGRAM, "back"))
    page = cluster.devkit("crashes", "show", listed[0]["id"])
    assert KINDS["arrives"][1][-1] in page.splitlines()


def test_the_first_error_has_it(crashes: Found) -> None:
    cluster, job_id, _ = crashes
    clue = KINDS["arrives"][1][-1]
    assert clue in cluster.json("logs", job_id, "--first-error", check=None)["cause"]["clues"]
    assert f"  {clue}\n" in cluster.devkit("logs", job_id, "--first-error", check=None)
