"""What runs of `devkit run` have left, kept when their Ray is gone: who asks afterwards has no cluster to ask.

    $DEVKIT_HOME/ended/<run>/run.json      which run it was, and how it ended
                             crashes/      its snapshots, as they lay among Ray's logs
                             caught.json   what it caught itself
                             logs/         the ends of its workers' logs; of a run that went well, their warnings

A run's name is the time of its end. Only this user can read it, and the oldest go when there are more than `KEPT_RUNS`.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from devkit.debug import state
from devkit.debug.inworker import crash_files, hub_place, private
from devkit.debug.inworker.records import CrashRecord
from devkit.debug.naming import ago
from devkit.debug.runs import Run
from devkit.errors import INTERRUPTED, DevkitError, NoJobError, UsageError
from devkit.reading import json_of, record_of

FOLDER, RUN_FILE, LOGS, CAUGHT = "ended", "run.json", "logs", "caught.json"
KEPT_RUNS = 20
NEAR_SECONDS = 3600.0  # a run that ended so long ago may still be meant
LOG_BYTES = 256 * 1024  # of one log, its end
MOST_LOGS = 200
OWN_RUN, OWN_LOGS = 3, 4  # of the folders above a file: devkit's home, `ended`, the run's, and one in that

_WARNING = re.compile(rb"[^\s:][^\n:]{0,500}\.py:\d{1,7}: \w{0,80}Warning: ")
_NAMES = (b":actor_name:", b":task_name:")

Document = dict[str, Any]


@dataclass(frozen=True)
class EndedRun:
    """One `devkit run` that has ended."""

    name: str
    job_id: str
    command: tuple[str, ...]
    code: int  # its exit code; negative: the signal that ended it
    began: float  # seconds since the epoch
    ended: float
    gcs_address: str

    @property
    def folder(self) -> Path:
        return state.home() / FOLDER / self.name

    @property
    def crashes(self) -> list[CrashRecord]:
        """The oldest first, linked to their roots; none for a `sys.exit` that a driver which ended well has caught."""
        found = crash_files.list_folder(self.folder / hub_place.CRASH_FOLDER)
        return [each for each in found if not self._has_outlived(each)]

    def _has_outlived(self, crash: CrashRecord) -> bool:
        """A script may hide how its Python ended, so only where that was the command."""
        is_alone = os.path.basename(self.command[0] if self.command else "").startswith("python")
        said = crash.exception["message"]  # of `os._exit`, which nobody catches, it has the name
        is_exit = crash.kind == "driver" and crash.exception["type"] == "SystemExit" and not said.startswith("os.")
        return is_alone and self.code == 0 and is_exit

    @property
    def caught(self) -> Document:
        """{"counted": whether that is all, "workers": who caught what}; {} where nothing is known."""
        with suppress(OSError, ValueError):
            found = json_of(private.read(self.folder / CAUGHT, OWN_RUN))
            return found if isinstance(found, dict) else {}
        return {}

    def texts(self) -> Iterator[tuple[str, str]]:
        """Of its workers' logs: names and texts."""
        folder = self.folder / LOGS
        with suppress(OSError):
            for name in sorted(private.names(folder, OWN_LOGS)):
                with suppress(OSError):
                    yield name, private.read(folder / name, OWN_LOGS).decode("utf-8", "replace")


# ---- keeping


def _name(now: float) -> str:
    """In the order of time to the microsecond, since two runs can end at almost the same time."""
    return (
        f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{int(now * 1e6) % 1_000_000:06}{secrets.token_hex(1)}"
    )


def keep(run: Run, command: Sequence[str], code: int, alone: Path | None = None) -> EndedRun | None:
    """What Ray's folder on this machine has of the run, and the folder of crashes `alone`, without a Ray.

    None where it can't be kept, which is no failure of the run.
    """
    now = time.time()
    name = _name(now)
    ended = EndedRun(name, run.job_id, tuple(command), code, run.since, now, run.gcs_address)
    try:
        state.private_folder(FOLDER, name)
        state.write(ended.folder / RUN_FILE, asdict(ended))
        if alone is not None:
            _copy_crashes(alone, ended)
        if run.logs:
            _copy(Path(run.logs), ended)
        _forget_oldest()
    except (OSError, DevkitError):
        return None
    return ended


