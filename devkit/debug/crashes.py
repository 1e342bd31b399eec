"""`devkit crashes`: the exceptions that left the program's code, and one of them in full."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from devkit import console
from devkit.debug import belated, kept
from devkit.debug.address import ANSWER_SECONDS, resolve
from devkit.debug.crash_page import crash_page
from devkit.debug.crash_table import crash_table, first_like
from devkit.debug.inworker.hub_place import CRASH_FOLDER, LOG_FOLDER
from devkit.debug.inworker.lineage import link
from devkit.debug.inworker.records import CrashRecord
from devkit.debug.inworker.words import plain
from devkit.debug.protocols import Answers, Document
from devkit.debug.targets import find_id
from devkit.errors import DevkitError, UsageError


def main(
    show: str | None = None, *, everything: bool = False, job: str | None = None, address: str | None = None,
    json: bool = False,
) -> int:  # fmt: skip
    """List the crashes, or `show` the one whose id is, or begins with, this; empty: the cause of the newest one.

    Without a cluster: those of ended runs.
    """
    from devkit.debug.client import connect

    if ended := kept.named(job):
        return _run_kept(ended, show, everything=everything, json=json, in_it=True)
    with ExitStack() as stack:
        try:
            cluster = resolve(address)
            hub = stack.enter_context(connect(cluster))
        except DevkitError as error:
            ended = kept.instead(error, address, job, show)
            return _run_kept(ended, show, everything=everything, json=json, in_it=job is not None)
        if show is None:
            code = run_list(hub, job=job, json=json)
            kept.tell_of_another(cluster.gcs_address)
            return code
        try:
            return run_show(hub, show, everything=everything, job=job, json=json)
        except UsageError:
            if not show or job is not None or not _runs_with(show):
                raise
    return _show_kept(show, everything=everything, json=json)


def _run_kept(ended: kept.EndedRun, show: str | None, *, everything: bool, json: bool, in_it: bool = False) -> int:
    """`show` finds a crash of whichever run by its id, or only one that is `in_it`."""
    if show is None:
        code = run_list(kept.KeptHub([ended]), json=json, over=True)
        if not (json or ended.crashes):
            _tell_others(ended)
        return code
    if not (show or ended.crashes):
        there = _in_short(ended)
        notes = f"the run left {there}: devkit crashes lists them" if there else ""
        if json or ended.code:
            raise UsageError("there is no crash to show", hint=notes or "its own output may say more")
        well = f"nothing crashed: {notes or 'the run ended with exit code 0, and no warning of it is kept'}"
        console.result().print(well, soft_wrap=True, markup=False, highlight=False)
        return 0
    if not show or in_it:
        return run_show(kept.KeptHub([ended]), show, everything=everything, json=json)
    return _show_kept(show, everything=everything, json=json)


def _tell_others(ended: kept.EndedRun) -> None:
    """What its program was warned of, and what it caught itself: of a run that went well, that is all there is."""
    from devkit.logs import beside
    from devkit.logs.collect import of_ended

    for line in beside.lines(of_ended(ended)):
        console.result().print(line, soft_wrap=True, markup=False, highlight=False)


def _in_short(ended: kept.EndedRun) -> str:
    from devkit.logs import beside
    from devkit.logs.collect import of_ended

    return beside.in_short(of_ended(ended))


def _show_kept(show: str, *, everything: bool, json: bool) -> int:
    """What caused it is looked for in its own run: each Ray of a run's own counts its jobs and tasks from 1 again."""
    runs = _runs_with(show) or kept.ended_runs()
    return run_show(kept.KeptHub(runs), show, everything=everything, json=json)


def _runs_with(show: str) -> tuple[kept.EndedRun, ...]:
    return tuple(run for run in kept.ended_runs() if kept.has(run, show))


def run_list(hub: Answers, *, job: str | None = None, json: bool = False, over: bool = False) -> int:
    crashes = [crash for crash in judged(hub) if job in (None, crash.job_id)]
    if json:
        console.emit({"crashes": [crash.to_json() for crash in crashes]})
        return 0
    result = console.result()
    width = result.width if result.is_terminal else None
    result.print(crash_table(crashes, time.time(), width=width, over=over), soft_wrap=True)
    return 0


def run_show(hub: Answers, wanted: str, *, everything: bool = False, job: str | None = None, json: bool = False) -> int:
    crashes = [crash for crash in judged(hub) if job in (None, crash.job_id)]
    known = find_id(wanted, [crash.id for crash in crashes], "crash") if wanted else _newest(crashes)
    [record] = [crash for crash in crashes if crash.id == known]
    snapshot = hub.call("crash", id=known)
    result = console.result()
    width = result.width if result.is_terminal else None
    with reading(known):
        document = complete(snapshot, record)
        page = None if json else crash_page(document, crashes, time.time(), width=width, everything=everything)
    if page is None:
        console.emit(document)
    else:
        result.print(page, soft_wrap=True)
    return 0


def judged(hub: Answers) -> list[CrashRecord]:
    """Every crash, the oldest first; what only follows from another one has that as its root."""
    from devkit.logs.judge import with_causes

    return with_causes(all_crashes(hub), lambda name: hub.call("crash", id=name))


def _newest(crashes: Sequence[CrashRecord]) -> str:
    """What caused the newest crash, or that itself; or what its driver had failed by before, if it is of that kind."""
    if not crashes:
        raise UsageError(
            "there is no crash to show",
            hint="its own output may say more; devkit logs --first-error has its warnings, if it gave any",
        )
    known = {crash.id: crash for crash in crashes}
    root = known.get(crashes[-1].root or "", crashes[-1])
    root = belated.of_a_kind(crashes).get(root.id, root)
    return first_like(root, [each for each in crashes if each.root not in known], belated.late(crashes)).id


@contextmanager
def reading(crash_id: str) -> Iterator[None]:
    """Raises DevkitError for a document that is not as a snapshot is."""
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise DevkitError(
            f"the snapshot {crash_id} is damaged: {error!r}",
            hint=f"it is {LOG_FOLDER}/{CRASH_FOLDER}/{crash_id}.json among the head's logs",
        ) from error


def all_crashes(hub: Answers, settle: float = 0.0) -> list[CrashRecord]:
    """Every crash, the oldest first; attempts and outer levels know their root.

    Of a worker that has just gone the hub is still finding out: it is given `settle` seconds for that, and as long
    as ever for its answer.
    """
    timeout = settle + ANSWER_SECONDS if settle else None
    answer = hub.call("crashes", timeout=timeout, settle=settle)
    records = [_plain(CrashRecord.from_json(each)) for each in answer["crashes"]]
    return link(sorted(records, key=lambda record: record.time))


def _plain(record: CrashRecord) -> CrashRecord:
    """An older devkit kept the colours of an exception's text."""
    said = record.exception
    return replace(record, exception={"type": said["type"], "message": plain(said["message"])})


def complete(document: Document, record: CrashRecord) -> Document:
    """The snapshot with the promised fields in it, and the root that the list has found."""
    frames: Sequence[Document] = document.get("frames") or []
    chain = [{**each, "message": plain(str(each["message"]))} for each in document.get("chain") or ()]
    return {**document, **record.to_json(), "frames": list(frames), "chain": chain}
