"""Crashes on a real Ray: every way to fail leaves a snapshot that outlives its worker and its job."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.debug.conftest import PROGRAMS, Cluster, Job, eventually, mark
from tests.debug.memory import limited, needs_kernel_log
from tests.pace import stretched

pytestmark = pytest.mark.verdicts

KINDS = (
    "chained", "nested", "retried", "init", "method", "actor_stream", "thread", "async_method", "async_stream",
    "task_stream", "unpicklable", "exits", "segfault", "killed", "driver",
)  # fmt: skip
FAILED = len(KINDS) + 4  # snapshots: two more of the outer levels of `nested`, two of the further tries of `retried`
LARGEST = 64 * 1024  # bytes

Document = dict[str, Any]
Launch = Callable[..., Job]


def crashes_of(cluster: Cluster, job: str) -> list[Document]:
    return [crash for crash in cluster.json("crashes")["crashes"] if crash["job_id"] == job]


@dataclass(frozen=True)
class Failed:
    """A job that has ended, and what is known of its crashes: asked for when it and its workers were gone."""

    cluster: Cluster
    out: str
    exit_code: int
    crashes: list[Document]

    def at(self, name: str) -> list[Document]:
        """The crashes that are said to be at a mark of the program, the oldest first."""
        line = mark("crash_kinds.py", name)
        return [
            crash for crash in self.crashes if (Path(crash["file"]).name, crash["line"]) == ("crash_kinds.py", line)
        ]

    def one(self, name: str) -> Document:
        [crash] = self.at(name)
        return crash

    def show(self, crash: Document) -> Document:
        document: Document = self.cluster.json("crashes", "show", crash["id"])
        return document


@pytest.fixture(scope="module")
def failed(cluster: Cluster) -> Iterator[Failed]:
    job = Job(cluster, "--", sys.executable, str(PROGRAMS / "crash_kinds.py"), *KINDS)
    try:
        exit_code = job.end(stretched(100))
        # What only Ray knows of, a signal, is found out a moment after the worker has gone.
        seen: list[Document] = []

        def all_there() -> bool:
            seen[:] = crashes_of(cluster, job.id)
            return len(seen) >= FAILED

        eventually(all_there, f"{FAILED} crashes in {job.out}")
        yield Failed(cluster, job.out, exit_code, seen)
    finally:
        job.kill()


def test_the_program_fails_as_it_would_without_us(failed: Failed) -> None:
    assert failed.exit_code == 1
    said = dict(line.split(": ", 1) for line in failed.out.splitlines() if line.split(": ")[0] in KINDS)
    assert said == {
        "chained": "RayTaskError(ValueError)",
        "nested": "RayTaskError(RuntimeError)",
        "retried": "RayTaskError(OSError)",
        "init": "ActorDiedError",
        "method": "RayTaskError(ZeroDivisionError)",
        "actor_stream": "RayTaskError(LookupError)",
        "thread": "the thread is over",
        "async_method": "RayTaskError(TimeoutError)",
        "async_stream": "RayTaskError(EOFError)",
        "task_stream": "RayTaskError(StopAsyncIteration)",
        "unpicklable": "RayTaskError",
        "exits": "WorkerCrashedError",
        "segfault": "ActorDiedError",
        "killed": "ActorDiedError",
    }
    assert "ArithmeticError: the driver fails in epoch 12" in failed.out


@pytest.mark.parametrize(
    ("name", "kind", "role", "function", "exception"),
    [
        ("chained", "task", "chained", "chained", "ValueError"),
        ("method", "actor", "Machine", "Machine.drive", "ZeroDivisionError"),
        ("init", "actor", "Machine", "Machine.__init__", "ValueError"),
        ("async_method", "actor", "Loop", "Loop.method", "TimeoutError"),
        ("task_stream", "task", "stream", "stream", "StopAsyncIteration"),
        ("actor_stream", "actor", "Machine", "Machine.stream", "LookupError"),
        ("async_stream", "actor", "Loop", "Loop.stream", "EOFError"),
        ("unpicklable", "task", "unpicklable", "unpicklable", "Unpicklable"),
        ("thread", "thread", "Machine", "Machine.background", "BufferError"),
        ("exits", "exit", "exits", "exits", "SystemExit"),
        ("segfault", "exit", "Faulty", "read_null", "SIGSEGV"),
        ("driver", "driver", "driver", "main", "ArithmeticError"),
    ],
)
def test_each_way_to_fail_is_listed_once_with_its_place(
    failed: Failed, name: str, kind: str, role: str, function: str, exception: str
) -> None:
    crash = failed.one(name)
    told = (crash["kind"], crash["role"], crash["function"], crash["exception"]["type"])
    assert told == (kind, role, function, exception)
    assert crash["root"] is None


def test_a_worker_that_was_killed_leaves_what_ray_says(failed: Failed) -> None:
    [crash] = [crash for crash in failed.crashes if crash["exception"]["type"] == "ProcessDied"]
    assert (crash["role"], crash["kind"], crash["file"]) == ("Faulty", "exit", "")
    assert "SIGKILL" in crash["exception"]["message"] and "Some common causes" not in crash["exception"]["message"]


def test_a_rank_is_named(failed: Failed) -> None:
    assert failed.one("method")["rank"] == 5


def test_nothing_is_listed_that_did_not_fail(failed: Failed) -> None:
    assert len(failed.crashes) == FAILED


def test_nested_tasks_have_one_cause_and_linked_levels(failed: Failed) -> None:
    cause = failed.one("nested")
    levels = [crash for crash in failed.crashes if crash["role"] == "nested" and crash["id"] != cause["id"]]
    assert cause["root"] is None and cause["exception"] == {"type": "RuntimeError", "message": "the depth is 0"}
    assert [level["root"] for level in levels] == [cause["id"], cause["id"]]
    assert failed.show(cause)["frames"][0]["locals"]["depth"] == 0
    outer = failed.show(levels[0])
    assert outer["root"] == cause["id"] and outer["light"] and not any(frame["locals"] for frame in outer["frames"])


def test_retries_are_linked_to_the_first_try(failed: Failed) -> None:
    first, *others = failed.at("retried")
    assert first["root"] is None and [other["root"] for other in others] == [first["id"], first["id"]]
    assert failed.show(others[-1])["attempt"] == 2


def test_show_has_the_chain_with_source_and_variables(failed: Failed) -> None:
    document = failed.show(failed.one("chained"))
    frame = document["frames"][document["at"]]
    array = frame["locals"]["batch"]["array"]
    assert (array["shape"], array["dtype"], array["nan"]) == ([2, 3], "float64", 1)
    source = frame["source"]
    assert "# @chained" in source["lines"][frame["line"] - source["first"]]
    raised, cause = document["chain"]
    assert (raised["type"], cause["type"], cause["relation"]) == ("ValueError", "KeyError", "cause")
    inner = cause["frames"][0]
    assert (inner["function"], inner["line"]) == ("look_up", mark("crash_kinds.py", "missing"))
    assert inner["locals"]["table"] == {"here": 1} and inner["locals"]["key"] == "missing"
    assert document["versions"].keys() >= {"python", "ray"} and document["threads"]


def test_the_page_reads_from_the_first_cause_on(failed: Failed) -> None:
    page = failed.cluster.devkit("crashes", "show", failed.one("chained")["id"])
    assert (
        page.index("KeyError: 'missing'")
        < page.index("which led to")
        < page.index("ValueError: bad batch of rank 7", 60)
    )
    assert "batch = " in page and "nan=1" in page and "-> " in page


def test_secrets_are_not_in_it(failed: Failed) -> None:
    document = failed.show(failed.one("chained"))
    values = document["frames"][document["at"]]["locals"]
    assert values["api_key"] == "<redacted>" and values["settings"] == {"lr": 0.5, "password": "<redacted>"}
    text = json.dumps([document, failed.show(failed.one("driver"))])
    for secret in ("hunter1-1099", failed.cluster.environ["RAY_AUTH_TOKEN"]):
        assert secret not in text


def test_every_snapshot_is_small(failed: Failed) -> None:
    folders = [logs / "devkit" / "crashes" for logs in failed.cluster.logs]  # of a rank's node, and of the hub's
    files = [folder / f"{each['id']}.json" for each in failed.crashes for folder in folders]
    sizes = {file.stem: file.stat().st_size for file in files if file.exists()}
    assert len(sizes) == FAILED and max(sizes.values()) < LARGEST


def test_a_signal_has_frames_from_the_log(failed: Failed) -> None:
    document = failed.show(failed.one("segfault"))
    assert [frame["function"] for frame in document["frames"][:2]] == ["string_at", "read_null"]


def test_pausing_stops_once_at_the_cause_and_goes_on(launch: Launch, cluster: Cluster) -> None:
    kinds = ("nested", "retried", "async_method")
    job = launch("--post-mortem", "pause", "--", sys.executable, str(PROGRAMS / "crash_kinds.py"), *kinds)
    stops = {stop["line"]: stop for stop in job.stops(3)}
    assert set(stops) == {mark("crash_kinds.py", name) for name in kinds}
    depth = stops[mark("crash_kinds.py", "nested")]
    assert depth["reason"] == "exception" and depth["exception"] == {
        "type": "RuntimeError",
        "message": "the depth is 0",
    }
    [result] = cluster.json("eval", "depth + 1, level", "--target", depth["id"])["results"]
    assert result["value"] == "(1, 0)"
    job.resume()  # once: the outer levels and the further tries must not stop
    assert job.end() == 0, job.out
    for name in kinds:
        assert f"{name}: RayTaskError" in job.out
    gone = [end for end in cluster.json("ps")["gone"] if end["job_id"] == job.id]
    assert len(gone) == len(kinds)


NESTED = """
import ray

