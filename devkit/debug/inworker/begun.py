"""What a task has found in its process: Ray runs the tasks of a job in the same few, and each may leave something.

So a rank that an earlier one has left, in a process group or in `RANK`, is not the rank of the task that runs now.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

RANK = "RANK"
MOST = 1000  # functions: one that is sent with each call may have another name each time

_given = os.environ.get(RANK)  # of the whole process, as by a runtime environment


class _Found:
    """As the task that runs now, or has run last, has found it."""

    def __init__(self) -> None:
        self.has_group = False
        self.group: weakref.ref[Any] | None = None
        self.rank = _given
        self.function = ""
        self.tasks: dict[str, list[str]] = {}  # by the name of a function: the first and the last task that ran it


_found = _Found()


def begins(name: str, task: str) -> None:
    """A task of the function of this name, before anything of it runs."""
    group = default_group()
    _found.has_group, _found.group = group is not None, _reference(group)
    _found.rank, _found.function = os.environ.get(RANK), name
    if name in _found.tasks or len(_found.tasks) < MOST:
        _found.tasks[name] = [*_found.tasks.get(name, [])[:1], task]


def function() -> str:
    """The name of the function whose task runs now, or has run last; a task may have a name of its own."""
    return _found.function


def default_group() -> Any:
    """The default process group of torch.distributed, which `init_process_group` makes; None: there is none."""
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        return distributed.GroupMember.WORLD
    except Exception:  # noqa: BLE001 - torch may be half imported, or a group half built: it is as if there were none
        return None


def _reference(group: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(group)
    except TypeError:  # none, or one of another torch's
        return None


def left_group() -> Any:
    """The default group, if it was there before the task that runs now; None: there is none, or it is its own."""
    group = default_group() if _found.has_group else None
    is_another = _found.group is not None and _found.group() is not group
    return None if is_another else group


def is_left_rank(rank: str) -> bool:
    """Whether `RANK` may be an earlier task's: it was so when this one began, and not when the process did."""
    return rank == _found.rank and rank != _given


def has_run(name: str, task: str) -> bool:
    """Whether this process has run another task of this function than that."""
    return any(each != task for each in _found.tasks.get(name, ()))


__all__ = ["begins", "default_group", "function", "has_run", "is_left_rank", "left_group"]
