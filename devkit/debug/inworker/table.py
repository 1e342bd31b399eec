"""What the hub knows, as a pure table: events come in, a newer table comes out, nothing else happens.

    breakpoint   posted -> armed in some workers -> hit -> cleared
    stop         stopped -> attached -> ended ("continued", "timeout", "the process died", "the node was lost", ...)
    worker       joined -> left, or lost; its stops end with it

The workers' own reports are the truth: a hub that starts anew learns everything from them when they join again.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .identity import DRIVER, WORKER

if TYPE_CHECKING:
    from .documents import BreakpointState, GoneRecord, PsDocument

ENDED_KEPT = 200  # stops that have ended, for `ps` to say what became of them
ASKED = frozenset({-signal.SIGINT, 128 + signal.SIGINT, -signal.SIGTERM})  # exit codes of who was asked to end
LEFT_KEPT = 500  # workers that are gone, for `hang` to say who is missing

Document = dict[str, Any]


@dataclass(frozen=True)
class Worker:
    """One process with an agent in it, as it last reported itself."""

    identity: Document
    stops: tuple[Document, ...] = ()
    armed: Mapping[str, Document] = field(default_factory=dict)  # breakpoint -> {"places", "note", "hits"}
    connected: bool = True
    caught: tuple[Document, ...] = ()  # exceptions that the program has caught, where they are counted
    is_whole: bool = False  # whether it has told of `caught` at its end, or its job's; else more may have come since
    ended: frozenset[str] | None = None  # stops of which its last report said that they had ended; None: there was none


@dataclass(frozen=True)
class Ended:
    """A stop that is over, and why."""

    stop: Document
    reason: str
    time: float

    def to_json(self) -> GoneRecord:
        stop = self.stop
        return {
            "id": stop["id"],
            "job_id": stop["job_id"],
            "role": stop["role"],
            "rank": stop["rank"],
            "node_ip": stop["node_ip"],
            "pid": stop["pid"],
            "file": stop["file"],
            "line": stop["line"],
            "function": stop["function"],
            "reason": self.reason,
            "time": self.time,
        }


@dataclass(frozen=True)
class End:
    """How a command of `devkit run` has ended; it is the driver itself, or a script that has run it."""

    code: int  # below zero: the signal
    pid: int = 0  # 0: an older devkit's, which did not tell

    def as_asked(self, driver: int) -> bool:
        """Whether the driver with this pid has done its work, or was asked to end."""
        return self.code in ASKED or (self.code == 0 and self.pid == driver)


@dataclass(frozen=True)
class Table:
    workers: Mapping[str, Worker] = field(default_factory=dict)  # by worker id
    breakpoints: Mapping[str, Document] = field(default_factory=dict)  # by id, as they were posted
    hits: Mapping[str, int] = field(default_factory=dict)  # of workers that are gone, per breakpoint
    ended: tuple[Ended, ...] = ()
    crashes: tuple[Document, ...] = ()
    cleared: frozenset[str] = frozenset()  # breakpoints that workers may still bring along
    left: tuple[Document, ...] = ()  # workers that are gone: {"identity", "reason", "time"}, and what it had "caught"
    resumed: frozenset[str] = frozenset()  # stops that were continued, and whose end is not reported yet
    ends: Mapping[str, End] = field(default_factory=dict)  # by job: of its driver's command, as `devkit run` told it


def joined(table: Table, identity: Document) -> Table:
    """A worker came, or came back."""
    worker_id = identity["worker_id"]
    before = table.workers.get(worker_id, Worker(identity))
    return _with_worker(table, worker_id, replace(before, identity=identity, connected=True))


def reported(table: Table, worker_id: str, report: Document, now: float) -> Table:
    """A worker says who it is, where it is stopped, what it has armed, and which of its stops ended and why."""
    before = table.workers.get(worker_id)
    if before is None:
        return table
    whys = {end["id"]: end["why"] for end in report.get("ended", ())}
    still = {stop["id"] for stop in report["stops"]}
    standing = [stop for stop in before.stops if stop["id"] not in still]
    over = tuple(Ended(stop, whys.get(stop["id"], "continued"), now) for stop in (*standing, *_unseen(before, report)))
    caught = tuple(report.get("caught", ()))
    worker = Worker(report["identity"], tuple(report["stops"]), report["armed"], caught=caught, ended=frozenset(whys))
    newer = _with_worker(table, worker_id, replace(worker, is_whole=before.is_whole))
    open_still = table.resumed - {end.stop["id"] for end in over}
    return replace(newer, ended=(*table.ended, *over)[-ENDED_KEPT:], resumed=open_still)


def _unseen(before: Worker, report: Document) -> list[Document]:
    """Stops that began and ended between two reports: of a worker's first report it is not known which are new."""
    known = {stop["id"] for stop in before.stops}
    fresh = [end for end in report.get("ended", ()) if before.ended is not None and end["id"] not in before.ended]
    return [end["stop"] for end in fresh if end.get("stop") and end["id"] not in known]