@ray.remote(max_retries=1, retry_exceptions=True)
def pick(x):
    return [1, 2, 3][x]

@ray.remote
def outer(x):
    return ray.get(pick.remote(x))

ray.get(outer.remote(7))
"""


@pytest.mark.timeout(90)
def test_a_debug_cluster_pauses_any_program_and_its_output_says_so_once(cluster: Cluster, tmp_path: Path) -> None:
    """Nothing of devkit is in its driver."""
    path = tmp_path / "nested.py"
    path.write_text(NESTED)
    environ = {**cluster.environ, "RAY_ADDRESS": cluster.gcs_address}
    command = [sys.executable, str(path)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program:
        try:
            assert program.stdout is not None
            said = next(line for line in program.stdout if "is stopped at" in line)
            assert "devkit: pick is stopped at nested.py:6 (IndexError: list index out of range): devkit attach" in said
            [stop] = [each["id"] for each in cluster.ps()["stops"] if each["file"] == str(path)]
            cluster.devkit("continue", stop)
            assert "is stopped at" not in program.stdout.read()
        finally:
            program.kill()
    assert program.returncode == 1


def test_post_mortem_can_be_off(launch: Launch, cluster: Cluster) -> None:
    job = launch(
        "--post-mortem", "off", "--", sys.executable, str(PROGRAMS / "crash_kinds.py"), "chained", "method", "driver"
    )
    assert job.end() == 1
    assert "method: RayTaskError(ZeroDivisionError)" in job.out
    assert crashes_of(cluster, job.id) == []


def test_a_worker_that_the_kernel_killed_for_memory_says_so(launch: Launch, cluster: Cluster) -> None:
    needs_kernel_log()
    with limited(600) as group:
        job = launch("--", sys.executable, str(PROGRAMS / "crash_memory.py"), str(group))
        assert job.end() == 0 and "ActorDiedError" in job.out, job.out
        [crash] = eventually(lambda: crashes_of(cluster, job.id), "a crash")
    assert (crash["role"], crash["exception"]["type"]) == ("Hungry", "OutOfMemory")
    assert "killed by the kernel at " in crash["exception"]["message"]


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="Ray Train needs ray[train]")
def test_a_train_worker_function_leaves_one_cause(launch: Launch, cluster: Cluster, tmp_path: Path) -> None:
    job = launch("--", sys.executable, str(PROGRAMS / "crash_train.py"), str(tmp_path))
    assert job.end(stretched(100)) == 1, job.out
    crashes = crashes_of(cluster, job.id)
    line = mark("crash_train.py", "train")
    [cause] = [crash for crash in crashes if crash["line"] == line]
    assert (cause["kind"], cause["rank"], cause["function"], cause["root"]) == ("train", 1, "train_step", None)
    # The controller's and the driver's errors follow from it; rank 0 may have failed too, for its peer was gone.
    others = [crash for crash in crashes if crash is not cause and crash["rank"] != 0]
    assert others and {crash["root"] for crash in others} == {cause["id"]}
    document = cluster.json("crashes", "show", cause["id"])
    weights = document["frames"][document["at"]]["locals"]["weights"]["tensor"]
    assert weights["nan"] == 1 and weights["shape"] == [3]
