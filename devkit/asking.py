"""Verbs that ask a cluster something: their user says how long they wait for its answers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from devkit import patience
from devkit.durations import duration

STOP_TIMEOUT = "timeout"  # a parameter of verbs where `--timeout` means something of the program's
PARAMETER = "answer_timeout"
HELP = "How long to wait for the cluster to answer."


def asking(verb: Callable[..., int], text: str = HELP) -> Callable[..., int]:
    """The verb with `--timeout`, or with `--answer-timeout` where the first is another thing; `text` is its help."""
    signature = inspect.signature(verb)
    name = "--answer-timeout" if STOP_TIMEOUT in signature.parameters else "--timeout"
    kind = Annotated[float | None, duration(name, help=text)]

    @functools.wraps(verb)
    def patient(**given: Any) -> int:
        patience.give(given.pop(PARAMETER))
        return verb(**given)

    hints = get_type_hints(verb, include_extras=True)
    known = [each.replace(annotation=hints[each.name]) for each in signature.parameters.values()]
    own = inspect.Parameter(PARAMETER, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    patient.__signature__ = signature.replace(parameters=[*known, own])  # type: ignore[attr-defined]
    patient.__annotations__ = {**hints, PARAMETER: kind}
    return patient