def _copy(logs: Path, ended: EndedRun) -> None:
    crashes = _copy_crashes(logs / hub_place.LOG_FOLDER / hub_place.CRASH_FOLDER, ended)
    with suppress(OSError):  # there is none of a hub that was killed
        told = private.read(logs / hub_place.LOG_FOLDER / hub_place.CAUGHT_FILE.format(ended.job_id), 1)
        private.write(ended.folder / CAUGHT, told, OWN_RUN)
    whole = bool(ended.code or crashes)
    with suppress(OSError):  # most drivers have left none
        notes = logs / hub_place.LOG_FOLDER / f"{hub_place.DRIVER_NOTES}{ended.job_id}.err"
        private.write(ended.folder / LOGS / notes.name, private.read(notes), OWN_LOGS)
    for path in sorted(logs.glob(f"worker-*-{ended.job_id}-*{'' if whole else '.err'}"))[:MOST_LOGS]:
        with suppress(OSError):  # removed meanwhile, or another user's
            if tail := _tail(path) if whole else _warnings(_tail(path)):
                private.write(ended.folder / LOGS / path.name, tail, OWN_LOGS)


def _warnings(log: bytes) -> bytes:
    """Of a run that went well, only what Python warned of, and who did.

    >>> _warnings(b":actor_name:A\\nnews\\n/a.py:3: UserWarning: no\\n  x = f(y)\\n"), _warnings(b":actor_name:A\\n")
    (b':actor_name:A\\n/a.py:3: UserWarning: no\\n', b'')
    """
    lines = log.splitlines(keepends=True)
    if not any(map(_WARNING.match, lines)):
        return b""
    return b"".join(each for each in lines if _WARNING.match(each) or each.startswith(_NAMES))


def _copy_crashes(theirs: Path, ended: EndedRun) -> list[CrashRecord]:
    crashes = [each for each in crash_files.list_folder(theirs) if each.job_id == ended.job_id]
    for each in crashes:
        with suppress(OSError, ValueError):
            crash_files.store(crash_files.load(theirs / f"{each.id}.json"), ended.folder / hub_place.CRASH_FOLDER)
    return crashes


def _tail(path: Path) -> bytes:
    """The last lines of a log of this user's."""
    with private.reading(path, 0) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - LOG_BYTES))
        data = file.read(LOG_BYTES)
    return data if size <= LOG_BYTES else data.partition(b"\n")[2]


def _forget_oldest() -> None:
    top = state.home() / FOLDER
    for name in sorted(private.names(top, state.OWN), reverse=True)[KEPT_RUNS:]:
        with suppress(OSError):
            _remove(top / name, OWN_RUN)


def _remove(folder: Path, own: int) -> None:
    """A folder of ours with what is in it. A link is removed, and not followed."""
    with private.opened(folder, own) as at:
        names = os.listdir(at)
        folders = [name for name in names if not os.path.islink(folder / name) and (folder / name).is_dir()]
        for name in set(names) - set(folders):
            os.unlink(name, dir_fd=at)
    for name in folders:
        _remove(folder / name, own + 1)
    with private.opened(folder.parent, own - 1) as above:
        os.rmdir(folder.name, dir_fd=above)


# ---- asking

NO_CLUSTER = "no Ray cluster found"
_TOKEN = " token"  # of what a Ray says that refuses ours


def ended_runs() -> tuple[EndedRun, ...]:
    """The newest first."""
    top, found = state.home() / FOLDER, []
    with suppress(OSError):
        for name in sorted(private.names(top, state.OWN), reverse=True):
            with suppress(OSError, ValueError):
                found.append(record_of(EndedRun, json_of(private.read(top / name / RUN_FILE, OWN_RUN))))
    return tuple(found)


def named(job: str | None) -> EndedRun | None:
    """The run of this name."""
    return next((run for run in ended_runs() if run.name == job), None) if job else None


def instead(error: DevkitError, address: str | None, job: str | None, crash: str | None = None) -> EndedRun:
    """The run that is meant where there is no cluster to ask, which is said. Raises that error where there is none.

    It is the newest, but for a `crash` whose id is, or begins with, this.
    """
    found = without_cluster(error, address)
    fitting = [run for run in found if job in (None, run.name, run.job_id)]
    if not fitting:
        known = ", ".join(run.name for run in found[:5])
        raise NoJobError(f"no run {job} is kept, and {error.message}", hint=f"--job takes one of these: {known}")
    meant = next((run for run in fitting if crash and has(run, crash)), fitting[0])
    _tell(error.message, meant, () if job or crash else [run.name for run in found[1:] if run.crashes])
    return meant


