"""What passes a function of the debugger's has no frame of it: tracebacks that the user reads are the program's."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.debug.inworker import (
    called_methods,
    cut_off,
    entering,
    kills,
    lost_arguments,
    lost_changes,
    ownership,
    sent_globals,
    stale_copies,
    unseen_variables,
)
from devkit.debug.inworker.passing import unframed
from devkit.debug.inworker.stacks import OURS

COUNTS: dict[str, int] = {}


def fails(*_: Any, **__: Any) -> Any:
    raise KeyError("a")


fails.name, fails.method = "fails", None  # type: ignore[attr-defined]


def lost(cover: Callable[..., Any], *more: Any) -> Callable[..., Any]:
    def task(buffer: list[int]) -> None:
        COUNTS["a"] = len(buffer)
        raise KeyError("a")

    covered: Callable[..., Any] = cover(task, "task", *more)
    assert covered is not task
    return covered


COVERED: dict[str, Callable[[], Callable[..., Any]]] = {
    "method": lambda: called_methods.noting(fails, "fails", lambda: None),
    "entering": lambda: entering._telling(fails),
    "arguments": lambda: lost(lost_arguments.covered, lost_arguments._State()),
    "changes": lambda: lost(lost_changes.covered, [], lost_changes._State()),
    "both": lambda: called_methods.noting(entering._telling(fails), "fails", lambda: None),
    "kill": lambda: kills._watched(fails, lambda: None),
    "cancel": lambda: cut_off._noting(fails),
    "put": lambda: ownership._watched(fails, lambda: None),
    "export": lambda: sent_globals._noting(fails),
    "calls": lambda: stale_copies._followed(fails, lambda *_: None),
    "environ": lambda: unseen_variables._reading(fails, lambda *_: None),
}


@pytest.mark.parametrize("name", COVERED)
def test_no_frame_of_the_debuggers_is_in_the_traceback(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unseen_variables, "_is_traced", lambda: False, raising=False)
    monkeypatch.setattr("tests.debug.test_passing.COUNTS", {})
    covered = COVERED[name]()
    with pytest.raises(KeyError) as caught:
        covered([], *["a"] * (name in ("environ", "export")))
    text = "".join(traceback.format_exception(caught.value))
    assert OURS not in text and "test_passing.py" in text, text
    [*_, last] = traceback.extract_tb(caught.value.__traceback__)
    assert last.name in ("fails", "task")


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


def test_nothing_else_of_it_changes() -> None:
    """Nor has a class a say in it."""
    own = Frozen(3)
    own_context = ValueError("before")

    def raises() -> None:
        try:
            raise own_context
        except ValueError:
            raise own from own_context

    def covered() -> None:
        try:
            raises()
        except BaseException as error:
            unframed(error)
            raise

    with pytest.raises(Frozen) as caught:
        covered()
    assert caught.value is own and own.__cause__ is own.__context__ is own_context and own.args == (3,)
    names = [each.name for each in traceback.extract_tb(own.__traceback__)]
    assert names == ["test_nothing_else_of_it_changes", "raises"]
    another = SimpleNamespace(error=KeyError("a"))
    try:
        raises()
    except Frozen:
        unframed(another.error)
    assert another.error.__traceback__ is None
