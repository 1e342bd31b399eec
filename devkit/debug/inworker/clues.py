"""What may be known of a failure beside its frames and values: each clue is found by a function of its own."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import (
    begun,
    bygone,
    calls_made,
    cancels,
    changed,
    dropped,
    earlier,
    kept_waiting,
    leftovers,
    masked,
    misfits,
    other_loops,
    ownership,
    resized,
    unasked,
)
from .identity import task_called
from .lineage import chain_of
from .redaction import scrub
from .remade import lost_on_the_way, remade
from .sources import is_users
from .unpicklable import way_of
from .values import error_line
from .words import say

_PLACE = re.compile(r'^\s+File "([^"\n]{1,500})", line (\d{1,9}), in ([^\n]{1,200})$', re.MULTILINE)
BLOCKING = "CUDA_LAUNCH_BLOCKING"

Document = dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """An exception that left the program's code."""

    error: BaseException
    kind: str  # of the crash
    light: bool = False  # another attempt, or an outer level: what takes long to find is known already

    @property
    def errors(self) -> list[BaseException]:
        return [each for _, each in chain_of(self.error)]


def _way(failure: Failure) -> str:
    return scrub(way_of(failure.error))


def _remade(failure: Failure) -> str:
    here = next(filter(None, map(remade, failure.errors)), "")
    return here or (lost_on_the_way(failure.error) if failure.kind in ("task", "actor") else "")


def _masked(failure: Failure) -> str:
    return next(filter(None, map(masked.said, failure.errors)), "")


def _none(failure: Failure) -> str:
    return leftovers.called_in_vain(failure.error)


def _ran(failure: Failure) -> list[str]:
    own = begun.function() or task_called().rpartition(".")[2]
    return leftovers.ran(own) if failure.kind == "task" else []


def _left(failure: Failure) -> str:
    return leftovers.group() if failure.kind == "task" else ""


def _outside(failure: Failure) -> Document:
    """The calls that a try had made which Ray may run again, by name."""
    from .hooks import task_facts

    facts = task_facts() if failure.kind in ("task", "actor") else {}
    task, attempt = str(facts.get("task_id", "")), int(facts.get("attempt", 0))
    made = calls_made.by_task(bytes.fromhex(task), attempt) if task else []
    return dict(Counter(each.name for each in made))


def _lost(failure: Failure) -> Document | None:
    return ownership.lost(failure.error)


def _hidden(failure: Failure) -> str:
    """What `raise ... from None` leaves out of the chain."""
    last = chain_of(failure.error)[-1][1]
    behind = last.__context__ if last.__suppress_context__ and last.__cause__ is None else None
    if behind is None:
        return ""
    place = unasked.place(behind)
    return f"`from None` hides {error_line(behind)}{f' at {place}' if place else ''}"


def _remote(failure: Failure) -> str:
    """Where another process raised it, of which a pool has passed it on: its own frames are only in a text."""
    texts = (str(each) for each in failure.errors if type(each).__name__.lstrip("_") == "RemoteTraceback")
    places = [found for text in texts for found in _PLACE.findall(text)]
    own = [each for each in places if is_users(each[0])]
    if not own:
        return ""
    file, line, function = own[-1]
    return f"another process raised it, at {os.path.basename(file)}:{line} in {function}"


def _awaits(failure: Failure) -> list[str]:
    """The actors that did not answer in time."""
    ended = [each for each in failure.errors if type(each).__name__ == kept_waiting.TIMED_OUT and not failure.light]
    return kept_waiting.actors_of_tasks([task for each in ended for task in kept_waiting.late(each)])


def _late(failure: Failure) -> str:
    """Of CUDA, whose kernels run behind the program's back."""
    said = next((each for each in map(error_line, failure.errors) if "CUDA error: " in each), "")
    if not said or os.environ.get(BLOCKING, "0") not in ("", "0"):
        return ""
    return f"CUDA may report it late: what failed was started at this line or before it; {BLOCKING}=1 shows where"


def _misfits(failure: Failure) -> list[str]:
    """Of what was raised and of its causes; what was being handled is another matter."""
    chain = [] if failure.light else chain_of(failure.error)
    handled = next((at for at, (link, _) in enumerate(chain) if link == "context"), len(chain))
    errors = [each for at, (link, each) in enumerate(chain) if at < handled or link == "member"]
    return list(dict.fromkeys(line for each in errors for line in misfits.said(each)))[: misfits.MOST]


def _loops(failure: Failure) -> list[str]:
    return [] if failure.light else list(other_loops.said(failure.errors))


def _earlier(failure: Failure) -> list[str]:
    return [] if failure.light else earlier.said(failure.error)


def _changed(failure: Failure) -> list[str]:
    return [] if failure.light else changed.said(failure.errors)


def _cancelled(failure: Failure) -> list[str]:
    return [] if failure.light else cancels.said(failure.errors)


def _cancels(failure: Failure) -> list[str]:
    """The tasks of which this process does not know who has cancelled them."""
    if failure.light:
        return []
    named = [*cancels.tasks(failure.errors), *cancels.interrupted(failure.errors, failure.kind)]
    return [each for each in named if cancels.site(each) is None]


def _dropped(failure: Failure) -> list[str]:
    return [] if failure.light else dropped.said(failure.errors)


def _resized(failure: Failure) -> str:
    return "" if failure.light else resized.said(failure.errors)


def _failed(failure: Failure) -> list[str]:
    return [] if failure.light else bygone.said(bygone.found(failure.errors), failure.errors)


def _unasked(failure: Failure) -> list[str]:
    if failure.light:
        return []
    return unasked.said(failure.errors, [each.error for each in bygone.found(failure.errors)])


# By the name that a clue has in the document of a crash.
CLUES: tuple[tuple[str, Callable[[Failure], Any]], ...] = (
    ("failed", _failed),
    ("way", _way),
    ("remade", _remade),
    ("masked", _masked),
    ("none", _none),
    ("ran", _ran),
    ("left", _left),
    ("lost", _lost),
    ("outside", _outside),
    ("hidden", _hidden),
    ("remote", _remote),
    ("late", _late),
    ("awaits", _awaits),
    ("misfits", _misfits),
    ("loops", _loops),
    ("changed", _changed),
    ("earlier", _earlier),
    ("resized", _resized),
    ("cancelled", _cancelled),
    ("cancels", _cancels),
    ("dropped", _dropped),
    ("unasked", _unasked),
)


def found(failure: Failure) -> Document:
    """{name: clue} of those that there are."""
    return {name: clue for name, look in CLUES if (clue := _looked(name, look, failure))}


def _looked(name: str, look: Callable[[Failure], Any], failure: Failure) -> Any:
    try:
        return look(failure)
    except Exception as problem:  # noqa: BLE001 - keeps the crash, though a value of the program's fails at a look
        say(f"the clue {name!r} of a crash could not be looked for: {problem!r}")
        return None


__all__ = ["Failure", "found"]
