"""Whatever a client sends, it gets one answer, and the program stays where it stands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devkit.debug.inworker.adapter import Adapter
from devkit.debug.inworker.arming import Arming
from tests.debug.dialogue import Dialogue, Refusal
from tests.debug.parking_lot import Lot

# With right arguments these go on, or are answered by a later request.
MOVES = {"continue", "next", "stepIn", "stepOut", "disconnect", "terminate", "attach", "launch", "configurationDone"}
COMMANDS = sorted({name.removeprefix("_on_") for name in dir(Adapter) if name.startswith("_on_")} - MOVES)
FIELDS = (
    *(
        "threadId",
        "frameId",
        "variablesReference",
        "source",
        "path",
        "sourceReference",
        "breakpoints",
        "line",
        "column",
    ),
    *("condition", "hitCondition", "logMessage", "name", "value", "expression", "context", "text", "start", "count"),
    *(
        "filter",
        "filters",
        "filterOptions",
        "levels",
        "startFrame",
        "format",
        "pathMappings",
        "localRoot",
        "remoteRoot",
    ),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=20), st.sampled_from(FIELDS)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
ARGUMENTS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6) | VALUES


@pytest.fixture(scope="module")
def editor() -> Iterator[tuple[Dialogue, Lot]]:
    lot = Lot()
    arming = Arming(
        lambda names, frame: lot.stops.park(frame, "breakpoint", breakpoints=names), lambda name, problem: None
    )
    arming.install()
    dialogue = Dialogue(lot.stops, arming)
    dialogue.attach()
    lot.start(lot.hit)
    dialogue.event("stopped")
    yield dialogue, lot
    dialogue.adapter.close()
    arming.uninstall()
    lot.finish()


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(COMMANDS) | st.text(max_size=12), ARGUMENTS)
def test_any_request_has_one_answer_and_moves_nothing(
    editor: tuple[Dialogue, Lot], command: str, arguments: Any
) -> None:
    dialogue, lot = editor
    failed: list[Any] = []
    before, threading.excepthook = threading.excepthook, failed.append
    try:
        number = next(dialogue._numbers)
        request = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        if command not in MOVES:
            dialogue.adapter.handle(request)
            with suppress(Refusal):
                dialogue.answer(number)
        assert dialogue.request("threads")["threads"]  # it goes on after that, in order
        assert number not in dialogue._answers, "a second answer"
    finally:
        threading.excepthook = before
    assert not failed and len(lot.stops.records()) == 1


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(VALUES)
def test_a_message_that_is_no_request_is_passed_over(editor: tuple[Dialogue, Lot], message: Any) -> None:
    dialogue, _ = editor
    dialogue.adapter.handle(message)
    assert dialogue.request("threads")["threads"]
