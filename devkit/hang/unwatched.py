"""Jobs that devkit is not in: only Ray's tables tell of them, and only of what was asked for and never comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from devkit.debug.dashboard import Dashboard
from devkit.hang import resources
from devkit.hang.facts import Sample
from devkit.hang.gather import SAMPLE_SECONDS, Diagnosis
from devkit.hang.tables import holders, tables

NOT_IN_IT = "devkit is not in this job; started by devkit run, it would show where the processes wait"


def look(
    dashboard: Dashboard, job: str | None = None, wait: Callable[[float], object] = time.sleep
) -> Diagnosis | None:
    """The first running job that waits for what it cannot have, or does not get; None: nothing is known against any."""
    running = [row.job_id for row in dashboard.jobs() if row.job_id and not row.has_ended and job in (None, row.job_id)]
    first = {each: _sample(dashboard, each) for each in running}
    waiting = [each for each in running if first[each].pending]
    if waiting:
        wait(SAMPLE_SECONDS)
    for each in waiting:
        now = _sample(dashboard, each)
        verdict = resources.verdict(first[each], now, (), decided=False)
        if verdict is not None and verdict.hang:
            told = replace(verdict, sentence=f"job {each}: {verdict.sentence}", evidence=(*verdict.evidence, NOT_IN_IT))
            return Diagnosis(told, first[each], now, {"ranks": []})
    return None


def _sample(dashboard: Dashboard, job: str) -> Sample:
    pending, nodes = tables(dashboard, job)
    held = holders(dashboard) if pending else ()
    return Sample(time.time(), (), pending=pending, nodes=nodes, holders=held)
