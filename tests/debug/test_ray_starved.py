"""A hub that gets hardly any time, and a GCS that does not answer for a while: slow, not dead, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from devkit.debug.dashboard import Dashboard
from devkit.debug.tokens import Token
from devkit.logs.collect import EXPECTED
from tests.debug.conftest import PROGRAMS, Cluster, Job, eventually, mark, short_folder, start

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
LOOP = PROGRAMS / "loop.py"
SHARE = 20  # of a second the hub has one part: as among forty busy processes on two cores
BUSY, CORES = 40, 2
LONG = ("300", 400.0)  # seconds that a user gives the cluster there, and that the test gives the command
PATIENCE = ("--timeout", "120")
SILENCE = 8.0  # seconds without the GCS; each request to it gives up after five


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A cluster of this module alone: what is starved here would starve the other tests, too."""
    with short_folder() as folder:
        cluster = start(folder)
        try:
            yield cluster
        finally:
            cluster.devkit("debug-cluster", "stop")


@pytest.fixture(scope="module")
def looping(own: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two ranks that step on and on."""
    end = tmp_path_factory.mktemp("starved") / "end"
    job = Job(own, "--", sys.executable, str(LOOP), str(end), "2").joined()
    eventually(lambda: len(ranks_of(own)) == 2, "two ranks")
    try:
        yield job
    finally:
        job.kill()


def ranks_of(cluster: Cluster) -> list[Any]:
    return [each for each in cluster.json("ps", check=None).get("workers", ()) if each["role"] == "Worker"]


def hub_of(cluster: Cluster) -> psutil.Process:
    return psutil.Process(json.loads(cluster.find_log("devkit/hub.json").read_text())["pid"])


@contextmanager
def starved(process: psutil.Process) -> Iterator[None]:
    """It runs for one part of SHARE, and stands still for the others."""
    over = threading.Event()

    def starve() -> None:
        while not over.wait(1 / SHARE):
            process.suspend()
            over.wait(1 - 1 / SHARE)
            process.resume()

    thread = threading.Thread(target=starve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        process.resume()


@contextmanager
def among_busy_processes(cluster: Cluster) -> Iterator[None]:
    """The whole cluster, and forty others that never rest, on two cores."""
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    spin = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {cores})\nwhile True: pass"]
    kept = {each: each.cpu_affinity() for each in processes_of(cluster)}
    others = [subprocess.Popen(spin) for _ in range(BUSY)]
    try:
        for each in kept:
            with suppress(psutil.NoSuchProcess):
                each.cpu_affinity(cores)
        yield
    finally:
        for other in others:
            other.kill()
        for other in others:
            other.wait()
        for each in processes_of(cluster):  # those that were started meanwhile have it from their parents
            with suppress(psutil.NoSuchProcess):
                each.cpu_affinity(next(iter(kept.values())))


def processes_of(cluster: Cluster) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get("RAY_TMPDIR") == cluster.environ["RAY_TMPDIR"]:
                found.append(each)
    return found


def patiently(cluster: Cluster, *words: str, option: str = "--timeout") -> Any:
    """What a verb says whose user gives the cluster all the time that it may need."""
    seconds, deadline = LONG
    return json.loads(cluster.devkit(*words, option, seconds, "--json", timeout=deadline))


def eval_everywhere(cluster: Cluster, *options: str) -> list[Any]:
    return [each["value"] for each in cluster.json("eval", "k >= 0", *options)["results"]]


def test_a_hub_without_time_answers(own: Cluster, looping: Job) -> None:
    hub = hub_of(own)
    place = f"{LOOP}:{mark(LOOP, 'loop')}"
    with starved(hub):
        [state] = own.json("break", place, "--answer-timeout", "120")["breakpoints"]
        assert state["armed"] >= 2, state
        stops = eventually(lambda: len(found := own.ps(looping.id)["stops"]) == 2 and found, "two stops")
        assert eval_everywhere(own, "--timeout", "60", "--answer-timeout", "120") == ["True", "True"]
        assert len(own.json("stacks", *PATIENCE)["groups"]) >= 1
        own.devkit("break", "--clear", "all", "--answer-timeout", "120")
        assert len(own.json("continue", "--all", *PATIENCE)["continued"]) == len(stops)
        # It is asleep for nearly all of its time: a few looks may all find it so, and then the verdict is that.
        eventually(lambda: not own.json("hang", *PATIENCE, check=None)["hang"], "a look at which it moved")
    assert hub_of(own) == hub, "it is the same process"
    assert [each for each in own.json("crashes")["crashes"] if each["job_id"] == looping.id] == []


def test_a_gcs_that_does_not_answer_for_a_while_ends_no_hub(own: Cluster, looping: Job) -> None:
    hub = hub_of(own)
    [gcs] = [each for each in psutil.process_iter(["name"]) if is_gcs_of(own, each)]
    place = f"{LOOP}:{mark(LOOP, 'step')}"
    answers: list[Any] = []
    gcs.suspend()
    try:
        asking = threading.Thread(
            target=lambda: answers.append(own.json("break", place + " if k < 0", "--answer-timeout", "120"))
        )
        asking.start()
        threading.Event().wait(SILENCE)  # what is tested is that so long a silence is outlived
    finally:
        gcs.resume()
    asking.join()
    [state] = answers[0]["breakpoints"]
    assert state["armed"] >= 2, state
    assert hub_of(own) == hub
    kept = own.json("break", "--list")["breakpoints"]
    assert state["id"] in [each["id"] for each in kept]


def test_a_hub_that_died_comes_back_with_its_breakpoints_and_is_nobodys_crash(own: Cluster, looping: Job) -> None:
    own.json("break", f"{LOOP}:{mark(LOOP, 'step')} if k < -1", "--answer-timeout", "120")
    before = known(own.json("break", "--list")["breakpoints"])
    dead = hub_of(own)
    os.kill(dead.pid, signal.SIGKILL)
    assert known(own.json("break", "--list", "--answer-timeout", "120")["breakpoints"]) == before != []
    assert hub_of(own) != dead
    assert own.json("crashes")["crashes"] == []
    eventually(lambda: is_known_to_have_died(own, dead.pid), "a row of the process that was killed")
    assert own.devkit("logs", looping.id, "--first-error").startswith("no error was found in job")
    assert not own.json("hang", *PATIENCE, check=None)["hang"]
    assert own.json("crashes")["crashes"] == []


def is_known_to_have_died(cluster: Cluster, pid: int) -> bool:
    """Whether Ray's table of workers has it, as one that nobody meant to end: an error, were it the program's."""
    token = cluster.environ["RAY_AUTH_TOKEN"]
    with Dashboard(cluster.dashboard_url, Token(token, "the test")) as dashboard:
        rows = [row for row in dashboard.workers() if row.pid == pid and not row.is_alive]
    return any(row.exit_type not in EXPECTED for row in rows)


@pytest.mark.timeout(1800)
def test_a_hub_among_forty_busy_processes_is_slow_and_comes_back_with_its_breakpoints(
    own: Cluster, looping: Job
) -> None:
    own.devkit("break", "--clear", "all", "--answer-timeout", "120")
    with among_busy_processes(own):
        hub = hub_of(own)
        place = f"{LOOP}:{mark(LOOP, 'step')} if k < -3"
        [state] = patiently(own, "break", place, option="--answer-timeout")["breakpoints"]
        assert state["armed"] >= 2, state
        ranks = [each for each in patiently(own, "ps")["workers"] if each["role"] == "Worker"]
        assert [each["connected"] for each in ranks] == [True, True]
        assert len(patiently(own, "stacks")["groups"]) >= 1
        assert hub_of(own) == hub, "it is the same process"
        # when it is killed, another one takes its place
        before = known(patiently(own, "break", "--list", option="--answer-timeout")["breakpoints"])
        os.kill(hub.pid, signal.SIGKILL)
        assert known(patiently(own, "break", "--list", option="--answer-timeout")["breakpoints"]) == before != []
        assert hub_of(own) != hub
        assert patiently(own, "crashes")["crashes"] == []
        again = eventually(
            lambda: armed(patiently(own, "break", "--list", option="--answer-timeout")), "it is armed", 600
        )
        assert again >= 2
    # then it does what it is for
    own.devkit("break", "--clear", "all", "--answer-timeout", "120")
    own.json("break", f"{LOOP}:{mark(LOOP, 'step')}", "--answer-timeout", "120")
    stops = eventually(lambda: len(found := own.ps(looping.id)["stops"]) == 2 and found, "two stops")
    own.devkit("break", "--clear", "all", "--answer-timeout", "120")
    assert len(own.json("continue", "--all", *PATIENCE)["continued"]) == len(stops)


def armed(listed: Any) -> int:
    """In how many processes the one breakpoint is; 0 while not in both ranks."""
    [state] = listed["breakpoints"]
    return int(state["armed"]) if state["armed"] >= 2 else 0


def known(breakpoints: list[dict[str, Any]]) -> list[Any]:
    """What is set, without where it is armed by now: workers come and go."""
    return [(each["id"], each["spec"]) for each in breakpoints]


def is_gcs_of(cluster: Cluster, process: psutil.Process) -> bool:
    try:
        return process.info["name"] == "gcs_server" and any(
            cluster.environ["RAY_TMPDIR"] in word for word in process.cmdline()
        )
    except psutil.Error:
        return False
