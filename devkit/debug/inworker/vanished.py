"""The document of a process that had no time to write one: by Ray's tables, its last words, and the last look at it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import alarms, cpu_limit, mapped
from .doing import EVERY_SECONDS
from .identity import WORKER
from .records import DIED, Identity, Raised
from .redaction import scrub
from .snapshot import record_at
from .sources import is_users, source_around
from .words import NO_WORD, NO_WORD_YET, plain

AROUND = 4  # lines of source before and after
SIGNAL_SECONDS = 60.0  # between a deadly signal and when Ray knows of the end, at most; to write a core file takes some
STACK_SIGNALS = ("SIGSEGV", "SIGBUS")  # by which a process ends that runs out of stack
HIGH_LIMIT = 20_000  # calls: with Python's own stack of 8 MiB more of them may not fit
DUMPED = 100  # frames that a dump has of a thread, at most
IN_THE_MAKING = "exception in the initialization method"  # as Ray tells of an actor whose `__init__` failed
_SERIALIZER = "ray/_private/serialization.py"
OTHER_ENDS = ("exit code", "running low on memory")  # as Ray tells of ends by no such signal

Document = dict[str, Any]


def vanished(
    identity: Identity,
    words: Document | None,
    reason: str,
    *,
    task: Document | None = None,
    seen: Document | None = None,
    died: float | None = None,
) -> Document:
    """A crash of a process that is gone.

    Args:
        words: what `last_words` found: a signal, a message, frames.
        reason: why it ended, in Ray's words.
        task: what it was at, by Ray's table: {"task_id", "name", "attempt"}. Of the arguments Ray keeps nothing.
        seen: where it was at the last look: {"time", "frames"}.
        died: when, in seconds since the epoch; None: now.
    """
    ended = time.time() if died is None else died
    by_timer = alarms.sentence(seen, ended)
    if known := by_timer or cpu_limit.sentence(seen, ended):
        reason = known if reason == NO_WORD_YET else reason.replace(NO_WORD, known)
    words, other = (words or {}, "") if is_of_end(words or {}, reason, ended) else ({}, _of_another(words or {}, ended))
    # Of an actor that could not be made Ray's table has the first call that waited for it.
    task = {} if task is None or IN_THE_MAKING in reason else task
    last_seen = None if words.get("frames") or not _is_of_task(seen, task) else seen
    bare = words.get("frames") or (last_seen or {}).get("frames") or []
    is_near = bool(words.get("frames"))  # its log was on this machine, and so is what it ran
    frames = list(_told(bare, is_near))
    at = next((index for index, frame in enumerate(frames) if frame["user"]), 0)
    where = (frames[at]["file"], frames[at]["line"], frames[at]["function"]) if frames else ("", 0, "")
    name = str(task.get("name") or "")
    if not where[2]:
        where = ("", 0, name)
    role = name.rpartition(".")[2] if name and identity.role in ("", WORKER) else identity.role
    exception = _said(words, reason, other, seen or {})
    record = record_at(
        replace(identity, role=role), "exit", exception, where, None, str(task.get("task_id") or ""), died
    )
    document = {
        **record.to_json(),
        "attempt": int(task.get("attempt") or 0),
        "host": identity.host,
        "versions": {"python": identity.python},
        "light": False,
        "at": at,
        "frames": frames,
        "chain": [{**exception, "relation": "raised", "frames": bare}],
        "threads": [],
        "cut": [],
        "reason": reason,
    }
    document.update(_known(identity, task, seen or {}))
    if by_timer and (call := str((seen or {})["alarm"].get("call") or "")):
        document["timed"] = call.rpartition(".")[2]
    document.update({"elsewhere": True} if words.get("elsewhere") else {})
    if last_seen is not None and bare:
        # While it stays in its place nothing is told: it was looked at no longer ago than that.
        document["seen"] = round(min(max(record.time - float(last_seen["time"]), 0.0), EVERY_SECONDS), 3)
    return document


def _said(words: Document, reason: str, other: str, seen: Document) -> Raised:
    short = mapped.sentence(seen.get("maps", [])) if words.get("signal") == mapped.SIGNAL else ""
    told = (
        words.get("message") or reason,
        other,
        _hinted(words),
        _deep(words),
        _pickling(words),
        _limit(words, seen),
        short,
    )
    return {"type": words.get("signal") or DIED, "message": scrub(plain("; ".join(filter(None, told))))}


def is_of_end(words: Document, reason: str, ended: float) -> bool:
    """Whether a signal of which a log tells ended its process; not one of a child, which writes to the same log.

    >>> words = {"kind": "signal", "signal": "SIGSEGV", "at": 1000}
    >>> is_of_end(words, NO_WORD, 1002.0), is_of_end(words, NO_WORD, 1100.0)
    (True, False)
    >>> is_of_end(words, "Worker exits with an exit code 3.", 1002.0), is_of_end({**words, "went_on": True}, "", 1002.0)
    (False, False)
    """
    if words.get("kind") != "signal" and not words.get("at"):
        return True
    late = "at" in words and ended - float(words["at"]) > SIGNAL_SECONDS
    return not late and not words.get("went_on") and not any(each in reason for each in OTHER_ENDS)


def _of_another(words: Document, ended: float) -> str:
    when = f" from {max(0.0, ended - float(words['at'])):.0f} s before" if words.get("at") else ""
    return f"its log also has a {words['signal'] or words['message']}{when}, which may be that of a process it started"


def _deep(words: Document) -> str:
    """Of a fault in a stack that is as deep as a dump shows at most, and goes round.

    >>> frame = {"file": "/job/a.py", "line": 7, "function": "Node.__repr__"}
    >>> _deep({"signal": "SIGSEGV", "frames": [frame] * 100})[:63]
    'it may have run out of stack: it was 100 or more calls deep, of'
    >>> _deep({"signal": "SIGSEGV", "frames": [frame] * 20}), _deep({"signal": "SIGBUS", "frames": [frame] * 100})
    ('', '')
    """
    frames = words.get("frames") or []
    often = Counter(each["function"] for each in frames).most_common(1)
    if words.get("signal") != "SIGSEGV" or len(frames) < DUMPED or often[0][1] < DUMPED // 4:
        return ""
    return f"it may have run out of stack: it was {DUMPED} or more calls deep, of which {often[0][1]} are {often[0][0]}"


def _limit(words: Document, seen: Document) -> str:
    """Of a fault in a process that lets calls nest much deeper than Python does by itself.

    >>> _limit({"signal": "SIGSEGV"}, {"recursion": 1000000})
    'its recursion limit had been set to 1000000: what nests so deep runs out of stack before Python can say so'
    >>> _limit({"signal": "SIGSEGV"}, {"recursion": 1000}), _limit({"signal": "SIGTERM"}, {"recursion": 1000000})
    ('', '')
    """
    limit = int(seen.get("recursion") or 0)
    if words.get("signal") not in STACK_SIGNALS or limit < HIGH_LIMIT:
        return ""
    return f"its recursion limit had been set to {limit}: what nests so deep runs out of stack before Python can say so"


def _pickling(words: Document) -> str:
    """Of a fault below Ray's own serialization, with no function of the program around that.

    >>> ray = [{"file": "/v/site-packages/ray/_private/serialization.py", "line": 801, "function": "serialize"}]
    >>> _pickling({"signal": "SIGSEGV", "frames": ray})
    'Ray was pickling what the call had returned, and no line of the call ran any more'
    >>> own = {"file": "/job/a.py", "line": 7, "function": "main"}
    >>> _pickling({"signal": "SIGSEGV", "frames": [*ray, own]}), _pickling({"signal": "SIGSEGV", "frames": [own]})
    ('', '')
    """
    frames = words.get("frames") or []
    pickles = any(each["file"].endswith(_SERIALIZER) and each["function"] == "serialize" for each in frames)
    if not pickles or any(is_users(each["file"]) for each in frames):
        return ""
    return "Ray was pickling what the call had returned, and no line of the call ran any more"


def _hinted(words: Document) -> str:
    return f"the end of its log says: {words['hint']}" if words.get("hint") else ""


def _told(frames: list[Document], is_near: bool) -> Iterator[Document]:
    for each in frames:
        user = is_users(each["file"])
        source = source_around(each["file"], each["line"], AROUND) if user and is_near else None
        yield {**each, "user": user, "source": source, "locals": {}}


def _known(identity: Identity, task: Document, seen: Document) -> Document:
    """What else there is: `actor`, `made` and `call` with their arguments, `called`, `memory`, `asked_by`."""
    call, at = seen.get("call"), str(task.get("name") or "").rpartition(".")[2]
    found = {
        "actor": identity.actor,
        "made": seen.get("made"),
        "call": call if call and at in ("", call["name"]) else None,  # the last look may be at an earlier one
        "memory": seen.get("memory"),
        "asked_by": task.get("asked_by"),
        "called": at,
    }
    return {name: value for name, value in found.items() if value}


def _is_of_task(seen: Document | None, task: Document) -> bool:
    """Whether the last look was at this task, and not at one that the worker had before."""
    name = str(task.get("name") or "").rpartition(".")[2]
    return not name or any(frame["function"].rpartition(".")[2] == name for frame in (seen or {}).get("frames", ()))