def resumed(table: Table, stop_ids: Iterable[str]) -> Table:
    """These stops were continued: that is why they end, though their process be gone before it can say so."""
    standing = {stop["id"] for worker in table.workers.values() for stop in worker.stops}
    return replace(table, resumed=table.resumed | (standing & set(stop_ids)))


def disconnected(table: Table, worker_id: str) -> Table:
    """The connection broke: the worker may be dead, or may join again. Its stops stay until that is known."""
    worker = table.workers.get(worker_id)
    return table if worker is None else _with_worker(table, worker_id, replace(worker, connected=False))


def left(table: Table, worker_id: str, reason: str, now: float) -> Table:
    """A worker is gone for good, and its stops with it."""
    worker = table.workers.get(worker_id)
    if worker is None:
        return table
    hits = dict(table.hits)
    for name, state in worker.armed.items():
        hits[name] = hits.get(name, 0) + int(state.get("hits", 0))
    over = tuple(Ended(stop, "continued" if stop["id"] in table.resumed else reason, now) for stop in worker.stops)
    rest = {name: other for name, other in table.workers.items() if name != worker_id}
    mine = _caught(worker) if worker.caught else {}
    gone = (*table.left, {"identity": worker.identity, "reason": reason, "time": now, **mine})[-LEFT_KEPT:]
    return replace(table, workers=rest, hits=hits, ended=(*table.ended, *over)[-ENDED_KEPT:], left=gone)


def posted(table: Table, breakpoint: Document) -> Table:  # noqa: A002 - the field's own word
    return replace(table, breakpoints={**table.breakpoints, breakpoint["id"]: breakpoint})


def cleared(table: Table, breakpoint_id: str) -> Table:
    rest = {name: other for name, other in table.breakpoints.items() if name != breakpoint_id}
    return replace(table, breakpoints=rest, cleared=table.cleared | {breakpoint_id})


def ended(table: Table, job_id: str, end: End) -> Table:
    """A driver has ended. Ray does not know how, if it was not submitted."""
    return replace(table, ends={**table.ends, job_id: end})


def over(table: Table) -> frozenset[str]:
    """Jobs whose command has ended and of which no driver is there: what is left of them is no part of a run."""
    drivers = (each.identity for each in table.workers.values() if each.connected)
    led = {each["job_id"] for each in drivers if each["role"] == DRIVER}
    return frozenset(table.ends) - led


def crashed(table: Table, record: Document) -> Table:
    """The list has each crash once, however often its worker tells of it."""
    if any(known["id"] == record["id"] for known in table.crashes):
        return table
    return replace(table, crashes=(*table.crashes, record))


def corrected(table: Table, record: Document) -> Table:
    """One of the crashes that are known, of which more is known now."""
    return replace(table, crashes=tuple(record if each["id"] == record["id"] else each for each in table.crashes))


def stops(table: Table) -> list[Document]:
    """Every stop there is, the oldest first."""
    return sorted((stop for worker in table.workers.values() for stop in worker.stops), key=lambda stop: stop["since"])


