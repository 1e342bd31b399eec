"""Who has cancelled a task by `ray.cancel`, and where: Ray says of a cancelled one only that it was."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from . import cut_off, swallowing
from .kills import who
from .lineage import cancelled_task, places_of
from .sources import is_users

KIND = "TaskCancelledError"
_CANCELLED = "CancelledError"
FRAMES = 5  # of the user's, the innermost ones
MOST = 3  # tasks that are told of

Document = dict[str, Any]


def tasks(errors: Iterable[BaseException]) -> list[str]:
    """The ids of the tasks of which these say that they were cancelled, as far as they do."""
    kinds = ((type(each).__name__, each) for each in errors if KIND in type(each).__name__)
    told = (cancelled_task(kind, str(getattr(each, "cause", None) or each)) for kind, each in kinds)
    return list(dict.fromkeys(filter(None, told)))[:MOST]


def interrupted(errors: Sequence[BaseException], kind: str) -> list[str]:
    """The task that this worker was at when Ray interrupted it, as `ray.cancel` does: it has no other word for that."""
    from .hooks import task_facts

    is_interrupt = kind in ("task", "actor") and any(isinstance(each, KeyboardInterrupt) for each in errors[:1])
    task = str(task_facts()["task_id"]) if is_interrupt else ""
    return [task] if task.strip("f") else []


def site(task: str) -> Document | None:
    """{"file", "line", "function"} of the call of `ray.cancel` in this process."""
    found = cut_off.cancelled_at(bytes.fromhex(task))
    return dict(zip(("file", "line", "function"), found, strict=True)) if found else None


def is_site(found: Any) -> bool:
    """Whether another process has told of one."""
    kinds = {"file": str, "line": int, "function": str}
    return isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in kinds.items())


def said(errors: Sequence[BaseException]) -> list[str]:
    """Where this process has asked for it, and which handler was not meant for it though it looks so."""
    own = [found for each in tasks(errors) if (found := site(each))]
    return [*(sentence(each) for each in own[:1]), *_misses(errors)][:MOST]


def sentence(at: Document, by: Document | None = None) -> str:
    """
    >>> at = {"file": "/job/job.py", "line": 64, "function": "Rollouter.sync"}
    >>> sentence(at), sentence(at, {"role": "Rollouter", "pid": 7})
    ('ray.cancel was called for it at job.py:64 in Rollouter.sync', \
'ray.cancel was called for it by Rollouter pid 7, at job.py:64 in Rollouter.sync')
    """
    told = f"by {who(by)}, " if by else ""
    return f"ray.cancel was called for it {told}at {os.path.basename(at['file'])}:{at['line']} in {at['function']}"


def _misses(errors: Iterable[BaseException]) -> Iterator[str]:
    """`except asyncio.CancelledError` around an `await` of a reference: Ray's error is none of that kind."""
    for error in errors:
        kinds = {each.__name__ for each in type(error).__mro__}
        if KIND not in kinds or _CANCELLED in kinds:
            continue
        own = [(frame.f_code.co_filename, line) for frame, line in places_of(error.__traceback__)]
        for file, line in [each for each in own if is_users(each[0])][:FRAMES]:
            if at := swallowing.named_at(file, line, _CANCELLED):
                name = os.path.basename(file)
                yield f"the `except` of a CancelledError at {name}:{at} does not catch it: Ray's {KIND} is none"
                return


__all__ = ["KIND", "interrupted", "is_site", "said", "sentence", "site", "tasks"]
