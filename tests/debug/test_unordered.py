"""Results of an `ActorPool` that come in another order than what they are of."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from devkit.debug.inworker import line_warnings, unordered

pool_module = pytest.importorskip("ray.util.actor_pool")
import ray  # noqa: E402


class Method:
    """Of an actor: what it is called with is ready by a number that goes with it."""

    def __init__(self, ready: list[tuple[float, Any]]) -> None:
        self.ready = ready

    def remote(self, value: tuple[float, Any]) -> tuple[float, Any]:
        self.ready.append(value)
        return value


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The pool is Ray's own; what it asks Ray for is there already, the smallest number first."""
    with monkeypatch.context() as patch:
        patch.setattr(ray, "wait", lambda refs, **_: ([min(refs)], []))
        patch.setattr(ray, "get", lambda ref, **_: ref[1])
        patch.setattr(pool_module.ActorPool, "map_unordered", pool_module.ActorPool.map_unordered)
        patch.setattr(line_warnings, "_told", set())
        unordered.watch()
        yield


def mapped(*values: tuple[float, Any], actors: int = 2) -> list[Any]:
    pool = pool_module.ActorPool([Method([]) for _ in range(actors)])
    return list(pool.map_unordered(lambda actor, value: actor.remote(value), values))


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition("DevkitWarning: ")[2] for line in capfd.readouterr().err.splitlines() if ".py:" in line]


def test_bare_results_in_another_order_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert mapped((1, 0.1), (3, 0.3), (2, 0.2), (4, 0.4)) == [0.1, 0.2, 0.3, 0.4]
    [line] = said(capfd)
    assert line.startswith(
        "ActorPool.map_unordered gives results as they are ready: no. 2 here came before that of value no. 2, and a "
        "bare float does not tell whose it is."
    ), line


def test_results_in_order_and_those_that_say_whose_they_are_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    assert mapped((1, 0.1), (2, 0.2), (3, 0.3)) == [0.1, 0.2, 0.3]
    assert mapped((2, ("b", 0.2)), (1, ("a", 0.1))) == [("a", 0.1), ("b", 0.2)]
    assert mapped((2, 0.2), (1, 0.1), actors=1) == [0.2, 0.1], "one after another"
    assert said(capfd) == []


def test_a_result_lives_no_longer_than_without(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rows:
        pass

    monkeypatch.setattr(ray, "get", lambda _ref, **_: Rows())
    pool = pool_module.ActorPool([Method([])])
    results = pool.map_unordered(lambda actor, value: actor.remote(value), [(1, None), (2, None)])
    kept = weakref.ref(next(results))
    gc.collect()
    assert kept() is None and len(list(results)) == 1
