"""What Ray says at length is one sentence where crashes are listed, and stays whole in the snapshot."""

from __future__ import annotations

import threading

import pytest

from devkit.debug.briefly import brief
from devkit.debug.inworker.words import plain


class Metrics:
    def __init__(self) -> None:
        self.guard = threading.Lock()


class Trainer:
    def __init__(self) -> None:
        self.metrics = {"train": Metrics(), "val": Metrics()}

    def reward_fn(self) -> object:
        def reward(text: str) -> int:
            return len(text) * len(self.metrics)

        return reward


def test_a_function_that_cannot_be_pickled() -> None:
    from ray._common.serialization import pickle_dumps

    from devkit.debug.inworker.unpicklable import way_of

    with pytest.raises(TypeError) as raised:
        pickle_dumps(Trainer().reward_fn(), "Could not serialize the function job.reward")
    said = brief("TypeError", plain(str(raised.value))).said
    assert said == "TypeError: Could not serialize the function job.reward: cannot pickle '_thread.lock' object"
    assert way_of(raised.value) == "reward -> self.metrics['train'].guard, of type lock"
