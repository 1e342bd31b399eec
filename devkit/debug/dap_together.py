"""Requests of our own that act on several ranks at once, for the sessions that have them.

devkitEval {expression, target?}   the document of `devkit eval --json`: results, groups of equal values, odd ranks
devkitAll {command}                continue, next, stepIn or stepOut: {continued: ids, failed: {id: why}}
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from devkit.debug import evaluate
from devkit.debug.dap_cluster import DapHub
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_stdio import Editor
from devkit.debug.inworker.records import StopRecord
from devkit.debug.protocols import Document
from devkit.debug.targets import ALL, select
from devkit.errors import DevkitError, UsageError

COMMANDS = ("devkitEval", "devkitAll")
STEPS = ("next", "stepIn", "stepOut")
MOVES = ("continue", *STEPS)
EVAL_SECONDS = 10.0
MOVE_SECONDS = 10.0
NEWS_SECONDS = 0.1
_TRIES = 3  # a stop may end between the question what there is and the request


class Chooser(Protocol):
    """Which stops are the session's."""

    def matches(self, who: Mapping[str, Any]) -> bool: ...


@dataclass(frozen=True)
class Only:
    """The one stop of a session."""

    stop_id: str

    def matches(self, who: Mapping[str, Any]) -> bool:
        return bool(who["id"] == self.stop_id)


def answer(request: Document, loop: Loop, editor: Editor, hub: DapHub, choice: Chooser) -> None:
    """Answers one of COMMANDS, without holding up the loop."""
    arguments = request.get("arguments") or {}
    act = evaluated if request.get("command") == "devkitEval" else moved
    loop.background(
        lambda: act(hub, arguments, choice),
        lambda body: editor.answer(request, body),
        lambda error: editor.refuse(request, error.message, error.hint),
    )


def evaluated(hub: DapHub, arguments: Mapping[str, Any], choice: Chooser) -> Document:
    """Raises DevkitError when there is nothing to ask, or no expression."""
    expression, target = str(arguments.get("expression") or ""), str(arguments.get("target") or ALL)
    seconds = float(arguments.get("timeout") or EVAL_SECONDS)
    evaluate.check_expression(expression)
    for tried in range(_TRIES):
        wanted = select(_stops(hub, choice), target)
        try:
            return dict(evaluate.record(evaluate.results_of(hub, expression, wanted, every=False, timeout=seconds)))
        except DevkitError as error:
            if error.exit_code != UsageError.exit_code or tried == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def moved(hub: DapHub, arguments: Mapping[str, Any], choice: Chooser) -> Document:
    """Raises UsageError for a command that is none, and DevkitError when the hub can't be asked."""
    command = str(arguments.get("command"))
    if command not in MOVES:
        raise UsageError(f"devkitAll has no command {command!r}", hint=f"one of {', '.join(MOVES)}")
    continued: list[str] = []
    failed: dict[str, str] = {}
    threads: set[tuple[str, str]] = set()  # that were moved: where they stop next is not asked to move again
    for tried in range(_TRIES):
        stops = [stop for stop in hub.call("ps")["stops"] if choice.matches(stop) and _thread(stop) not in threads]
        if not stops:
            break
        try:
            answer = _move(hub, command, [stop["id"] for stop in stops])
        except DevkitError as error:
            if error.exit_code != UsageError.exit_code or tried == _TRIES - 1:
                raise
            continue
        continued += answer["continued"]
        failed = answer["failed"]
        threads |= {_thread(stop) for stop in stops if stop["id"] in answer["continued"]}
        if not failed:
            break
        time.sleep(NEWS_SECONDS)  # they have just moved: the hub hears where they are
    return {"continued": continued, "failed": failed}


def _move(hub: DapHub, command: str, ids: list[str]) -> Document:
    if command == "continue":
        return hub.call("continue", ids=ids, timeout=MOVE_SECONDS)
    return hub.call("step", ids=ids, how=command, timeout=MOVE_SECONDS)


def _thread(stop: Mapping[str, Any]) -> tuple[str, str]:
    return stop["worker_id"], stop.get("thread", "")


def _stops(hub: DapHub, choice: Chooser) -> list[StopRecord]:
    stops = [StopRecord.from_json(stop) for stop in hub.call("ps")["stops"] if choice.matches(stop)]
    if not stops:
        raise DevkitError("nothing is stopped in this session", hint="devkit ps shows what is stopped elsewhere")
    return stops
