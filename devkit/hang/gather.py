"""Samples of a job: what the hub's agents answer, and what Ray's tables say beside them. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from devkit import patience
from devkit.debug.crash_table import said
from devkit.debug.crashes import all_crashes
from devkit.debug.object_stores import Stores
from devkit.debug.protocols import Hub
from devkit.debug.row_tables import RowTables
from devkit.debug.stack_groups import Frame
from devkit.debug.stacks import nobody
from devkit.errors import DevkitError, UnreachableError, UsageError
from devkit.hang import circling
from devkit.hang.answers import read_sample
from devkit.hang.case import NOTHING, PATIENCE
from devkit.hang.diagnose import diagnose
from devkit.hang.facts import CrashFacts, Sample
from devkit.hang.records import Verdict
from devkit.hang.tables import beside

SAMPLE_SECONDS = 2.0  # between two samples
AGAIN_SECONDS = 6.0  # for what was between two calls just then
SILENT_SECONDS = 60.0  # for which Ray's tables are left alone after they have not answered
ASK_SECONDS = 20.0  # for one sample; a process that does not answer is looked at by its neighbour meanwhile

SILENT = "Ray's tables do not answer: which calls run or are queued, and what waits for resources, is not known"

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Diagnosis:
    """A verdict and the two samples that it rests on; `raw` is the later one, as the hub gave it."""

    verdict: Verdict
    first: Sample
    last: Sample
    raw: Document


def watch_until_decided(
    take: Callable[[], tuple[Sample, Document]],
    patience: float = PATIENCE,
    wait: Callable[[float], object] = time.sleep,
) -> Diagnosis:
    """Two samples, and more while a wait is too young to be called a hang: `patience` seconds and no longer.

    What looks like work that never ends is looked at for longer, and again where it is between two calls just then.
    """
    first, _ = take()
    last, seen, circled, again = first, NOTHING, False, False
    while True:
        wait(SAMPLE_SECONDS)
        before, (last, raw) = last, take()
        if not again and _was_late(first, last):  # of what it did then nothing is known
            first, again = last, True
            continue
        seen = circling.seen(seen, before, last)
        verdict, seconds = diagnose(first, last, patience, seen), last.time - first.time
        circled = circled or verdict.kind == "livelock"
        limit = circling.TIMES * patience + AGAIN_SECONDS if circled or _may_never_end(verdict) else patience
        if (verdict.decided and not (circled and verdict.kind == "moves")) or seconds >= limit:
            return Diagnosis(_with_silence(verdict, last), first, last, raw)


def _was_late(first: Sample, now: Sample) -> bool:
    """Whether a process answers that did not at the first look, as one may that is asked for the first time."""
    late = {each.id for each in first.processes if not each.answers and not each.dead}
    return any(each.answers and each.id in late for each in now.processes)


def _with_silence(found: Verdict, last: Sample) -> Verdict:
    """Of a hang, that it is told without what Ray's tables have."""
    return replace(found, evidence=(*found.evidence, SILENT)) if last.untold and found.hang else found


def _may_never_end(verdict: Verdict) -> bool:
    return verdict.kind in ("silent", "moves") and not verdict.decided


class Sampler:
    """Takes samples of one job."""

    def __init__(self, hub: Hub, source: RowTables | None, job: str) -> None:
        self._hub = hub
        self._source = source
        self._silent_until = 0.0  # monotonic seconds: Ray's tables are not asked before
        self.job = job

    def __call__(self) -> tuple[Sample, Document]:
        answer = self._hub.call("hang", job_id=self.job, timeout=patience.of_hub(ASK_SECONDS))
        sample = read_sample(answer, tuple(self._crashes()), stores=self._stores())
        return self._with_tables(sample), answer

    def _with_tables(self, sample: Sample) -> Sample:
        """What Ray's tables tell beside it. Where their dashboard hangs, too, there is a verdict all the same."""
        if self._source is None:
            return sample
        if time.monotonic() >= self._silent_until:
            try:
                return beside(sample, self._source, self.job)
            except UnreachableError:
                self._silent_until = time.monotonic() + SILENT_SECONDS
        return replace(sample, untold=True)

    def _stores(self) -> Stores:
        with suppress(DevkitError):  # a hub of an older devkit does not tell
            return Stores.of(self._hub.call("stores", timeout=patience.of_hub(ASK_SECONDS)))
        return Stores()

    def _crashes(self) -> Iterator[CrashFacts]:
        for each in all_crashes(self._hub):
            if each.job_id == self.job:
                at = Frame(each.file, each.line, each.function) if each.file else None
                facts = (each.id, each.worker_id, each.role, each.rank, said(each), at, each.time, each.root, each.kind)
                yield CrashFacts(*facts, misfit=str(next(iter(each.misfits), "")))


def choose_job(hub: Hub, source: RowTables | None, wanted: str | None) -> str:
    """The job that is meant. Raises `UsageError` where that is not clear, `NoJobError` where there is none."""
    workers = hub.call("ps")["workers"]
    jobs = sorted({str(each["job_id"]) for each in workers if each["job_id"]})
    if wanted:
        if wanted not in jobs and source is not None:
            wanted = str(source.job(wanted).job_id) or wanted
        if wanted in jobs:
            return wanted
    if wanted or not jobs:
        raise nobody(wanted)
    if len(jobs) > 1 and source is not None:  # the hub forgets a job a little after its end
        ended = {row.job_id for row in source.jobs() if row.has_ended}
        jobs = [job for job in jobs if job not in ended] or jobs
    if len(jobs) > 1:
        raise UsageError(f"several jobs run under devkit: {', '.join(jobs)}", hint="choose one with --job JOB")
    return jobs[0]
