"""Where the generator of a call stands while Ray holds it back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

from devkit.debug.inworker import held_back, progress
from devkit.debug.inworker.stacks import all_threads


def rollout(prompts: list[str]) -> Iterator[str]:
    for prompt in prompts:  # noqa: UP028 - it is about this line
        yield prompt


def test_a_generator_that_nobody_runs_is_found_by_its_call() -> None:
    held, unbegun = rollout(["a", "b"]), rollout(["c"])
    next(held)
    frame = held_back.frame_of("rollout", None)
    assert frame is not None and frame is held.gi_frame
    wait = held_back.wait_at(frame)
    assert (wait["call"], wait["at"]["line"]) == ("rollout", frame.f_lineno) and "backpressure" in wait["what"]
    main = next(each for each in held_back.shown(all_threads(), frame) if each["name"] == held_back.MAIN)
    assert main["frames"][0] == wait["at"]
    unbegun.close()


def test_nothing_is_said_where_it_is_not_sure() -> None:
    held = rollout(["a", "b"])
    next(held)
    assert held_back.frame_of("", None) is None
    assert held_back.frame_of("another", None) is None
    assert held_back.frame_of("rollout", sys._getframe()) is None  # the main thread is in the program
    other = rollout(["c", "d"])
    next(other)
    assert held_back.frame_of("rollout", None) is None  # two of them
    other.close()


def test_it_is_where_the_call_waits() -> None:
    """As a task: its thread is in no line of the program, and its process is called by the task's name."""
    held = rollout(["a", "b"])
    next(held)
    frame = held_back.frame_of("rollout", None)
    assert frame is not None
    # The lines and the loop around it are what any thread at that line has.
    lines = progress.statements.describe({threading.get_ident(): frame}, {threading.get_ident(): held_back.MAIN})
    [stack] = [each for each in lines if each["thread"] == held_back.MAIN]
    facts = stack["lines"]
    assert facts[0]["text"] == "yield prompt" and facts[0]["loop"]["values"]["prompt"] == "'a' (no. 1 of 2)"
