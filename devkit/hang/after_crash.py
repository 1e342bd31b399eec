"""After a crash: tells at once, and unasked, that the others stand and wait for who failed.

Under devkit a group's own time limit no longer ends such a run, so the first terminal would say nothing for a day. A
program that handles the error, or ends by it, is none of our business: only a rank that failed while others wait for it
is told, and nothing is touched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from devkit import console
from devkit.debug.address import ClusterAddress
from devkit.debug.inworker.records import CrashRecord
from devkit.errors import DevkitError

if TYPE_CHECKING:
    from devkit.hang.gather import Diagnosis

ASK_SECONDS = 3.0  # between two questions for crashes
LOOKS = (8.0, 30.0, 120.0, 600.0)  # seconds after a crash: others may have work of their own before they wait
MOST = 3  # crashes that are told of a job
WAITED_FOR = ("raised", "dead")


def due(
    crashes: Sequence[CrashRecord], job: str, now: float, looked: Collection[tuple[str, float]]
) -> list[CrashRecord]:
    """The crashes of the job after which it is time to look again; a driver's ends the job itself. Pure."""
    ours = [each for each in crashes if each.job_id == job and each.kind != "driver" and each.root is None]
    return [each for each in ours if any((each.id, wait) not in looked for wait in _passed(each, now))]


def _passed(crash: CrashRecord, now: float) -> list[float]:
    return [wait for wait in LOOKS if now - crash.time >= wait]


def sentences(crash: CrashRecord, found: Diagnosis, now: float, *, lifted: bool) -> list[str]:
    """What the terminal is told, if others wait for the process that crashed."""
    blamed = found.verdict.culprit
    if found.verdict.kind not in WAITED_FOR or blamed is None:
        return []
    if (blamed.node_ip, blamed.pid) != (crash.node_ip, crash.pid):
        return []
    why = found.verdict.sentence.removeprefix("no progress: ")
    limits = "; devkit lifts the time limits that would end it (--keep-timeouts leaves them)" if lifted else ""
    return [
        f"devkit: others wait since a failure {now - crash.time:.0f} s ago: {why}",
        f"devkit: see devkit crashes show {crash.id}, and devkit hang{limits}",
    ]


@contextmanager
def watching_crashes(cluster: ClusterAddress, job: Callable[[], str], *, lifted: bool) -> Iterator[None]:
    """Runs the body with an eye on the job's crashes. `job` gives its id once it is known; `lifted`: its limits are."""
    ended = threading.Event()
    watcher = threading.Thread(target=_run, args=(cluster, job, lifted, ended), name="devkit-after-crash", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(ASK_SECONDS)


def _run(cluster: ClusterAddress, job: Callable[[], str], lifted: bool, ended: threading.Event) -> None:
    """A hub that does not answer is asked again: the program may be starting, or ending."""
    told, looked = set[str](), set[tuple[str, float]]()
    while not ended.wait(ASK_SECONDS) and len(told) < MOST:
        if not job():
            continue
        try:
            _follow(cluster, job(), lifted, ended, told, looked)
        except DevkitError:
            continue


def _follow(
    cluster: ClusterAddress,
    job: str,
    lifted: bool,
    ended: threading.Event,
    told: set[str],
    looked: set[tuple[str, float]],
) -> None:
    from devkit.debug.client import connect
    from devkit.debug.crashes import all_crashes

    with connect(cluster) as hub:
        while not ended.wait(ASK_SECONDS) and len(told) < MOST:
            now = time.time()
            for crash in due(all_crashes(hub), job, now, looked):
                looked |= {(crash.id, wait) for wait in _passed(crash, now)}
                if crash.id not in told and (found := _look(cluster, job, ended)) is not None:
                    lines = sentences(crash, found, time.time(), lifted=lifted)
                    told |= {crash.id} if lines else set()
                    for line in lines:
                        console.interject(line)


def _look(cluster: ClusterAddress, job: str, ended: threading.Event) -> Diagnosis | None:
    """None if the program has ended meanwhile: its processes go one by one, and that is no hang."""
    from devkit.debug.client import connect
    from devkit.hang.gather import Sampler, watch_until_decided

    with connect(cluster) as hub, cluster.tables_if_any() as tables:
        found = watch_until_decided(Sampler(hub, tables, job), wait=ended.wait)
    return None if ended.is_set() else found
