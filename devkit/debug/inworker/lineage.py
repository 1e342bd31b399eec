"""Which crash caused which: Ray shows one failure once per attempt and once per level of nested tasks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any

from .kills import fields
from .records import CrashRecord
from .stacks import OURS

TAG = "__devkit_crash__"  # in the exception's dictionary, which is pickled with it
CHAIN = 8  # exceptions of a chain that are kept
_TRAIN_LINKS = ("_base_exc", "controller_failure", "health_check_failure")
_RETRIED = ("task", "actor", "exit")  # a task id names these alone; a thread has none of its own
_RAYS_GET = os.path.join("ray", "_private", "worker.py")
DEATHS = frozenset(
    {
        *("WorkerCrashedError", "ActorDiedError", "RayActorError", "ActorUnavailableError", "OutOfMemoryError"),
        *("NodeDiedError", "OwnerDiedError", "ObjectLostError", "LocalRayletDiedError"),
    }
)
_MISSING = ("NoneType", "object has no attribute")  # in the message of an error that something was not set
AWAITED = 200  # task ids that are kept of one error
NEAR_SECONDS, LATE_SECONDS = 60.0, 10.0  # an error so long after a death, or before it is known, may be of it
TASK_OWN, NO_ACTOR = 16, "f" * 24  # an id of a task ends with that of its actor; a task of none with this and the job's

CANCELLED, INTERRUPT = "TaskCancelledError", "KeyboardInterrupt"
_CANCELLED_TASK = re.compile(r"TaskID\(([0-9a-f]{48})\) was cancelled|[Tt]ask ([0-9a-f]{48})\b")  # in Ray's words

Place = tuple[FrameType, int]  # a frame and the line it stood at


def tag(error: BaseException, crash_id: str) -> None:
    """Says on the exception which crash it is, so that whoever meets it further out need not repeat it."""
    try:
        setattr(error, TAG, crash_id)
    except Exception:  # noqa: BLE001 - a class of somebody's own make refuses it: then the outer levels are not linked
        print(f"devkit: crash {crash_id} cannot be linked: {type(error).__name__} takes no attribute", file=sys.stderr)  # noqa: T201


def root_of(error: BaseException) -> str | None:
    """The crash that an exception, what caused it, or what was being handled, has been reported as.

    >>> inner, outer = ValueError("inner"), RuntimeError("outer")
    >>> tag(inner, "a1b2"); outer.__cause__ = inner
    >>> root_of(outer), root_of(ValueError("another"))
    ('a1b2', None)
    """
    return next((found for each in _related(error, context=True) if (found := _tag_of(each))), None)


def is_outer_level(error: BaseException) -> bool:
    """Whether the exception is another's, come through Ray or raised from it; not one that broke its handling."""
    return any(_tag_of(each) for each in _related(error, context=False))


def _tag_of(error: BaseException) -> str | None:
    found = vars(error).get(TAG) if hasattr(error, "__dict__") else None
    return found if isinstance(found, str) else None


def _related(error: BaseException, context: bool) -> Iterator[BaseException]:
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < 50:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting.extend(_causes(each, context))


def _causes(error: BaseException, context: bool) -> Iterator[BaseException]:
    """Python's own links, and those of Ray: a task's error, a Train worker's, a Train run's."""
    own = getattr(error, "__dict__", {})
    candidates: list[Any] = [own.get("cause"), error.__cause__, *(own.get(name) for name in _TRAIN_LINKS)]
    failures = own.get("worker_failures")
    candidates += list(failures.values())[:CHAIN] if isinstance(failures, dict) else []
    if context and not error.__suppress_context__:
        candidates.append(error.__context__)
    yield from (each for each in candidates if isinstance(each, BaseException))


def chain_of(error: BaseException) -> list[tuple[str, BaseException]]:
    """What was raised, then what lies behind it: ("raised" | "cause" | "context" | "member", exception)."""
    chain: list[tuple[str, BaseException]] = [("raised", error)]
    while len(chain) < CHAIN:
        last = chain[-1][1]
        following = ("cause", last.__cause__) if last.__cause__ else ("context", last.__context__)
        if following[1] is None or (following[0] == "context" and last.__suppress_context__):
            break
        if any(following[1] is each for _, each in chain):
            break
        chain.append((following[0], following[1]))
    members = [("member", each) for _, group in chain for each in getattr(group, "exceptions", ()) or ()]
    return (chain + [each for each in members if isinstance(each[1], BaseException)])[:CHAIN]


def places_of(traceback: TracebackType | None) -> list[Place]:
    """Innermost first, without the debugger's own frames."""
    places: list[Place] = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(OURS):
            places.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return places[::-1]


def awaited(error: BaseException) -> tuple[str, ...]:
    """The tasks whose results were asked for where an error came out of Ray, as far as Ray's own frames tell."""
    return tasks_of(references(error))


def references(error: BaseException) -> list[Any]:
    """What was asked for there, as the program gave it."""
    found: list[Any] = []
    for frame, _ in places_of(error.__traceback__):
        if frame.f_code.co_filename.endswith(_RAYS_GET):
            refs: Any = frame.f_locals.get("object_refs")
            found += refs if isinstance(refs, (list, tuple)) else [refs]
    return found


def tasks_of(refs: Sequence[Any]) -> tuple[str, ...]:
    """The ids of the tasks that make these."""
    found: list[str] = []
    for each in refs:
        try:
            found.append(str(each.task_id().hex()))
        except Exception:  # noqa: BLE001 - no reference, or one of another Ray: then it tells nothing
            continue
    return tuple(dict.fromkeys(found))[:AWAITED]


