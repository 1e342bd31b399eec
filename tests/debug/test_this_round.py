"""What a round of a loop comes to: which answers keep it going, and which values are of an earlier one."""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import Any

import pytest

from devkit.debug.inworker import polls
from tests.debug.test_asked_of import Handle

TWO = """
def wait(buffer, collector, step, ahead, rows):
    status = {"done": False}
    while True:
        ready = ray.get(buffer.count.remote(step)) >= 4
        if ready:
            if ray.get(collector.has_claim.remote(ahead)):
                return ray.get(buffer.pop.remote(step))
            sleep("claim")
            continue
        status = ray.get(collector.status.remote())
        if status["done"]:
            raise RuntimeError(status)
        sleep("data")
"""
BOTH = TWO.replace("raise RuntimeError(status)", "break")
LATER = """
def wait(buffer, collector, step, ahead, rows):
    while True:
        found = ray.get(collector.has_claim.remote(ahead))
        if not ray.get(buffer.count.remote(step)):
            sleep("data")
            continue
        if found:
            break
        sleep("claim")
"""
GROWS = """
def wait(buffer, collector, step, ahead, rows):
    while len(rows) < 4:
        buffer.add.remote(step)
        found = ray.get(collector.take.remote(ahead))
        rows.extend(found)
        sleep("data")
"""
EITHER = """
def wait(buffer, collector, step, ahead, rows):
    while True:
        if ray.get(buffer.count.remote(step)):
            if ray.get(collector.has_claim.remote(ahead)):
                break
        sleep("data")
"""
EACH = """
def wait(buffer, collector, step, ahead, rows):
    while True:
        for each in (buffer, collector):
            if ray.get(each.ready.remote()):
                return
        sleep("data")
"""
OWN = """
def wait(buffer, collector, step, ahead, rows):
    while True:
        ray.get(buffer.count.remote(step))
        if rows:
            break
        sleep("data")
"""


class Answers:
    def __init__(self, found: list[Any]) -> None:
        self.found = iter(found)

    def get(self, _: Any) -> Any:
        return next(self.found)


class Actor(Handle):
    def __getattr__(self, name: str) -> Any:
        return self

    def remote(self, *_: Any) -> None:
        return None


def at(text: str, answers: list[Any], where: str, number: int = 1) -> dict[str, Any]:
    """What is said of the loop where it sleeps the given time."""
    file = f"<{abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    found: list[dict[str, Any]] = []

    def sleep(name: str) -> None:
        frame: FrameType | None = sys._getframe().f_back
        assert frame is not None
        if name == where:
            found.append({**(polls.asking(frame) or {}), "around": polls.around(frame)})
        if len(found) == number:
            raise StopIteration

    names: dict[str, Any] = {"ray": Answers(answers), "sleep": sleep}
    exec(compile(text, file, "exec"), names)
    with pytest.raises(StopIteration):
        names["wait"](Actor(), Actor(), 4, 5, [])
    del linecache.cache[file]
    return found[-1]


def asked(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["method"], each["answer"]) for each in found.get("asked", [])]


def test_the_answer_that_keeps_the_loop_is_named_and_not_one_that_is_as_it_is_wanted() -> None:
    found = at(TWO, [0, {"done": False}, 4, False], "claim")
    assert found["asked"] == [
        {
            "actor": "ac",
            "method": "has_claim",
            "line": 7,
            "answer": "",
            "test": "ray.get(collector.has_claim.remote(ahead))",
            "values": {"ahead": "5"},
        }
    ]


def test_what_this_round_goes_by_is_not_what_the_loop_looks_at() -> None:
    found = at(TWO, [0, {"done": False}, 4, False], "claim")
    assert set(found["stale"]) == {"status", "status['done']"} and found["around"] is None, found
    assert at(BOTH, [0, {"done": False}, 4, False], "claim")["around"]["values"] == {}
    found = at(BOTH, [0, {"done": False}], "data")
    assert "stale" not in found and found["around"]["values"]["status['done']"] == "False"


@pytest.mark.parametrize(
    ("text", "answers", "where", "wanted"),
    [
        pytest.param(BOTH, [0, {"done": False}], "data", [("count", "ready"), ("status", "status")], id="either"),
        pytest.param(BOTH, [4, False], "claim", [("count", "ready"), ("has_claim", "")], id="two ways out"),
        pytest.param(LATER, [True, 0], "data", [("count", "")], id="what is further down is not come to"),
        pytest.param(LATER, [False, 4], "claim", [("has_claim", "found")], id="by its variable"),
        pytest.param(GROWS, [[]], "data", [("take", "found")], id="what the condition's list is made of"),
        pytest.param(EITHER, [4, False], "data", [("count", ""), ("has_claim", "")], id="one of two"),
        pytest.param(EACH, [False, False], "data", [], id="each of several"),
        pytest.param(OWN, [4], "data", [], id="none: it waits for its own"),
    ],
)
def test_which_answers_keep_it(text: str, answers: list[Any], where: str, wanted: list[tuple[str, str]]) -> None:
    found = at(text, answers, where)
    assert asked(found) == wanted, found
    assert "test" not in str(found.get("asked")) or len(wanted) == 1