def find_stop(table: Table, stop_id: str) -> str | None:
    """The worker of a stop."""
    for worker_id, worker in table.workers.items():
        if any(stop["id"] == stop_id for stop in worker.stops):
            return worker_id
    return None


def breakpoint_states(table: Table) -> list[BreakpointState]:
    """For each breakpoint how many of the workers that it is meant for have armed it, and if not, why."""
    return [_breakpoint_state(table, posted_as) for posted_as in table.breakpoints.values()]


def _breakpoint_state(table: Table, posted_as: Document) -> BreakpointState:
    name = posted_as["id"]
    job = posted_as.get("job_id") or None
    busy = [worker for worker in table.workers.values() if worker.identity["job_id"]]  # others wait for a first job
    there = [worker for worker in busy if job in (None, worker.identity["job_id"])]
    meant = [worker for worker in there if _may_be_meant(posted_as, worker.identity)]
    states = [worker.armed[name] for worker in meant if name in worker.armed]
    notes = [state["note"] for state in states if state.get("note")]
    return {
        "id": name,
        "spec": posted_as["spec"],
        "armed": sum(1 for state in states if state["places"] > 0),
        "workers": len(meant),
        "hits": table.hits.get(name, 0) + sum(int(state.get("hits", 0)) for state in states),
        "note": _note(notes, meant, there),
        "error": next((state["error"] for state in states if state.get("error")), ""),
        "job_id": str(posted_as.get("job_id") or ""),
        "missing": [
            {"role": str(worker.identity["role"]), "rank": worker.identity["rank"]}
            for worker in meant
            if not worker.armed.get(name, {}).get("places")
        ],
    }


def _may_be_meant(posted_as: Document, identity: Document) -> bool:
    """Whether the target fits a process, or may once it knows its role and its rank."""
    from .specs import matches_target
    from .who import Identity

    who = Identity.from_json(identity)
    role = posted_as.get("role", "") if who.role != WORKER else ""
    ranks = posted_as.get("ranks", "") if who.rank is not None else ""
    return matches_target(role, ranks, who)


def _note(notes: list[str], meant: list[Worker], there: list[Worker]) -> str:
    """What most of those that could not arm it say; nobody to arm it is an answer too."""
    if not there:
        return "no worker has joined yet"
    if not meant:
        roles = {worker.identity["role"] for worker in there}
        return f"no process has this role or rank yet; there are {', '.join(sorted(roles))}"
    return max(set(notes), key=notes.count) if notes else ""


def caught(table: Table, job_id: str) -> list[Document]:
    """The processes of a job that have caught something, those that are gone too, each with what it has "caught".

    "partial": a process has told that before its end, and may have caught more since.
    """
    gone = [each for each in table.left if each.get("caught")]
    told = [{**each["identity"], "caught": each["caught"], "partial": each["partial"]} for each in gone]
    there = [{**each.identity, **_caught(each)} for each in table.workers.values() if each.caught]
    return [each for each in (*told, *there) if each["job_id"] == job_id]


def _caught(worker: Worker) -> Document:
    return {"caught": list(worker.caught), "partial": not worker.is_whole}


def counted(table: Table, worker_id: str, caught: Iterable[Document]) -> Table:
    """All that a worker has caught: it, or its job, ends."""
    worker = table.workers.get(worker_id)
    if worker is None:
        return table
    return _with_worker(table, worker_id, replace(worker, caught=tuple(caught), is_whole=True))


def ps(table: Table) -> PsDocument:
    """The record of `devkit ps`."""
    return {
        "stops": stops(table),
        "breakpoints": breakpoint_states(table),
        "crashes": len(table.crashes),
        "gone": [end.to_json() for end in table.ended],
        "workers": [_worker(worker) for worker in table.workers.values()],
    }


def _worker(worker: Worker) -> Any:
    known = {**worker.identity, "connected": worker.connected}
    return {**known, "caught": list(worker.caught)} if worker.caught else known


def _with_worker(table: Table, worker_id: str, worker: Worker) -> Table:
    return replace(table, workers={**table.workers, worker_id: worker})
