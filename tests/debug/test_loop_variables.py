"""A variable that a loop which has ended leaves behind."""

from __future__ import annotations

import sys
from types import FrameType

from devkit.debug.inworker import progress
from devkit.debug.inworker.loop_variables import is_left_over


def frame() -> FrameType:
    return sys._getframe(1)


def left_over(name: str) -> bool:
    return is_left_over(sys._getframe(1), name)


def test_a_warm_ups_step_is_none_of_what_comes_after_it() -> None:
    for step in range(2):
        assert not left_over("step") and progress.position(frame())[0] == step
    assert left_over("step") and progress.position(frame())[0] is None
    for step, _ in enumerate("ab"):
        assert not left_over("step") and step < 2
    assert left_over("step")


def test_what_is_counted_by_hand_is_the_programs_step() -> None:
    step = 0
    for _ in range(2):
        step += 1  # noqa: SIM113 - this is what is looked at
    assert not left_over("step") and progress.position(frame())[0] == 2
    for iteration in range(3):
        assert iteration < 2 or not left_over("iteration")
        if iteration == 2:
            break
    assert left_over("iteration")


def test_an_argument_and_a_comprehension_say_nothing() -> None:
    def inner(step: int) -> bool:
        return left_over("step")

    assert not inner(3) and not any(left_over("epoch") for epoch in range(2))
