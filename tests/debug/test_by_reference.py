"""Functions of Ray's that others have the place of here, in what is sent to a worker."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.debug.inworker import by_reference, cut_off, kills, lookups, ownership

ray = pytest.importorskip("ray")
from ray import util  # noqa: E402
from ray._private import worker  # noqa: E402
from ray.cloudpickle import cloudpickle  # noqa: E402

NAMES = ("get_actor", "kill", "put", "cancel")


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a program has by `from ray import ...` that comes before devkit."""
    for name in NAMES:
        for holder in (ray, worker):
            monkeypatch.setattr(holder, name, getattr(holder, name))
    monkeypatch.setattr(util, "list_named_actors", util.list_named_actors)
    monkeypatch.setattr(cloudpickle.Pickler, "_function_reduce", cloudpickle.Pickler._function_reduce)
    found = {name: getattr(ray, name) for name in NAMES}
    found["list_named_actors"] = util.list_named_actors
    lookups.watch(worker)
    kills.watch(worker, lambda: None)
    ownership.watch(worker, lambda: None)
    cut_off._watch(worker, ray)
    by_reference.watch()
    return found


def sent(function: Callable[..., Any]) -> Any:
    return pickle.loads(ray.cloudpickle.dumps(function))


@pytest.mark.parametrize("name", [*NAMES, "list_named_actors"])
def test_it_is_what_has_its_place_where_it_arrives(before: dict[str, Any], name: str) -> None:
    """What the program has from before, and what it takes now; Ray's package has most in a form of its own."""
    holders = [util] if name == "list_named_actors" else [ray, worker]
    for holder in holders:
        now = getattr(holder, name)
        assert now is not before[name]
        for each in (now.__wrapped__, now):
            names = {"__name__": "__main__", "asks": each}
            exec("def task(): return asks()", names)
            assert sent(names["task"]).__globals__["asks"] is now
    assert before[name] is getattr(holders[0], name).__wrapped__


def test_what_a_program_wraps_once_more_is_its_own(before: dict[str, Any]) -> None:
    get_actor = ray.get_actor

    @functools.wraps(get_actor)
    def asks(name: str) -> str:
        return f"no {name}"

    assert by_reference._place(asks) is None and by_reference._place(get_actor) is not None
    own = SimpleNamespace(get_actor=lambda name: name).get_actor
    assert sent(own)("a") == "a"
