"""Crashes that came when the driver of their job had failed already: its end may be what has led to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from devkit.debug.inworker.identity import DRIVER
from devkit.debug.inworker.records import CrashRecord

AFTER = 0.2  # seconds: what failed at the same time may be kept a little later
WHEN = "after the driver had failed"
_UNTIMED = (DRIVER, "exit")  # kinds; when a process has ended is known by others, and later


def ends(crashes: Iterable[CrashRecord]) -> dict[str, CrashRecord]:
    """The last crash of each job's driver, by the job. One that calls `sys.exit` may have caught that itself."""
    drivers = (each for each in crashes if each.kind == DRIVER and each.exception.get("type") != "SystemExit")
    return {each.job_id: each for each in sorted(drivers, key=lambda each: each.time)}


def late(crashes: Sequence[CrashRecord]) -> dict[str, CrashRecord]:
    """By their ids, what the driver had failed by before them: its crash. On the clock of one machine."""
    of_jobs = ends(crashes)
    ended = ((each, of_jobs.get(each.job_id)) for each in crashes if each.kind not in _UNTIMED)
    return {each.id: end for each, end in ended if end is not None and is_after(each, end)}


def is_after(one: CrashRecord, end: CrashRecord) -> bool:
    return one.node_ip == end.node_ip != "" and one.time - end.time >= AFTER


def cause_of(end: CrashRecord, crashes: Iterable[CrashRecord]) -> CrashRecord:
    """What a driver's crash goes back to, or itself."""
    return next((each for each in crashes if each.id == end.root), end)


def of_a_kind(crashes: Sequence[CrashRecord]) -> dict[str, CrashRecord]:
    """Of the late ones, those of the type and the line of what the driver had failed by: that crash, by their ids."""
    causes = {name: cause_of(end, crashes) for name, end in late(crashes).items()}
    known = {each.id: each for each in crashes}
    return {name: cause for name, cause in causes.items() if cause.id != name and _kind(known[name]) == _kind(cause)}


def _kind(crash: CrashRecord) -> tuple[str, str, int]:
    return crash.exception.get("type", ""), crash.file, crash.line


__all__ = ["AFTER", "WHEN", "cause_of", "late", "of_a_kind"]
