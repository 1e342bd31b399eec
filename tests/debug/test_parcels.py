"""Which classes are in a pickle that could not be unpickled; nothing of it is run."""

from __future__ import annotations

import decimal
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from ray import cloudpickle

from devkit.debug.crash_page import clues_of
from devkit.debug.inworker.parcels import classes_in, named_in


class Settings(dict):  # type: ignore[type-arg]
    __getattr__ = dict.get


def made_here() -> Any:
    """Of classes that cloudpickle sends whole, as it does with those of a script."""

    class Config(dict):  # type: ignore[type-arg]
        __getattr__ = dict.get

    class Other:
        def give(self) -> type:
            return Config

    other: Any = Other()
    other.config, other.more = Config(a=1), [Other(), Config(), decimal.Decimal(1)]
    return other


def test_classes_that_are_looked_up_and_classes_that_come_whole() -> None:
    found = named_in(cloudpickle.dumps(made_here()))
    assert [name.rpartition(".")[2] for name in found] == ["Other", "Config", "Decimal"], found
    assert named_in(pickle.dumps([Settings(), Settings()], 5)) == ["tests.debug.test_parcels.Settings"]


def test_another_error_has_none() -> None:
    assert classes_in(ValueError("no")) == []


@given(st.binary(max_size=200), st.integers(0, 60))
def test_damaged_ones_are_as_good_as_none(noise: bytes, cut: int) -> None:
    assert all(isinstance(each, str) for each in named_in(noise))
    whole = pickle.dumps([Settings(a=1)], 5)
    assert named_in(whole[:cut]) in ([], ["tests.debug.test_parcels.Settings"])


def test_the_page_says_of_which_call_it_was_an_argument() -> None:
    [line] = clues_of({"objects": ["Config", "rewards.Batch"], "arriving": "Worker.rollout"})
    argument = "the argument of Worker.rollout that could not be unpickled"
    assert line == f"{argument} contains objects of Config, rewards.Batch, in this order"
    [line] = clues_of({"objects": ["Config"]})
    assert line == "what could not be unpickled contains an object of Config"
