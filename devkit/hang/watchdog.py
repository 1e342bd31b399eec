"""The watchdog of `--hang-timeout`: says once why nothing goes on. It looks, and never touches the program.

The rule. A job makes progress when, from one look to the next, a collective or a step of any rank is done, or a process
that waits for no other comes to another line or works: one of its threads wants a core for a tenth of the time, or it
and its children compute as much, or it reads or writes half a MiB a second. A loop that asks Ray for results, and whose
condition looks at nothing that changes, makes none. So a long step and a long compile are no hang, and neither is a
rank that is merely slow. An alarm needs a verdict of `diagnose` that is a hang, and either no progress at all for the
time-out, or ranks that have waited in one collective for as long, for a rank that does none of this. A stop of the
debugger is no hang.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from devkit.debug import state
from devkit.debug.address import ClusterAddress
from devkit.debug.client import connect
from devkit.debug.inworker import private
from devkit.errors import DevkitError
from devkit.hang import asking, view
from devkit.hang.case import case_of
from devkit.hang.diagnose import diagnose
from devkit.hang.facts import Sample
from devkit.hang.gather import Diagnosis, Sampler
from devkit.hang.records import Verdict

LOOKS = 5  # in the time of the time-out
SHORTEST, LONGEST = 1.0, 30.0  # seconds between two of them
RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class Watch:
    """What the watchdog keeps from look to look."""

    last: Sample
    since: float  # time of the last look at which something had moved
    alarmed: bool = False


def look(before: Watch | None, now: Sample, timeout: float) -> tuple[Watch, Verdict | None]:
    """The next state, and the verdict if it is to be told now. Pure."""
    if before is None:
        return Watch(now, now.time), None
    moved = progressed(before.last, now)
    verdict = diagnose(before.last, now, timeout)
    since = now.time if moved else before.since
    lasted = max(now.time - since, verdict.waited or 0.0)
    is_alarm = verdict.hang and verdict.kind != "slow" and lasted >= timeout
    return Watch(now, since, is_alarm), verdict if is_alarm and not before.alarmed else None


def progressed(first: Sample, now: Sample) -> bool:
    """Whether the job has gone on between two samples, by the rule above."""
    states = asking.settled(case_of(first, now, 0.0)).states
    return any(each.advanced or each.doing == "busy" or (each.moved and not each.waits_for_others) for each in states)


class Watchdog:
    """Looks at one job in a thread of its own, until `stop`."""

    def __init__(self, cluster: ClusterAddress, job: Callable[[], str], timeout: float) -> None:
        """`job` gives the job's id once it is known, and an empty text until then."""
        self._cluster, self._job, self._timeout = cluster, job, timeout
        self._ended = threading.Event()
        self._interval = min(LONGEST, max(SHORTEST, timeout / LOOKS))
        self._thread = threading.Thread(target=self._run, name="devkit-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(RETRY_SECONDS)

    def _run(self) -> None:
        """A hub that does not answer is asked again: the program may be starting, or ending."""
        while not self._ended.wait(SHORTEST):
            job = self._job()
            if not job:
                continue
            try:
                self._watch(job)
            except DevkitError:
                self._ended.wait(RETRY_SECONDS)

    def _watch(self, job: str) -> None:
        watch: Watch | None = None
        with _sampler(self._cluster, job) as sampler:
            while not self._ended.wait(self._interval):
                first = watch.last if watch else None
                now, raw = sampler()
                if not now.processes:  # all have ended, or none has joined yet
                    watch = None
                    continue
                watch, verdict = look(watch, now, self._timeout)
                if verdict is not None and first is not None:
                    tell(Diagnosis(verdict, first, now, raw), job, self._timeout)


@contextmanager
def watching(cluster: ClusterAddress, job: Callable[[], str], timeout: float) -> Iterator[None]:
    """Runs the body with a watchdog beside it; with none if `timeout` is 0."""
    if timeout <= 0:
        yield
        return
    watchdog = Watchdog(cluster, job, timeout)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()


@contextmanager
def _sampler(cluster: ClusterAddress, job: str) -> Iterator[Sampler]:
    with connect(cluster) as hub, cluster.tables_if_any() as tables:
        yield Sampler(hub, tables, job)


def tell(found: Diagnosis, job: str, timeout: float) -> None:
    """One line on stderr, and the whole of it in a file, which is named."""
    from devkit.console import talk

    path = keep(found, job)
    out = talk()
    sentence = found.verdict.sentence.removeprefix("no progress: ")
    out.print(f"devkit: no progress for {timeout:g} s: {sentence}", soft_wrap=True, markup=False)
    where = f"evidence: {path}" if path else "the evidence could not be saved: run devkit hang to see it"
    out.print(f"devkit: {where}; the program was not touched", soft_wrap=True, markup=False)
    sys.stderr.flush()


def keep(found: Diagnosis, job: str) -> Path | None:
    """Writes the page and the record below devkit's home; None if that can't be written to."""
    from devkit.hang.run import record

    try:
        folder = state.private_folder("hangs")
        name = f"{job}-{time.strftime('%Y%m%d-%H%M%S')}"
        page = view.page(found).plain
        private.write(folder / f"{name}.json", json.dumps(record(found, 0.0), indent=1))
        path = folder / f"{name}.txt"
        private.write(path, page + "\n")
        return path
    except (OSError, DevkitError):
        return None