def has(run: EndedRun, crash: str) -> bool:
    """Whether the run left the crash whose id is, or begins with, this."""
    return any(each.id.startswith(crash) for each in run.crashes)


def _tell(why: str, run: EndedRun, earlier: Sequence[str]) -> None:
    """Which run an answer is of, and whose crashes an answer that has none may have been asked for."""
    from devkit import console

    left = bool(run.crashes)
    nothing = "" if left or not run.code else ", and left no crash"
    hint = ": its own output says why" if nothing and 0 < run.code < INTERRUPTED else ""  # no signal ended it
    is_anothers = _TOKEN in why and not (run.gcs_address and run.gcs_address in why)
    told = f"this is {said(run)}{nothing}"
    other = f"; the Ray that runs here is another one ({why})"
    lines = [
        f"{told}{hint}{other}" if is_anothers else f"{told}{hint}" if why == NO_CLUSTER else f"{why}; {told}{hint}"
    ]
    if earlier:
        runs = f"{len(earlier)} earlier runs" if len(earlier) > 1 else "an earlier run"
        newest = "; the newest" if len(earlier) > 1 else ""
        lines.append(f"{runs} left crashes{', too' if left else ''}{newest}: --job {earlier[0]}")
    for line in lines:
        console.talk().print(f"devkit: {line}", soft_wrap=True, markup=False, highlight=False)


def without_cluster(error: DevkitError, address: str | None) -> tuple[EndedRun, ...]:
    """The runs that may be meant without a cluster, the newest first. Raises that error where there are none."""
    asked = address or os.environ.get("RAY_ADDRESS") or os.environ.get("RAY_API_SERVER_ADDRESS")
    found = () if asked else ended_runs()
    if not found:
        raise error
    return found


def tell_of_another(gcs_address: str | None) -> None:
    """That the last run was not of this cluster, where it ended a while ago and has left crashes: it may be meant."""
    from devkit import console

    last = next(iter(ended_runs()), None)
    if last and last.gcs_address != gcs_address and time.time() - last.ended < NEAR_SECONDS and last.crashes:
        line = f"devkit: not of this cluster: {said(last)}; devkit crashes --job {last.name} lists its crashes"
        console.talk().print(line, soft_wrap=True, markup=False, highlight=False)


def said(run: EndedRun) -> str:
    """
    >>> said(EndedRun("r", "01", ("python", "a.py"), 0, 0, time.time() - 5, ""))
    'the run r of `python a.py`, which ended with exit code 0, 5 s ago'
    """
    return f"the run {run.name} of {_command(run)}, which {_end(run)}"


def _command(run: EndedRun) -> str:
    import shlex

    from devkit.debug.inworker.redaction import scrub

    return f"`{scrub(shlex.join(run.command))}`"


def _end(run: EndedRun) -> str:
    from devkit.signals import how_ended

    return f"{how_ended(run.code)}, {ago(time.time() - run.ended)} ago"


def over() -> str:
    """A hint for whoever looks for a program that has ended: the last run, and what it left. Empty: there was none."""
    last = next(iter(ended_runs()), None)
    if last is None:
        return ""
    ended = f"the last run, {_command(last)}, {_end(last)}"
    if last.crashes:
        return f"{ended}: see devkit crashes and devkit logs --first-error"
    if last.code:
        return f"{ended}, without a crash: see devkit logs --first-error"
    return f"{ended}: look while it runs, or start a cluster that stays with devkit debug-cluster"


class KeptHub:
    """Answers of crashes as a hub does, from what was kept of some runs."""

    def __init__(self, runs: Sequence[EndedRun]) -> None:
        self._runs = runs

    def call(self, op: str, *, timeout: float | None = None, **arguments: Any) -> Document:
        """`crashes` and `crash`."""
        if op == "crashes":
            found = {each.id: each.to_json() for run in self._runs for each in run.crashes}
            return {"crashes": list(found.values())}
        for run in self._runs if op == "crash" else ():
            with suppress(OSError, ValueError):
                return crash_files.load(run.folder / hub_place.CRASH_FOLDER / f"{Path(arguments['id']).name}.json")
        raise UsageError(f"the run has ended: there is no {op}", hint="devkit crashes lists what it left")