def is_of_a_death(kind: str) -> bool:
    """Whether an exception tells of a process or node that died, and is no cause by itself.

    >>> is_of_a_death("RayTaskError(ActorDiedError)"), is_of_a_death("ValueError")
    (True, False)
    """
    return _inner(kind) in DEATHS


def cancelled_task(kind: str, message: str) -> str:
    """The id of the task of which an error says that it was cancelled; of another, and where it does not, nothing.

    >>> said = f"Task: TaskID({'1a' * 24}) was cancelled. "
    >>> cancelled_task("RayTaskError(TaskCancelledError)", said) == "1a" * 24, cancelled_task("ValueError", said)
    (True, '')
    """
    found = _CANCELLED_TASK.search(message) if _inner(kind) == CANCELLED else None
    return found[1] or found[2] if found else ""


def _inner(kind: str) -> str:
    return kind.removeprefix("RayTaskError(").removesuffix(")")


def link(records: Sequence[CrashRecord]) -> list[CrashRecord]:
    """Each attempt of a task after the first has the first one as its root, and so has who was told of a death.

    A root is never somebody's follower.
    """
    deaths = [record for record in records if record.kind == "exit" and not is_of_a_death(record.exception["type"])]
    told = {record.id for record in records if record.root is None and _tells_of_a_death(record)}
    # A death may be known later than what follows from it.
    ordered = sorted(records, key=lambda record: (record.id in told or record.root is not None, record.time))
    interrupts = {(each.job_id, each.task_id): each.id for each in records[::-1] if _is_interrupted(each)}
    first: dict[tuple[str, str], str] = {}
    roots: dict[str, str] = {}
    supposed: set[str] = set()
    for record in ordered:
        root = record.root
        if record.id in told:
            named = _error_named(record, records)
            root, is_known = (named, True) if named else _death_behind(record, deaths)
            supposed |= set() if is_known or root is None else {record.id}
        if root is None and (death := _instance_before(record, deaths)) is not None:
            root = death
            supposed.add(record.id)
        root = root or interrupts.get((record.job_id, _cancelled(record)))
        if root is None and record.task_id.strip("f") and record.kind in _RETRIED:  # not Ray's id of no task
            root = first.setdefault((record.job_id, record.task_id), record.id)
        if root is not None and root != record.id:
            roots[record.id] = roots.get(root, root)
    return [
        replace(record, root=roots.get(record.id), supposed=record.supposed or record.id in supposed)
        for record in records
    ]


def _is_interrupted(record: CrashRecord) -> bool:
    """Whether it is how `ray.cancel` ends a task, of which Ray tells the others only that it was cancelled."""
    return record.exception["type"] == INTERRUPT and record.kind in _RETRIED and bool(record.task_id.strip("f"))


def _cancelled(record: CrashRecord) -> str:
    return cancelled_task(record.exception["type"], record.exception["message"])


def _tells_of_a_death(record: CrashRecord) -> bool:
    """By itself, or by what was handled where it was raised."""
    return is_of_a_death(record.exception["type"]) or bool(record.waited)


def _error_named(record: CrashRecord, records: Sequence[CrashRecord]) -> str | None:
    """The error in its own code of which an actor died, as Ray says it: of one that was started anew, not an earlier
    instance's death.
    """
    said = record.exception["message"]
    behind = [
        each
        for each in records
        if each.kind != "exit" and each.id != record.id and each.job_id == record.job_id and each.time <= record.time
        if not is_of_a_death(each.exception["type"]) and any(is_of(task, each.task_id) for task in record.waited)
        if each.exception["message"]
        and f"{each.exception['type']}: {each.exception['message'].splitlines()[0]}" in said
    ]
    return max(behind, key=lambda each: each.time).id if behind else None


def _death_behind(record: CrashRecord, deaths: Sequence[CrashRecord]) -> tuple[str | None, bool]:
    """The death of which an error tells: of a task that it waited for, of an actor; else the nearest unknown one.

    Where Ray names the process that died, it is no other's death. And whether that is known, and not only supposed.
    """
    pid = fields(record.exception["message"]).get("pid")
    mine = [
        death
        for death in deaths
        if death.job_id == record.job_id and death.id != record.id and pid in (None, str(death.pid))
    ]
    known = [death for death in mine if any(is_of(task, death.task_id) for task in record.waited)]
    if known:
        return min(known, key=lambda death: death.time).id, True
    near = [
        death
        for death in mine
        if (not record.waited or not death.task_id) and -LATE_SECONDS <= record.time - death.time <= NEAR_SECONDS
    ]
    return (max(near, key=lambda death: death.time).id, pid is not None) if near else (None, True)


def _instance_before(record: CrashRecord, deaths: Sequence[CrashRecord]) -> str | None:
    """The death of an actor's instance before, where what was set in that is missed in this one, by the error's kind.

    That of a call which is tried again is known by its task.
    """
    said = record.exception
    misses = said["type"] in ("AttributeError", "TypeError") and any(each in said["message"] for each in _MISSING)
    if record.kind != "actor" or not misses:
        return None
    before = [
        death
        for death in deaths
        if death.job_id == record.job_id
        and death.worker_id != record.worker_id
        and death.time < record.time
        and record.task_id != death.task_id
        and is_of(record.task_id, death.task_id)
    ]
    return max(before, key=lambda death: death.time).id if before else None


def is_of(waited: str, task_id: str) -> bool:
    """Whether who ran `task_id` is who was to run `waited`: the same task, or of the same actor."""
    actor = task_id[TASK_OWN:]
    return bool(task_id) and (waited == task_id or (waited[TASK_OWN:] == actor and not actor.startswith(NO_ACTOR)))
