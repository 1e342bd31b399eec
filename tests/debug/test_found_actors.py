"""Actors that were made before with other arguments; and plain data, compared by its parts."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.debug.inworker import found_actors
from devkit.debug.inworker.plain_data import MOST, differing, parts
from tests.debug.conftest import PROGRAMS, Cluster, Job, mark

PROGRAM = "found_actors.py"


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (1, 2, [("", "1", "2")]),
        (1, 1.0, []),
        ([1, 2], (1, 2), []),
        ({3, 1}, {1, 3}, []),
        ({"a": {"b": [{"c": 1}]}}, {"a": {"b": [{"c": 2}]}}, [("['a']['b'][0]['c']", "1", "2")]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        (float("inf"), 1.0, [("", "inf", "1.0")]),
        (float("nan"), float("nan"), []),
        (object(), object(), []),
        ({"a": object(), "b": 1}, {"a": 3, "b": 2}, [("['b']", "1", "2")]),
        ({"api_key": "sk-1"}, {"api_key": "sk-2"}, []),
        ("a" * 5000, "b" * 5000, []),
        ([], [1], [("", "[]", "[1]")]),
        (list(range(1000)), list(range(1, 1001)), [(f"[{at}]", str(at), str(at + 1)) for at in range(MOST)]),
    ],
)
def test_only_what_surely_is_another_differs(before: Any, now: Any, found: list[tuple[str, str, str]]) -> None:
    assert differing(parts(before, "config"), parts(now, "config")) == found


@pytest.mark.parametrize("made", [list, set])
def test_long_texts_of_a_list_are_not_written_out(made: Callable[[list[str]], Any]) -> None:
    texts = made(["a" * 1_000_000, "b" * 1_000_000])
    tracemalloc.start()
    try:
        assert set(parts(texts, "prompts").values()) == {None}
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("made", [list, dict.fromkeys], ids=["list", "dict"])
def test_no_more_of_a_long_list_is_copied_than_is_compared(made: Callable[[range], Any]) -> None:
    rows = made(range(200_000))
    tracemalloc.start()
    try:
        assert len(parts(rows, "rows")) == MOST
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_what_an_actor_was_made_with_may_have_changed_since(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method may have set it: what it has now is not known."""
    monkeypatch.setattr(found_actors, "_told", set())
    monkeypatch.setitem(found_actors._made, "ab", found_actors._Made({"scale": "1.0"}, "job.py:3"))
    found_actors._compare("shared", {"scale": "0.5"}, "ab")
    [line] = [each for each in capfd.readouterr().err.splitlines() if "DevkitWarning" in each]
    assert line.endswith(" has no effect; it was made with scale = 1.0, and not 0.5")


def test_of_the_actors_of_others_no_more_are_kept_than_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = found_actors._Made({"scale": "1.0"}, "job.py:3").to_json().encode()
    monkeypatch.setattr(found_actors, "gcs", lambda: SimpleNamespace(internal_kv_get=lambda *_, timeout: made))
    monkeypatch.setattr(found_actors, "MOST", 2)
    monkeypatch.setattr(found_actors, "_made", {})
    monkeypatch.setattr(found_actors, "_looks", {})
    for number in range(4):
        found_actors._compare(f"actor {number}", {"scale": "1.0"}, f"id {number}")
    assert list(found_actors._made) == ["id 0", "id 1"]


@pytest.mark.verdicts
def test_who_gives_an_actor_that_is_there_other_arguments_is_told(cluster: Cluster) -> None:
    job = Job(cluster, "--", sys.executable, str(PROGRAMS / PROGRAM))
    try:
        assert job.end() == 0, job.out
    finally:
        job.kill()
    lines = [line[line.index("/") :] for line in job.out.splitlines() if "DevkitWarning" in line]
    at = {name: f"{PROGRAM}:{mark(PROGRAM, name)}" for name in ("line", "made", "worker", "driver")}
    head = f"{PROGRAMS / PROGRAM}:{mark(PROGRAM, 'line')}: DevkitWarning: the actor 'shared' was made before, at "
    head += f"{at['line']}, called at {at['made']}: what it is given here (called at "
    assert sorted(lines) == sorted(
        [
            f"{head}{at['worker']}) has no effect; it was made with scale = 1.0, and not 0.5",
            f"{head}{at['driver']}) has no effect; it was made with config['shaping'] = True, and not False",
        ]
    )
    assert "sk-a" not in job.out
