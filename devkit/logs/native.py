"""A deadly signal is one event, however many wrote of it: Ray's handler, Python's, C++, Ray's tables, devkit. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from devkit.debug.inworker.lastwords import ABORT, signal_of
from devkit.debug.inworker.records import DIED
from devkit.logs.events import BEST, CPP, FATAL, SIGNAL, SIGNALS, Event, Raised

_CHECK = "Check failed"  # of which many libraries only warn, or raise an exception


def natively(events: Iterable[Event]) -> tuple[list[list[Event]], list[Event]]:
    """What tells of deadly signals, together for each process and headed by what tells most; and all other events."""
    groups: dict[int, list[Event]] = defaultdict(list)
    others: list[Event] = []
    for event in events:
        (groups[event.process[1]] if event.is_native else others).append(event)
    dead = {pid: group for pid, group in groups.items() if any(map(_is_end, group))}
    rest: list[Event] = []
    for event in others:
        pid = event.process[1]
        (dead[pid] if pid in dead and event.raised.type == DIED else rest).append(event)
    return [_headed(group) for group in dead.values()], rest


def _is_end(event: Event) -> bool:
    return event.raised.type != CPP or not event.raised.message.startswith(_CHECK)


def _headed(group: Sequence[Event]) -> list[Event]:
    ordered = sorted(group, key=lambda event: (BEST.index(event.source), event.time or float("inf")))
    known = [event.raised for event in ordered]
    kind = next((each.type for each in known if each.type in SIGNALS), "")
    kind = kind or next((each.message for each in known if each.type == SIGNAL), "") or known[0].type
    frames = next((each.frames for each in known if each.frames), ())
    head = replace(ordered[0], raised=replace(known[0], type=kind, message=_message(kind, known), frames=frames))
    return [head, *ordered[1:]]


def _message(kind: str, known: Sequence[Raised]) -> str:
    """What C++ said before an abort says more than that it was one."""
    by_cpp = [each.message for each in known if each.type == CPP] if kind in (ABORT, FATAL, CPP) else []
    ends = [each.message for each in known if each.type in SIGNALS or each.type == FATAL]
    telling = [each for each in ends if not signal_of(each) and not each.endswith(" received")]
    return next(iter([*telling, *by_cpp[-1:], *ends]), "")
