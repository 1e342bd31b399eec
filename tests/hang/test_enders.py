"""Calls that are queued behind the one that waits: what would end that wait, and what shares its concurrency group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from devkit.debug.inworker import waits
from devkit.hang.answers import read_sample
from devkit.hang.diagnose import diagnose
from tests.hang.jobs import NOW, TRAIN, answer, driver, facts, verdict
from tests.hang.test_calls import actor, actor_id

Document = dict[str, Any]
AT = {"file": TRAIN, "line": 26, "function": "Node.pause"}


def node(
    what: str, how: str = "notified", by: str = "Node.generate", *, free: bool = False, **changes: Any
) -> Document:
    inner = {"thread": "t", "call": "pause", "at": AT, "what": what, "count": 4, "free": free}
    ends = {"what": "self.cond", "how": how, "at": [{"line": 22, "function": by}]}
    stacks = [{"thread": "t", "lines": [{"at": AT, "text": "self.cond.wait()", "values": {}, "ends": ends}]}]
    made = actor("b")
    made["facts"] |= facts(None, 26, "Node.pause", primitives=[inner], statements=stacks)
    made["facts"] |= {"concurrency": 4, "actor_id": actor_id("b"), **changes}
    return made


def test_nobody_is_suspected_of_a_permit_whose_release_is_queued() -> None:
    gate = node("a threading.Semaphore with no permit left", "released", "Node.release", free=True)
    suspects = "no call that is under way is seen to hold a permit"
    assert suspects in verdict([driver(), gate], patience=1.0).sentence
    assert suspects in verdict([driver(), gate], patience=1.0, queued={actor_id("b"): ("Node.pause",)}).sentence
    text = verdict([driver(), gate], patience=1.0, queued={actor_id("b"): ("Node.release",) * 2}).sentence
    assert suspects not in text and "; 2 calls of Node.release, where it is released, are queued there" in text, text


GROUPS = {"pause": "control", "abort": "control", "load": "control", "generate": "generate"}
CONDITION = "a threading.Condition to be notified"


def said(*queued: str, before: tuple[str, ...] | None = None, **changes: Any) -> str:
    made = node(CONDITION, **{"grouped": True, "method_groups": GROUPS, **changes})
    first = read_sample(answer([driver(), made]), queued={actor_id("b"): queued if before is None else before})
    last = read_sample(answer([driver(), made], NOW + 2.0), queued={actor_id("b"): queued})
    return diagnose(first, last, 1.0).sentence


def test_a_call_that_is_queued_in_the_concurrency_group_of_the_one_that_waits() -> None:
    text = said("Node.abort", "Node.list")
    assert (
        f"{CONDITION} at {TRAIN}:26 in Node.pause; 4 of its calls wait there; 1 call of Node.abort, which its class "
        "puts into the same concurrency group, 'control', is queued there"
    ) in text, text
    text = said("Node.abort", "Node.abort", "Node.load")
    assert "; 3 calls of Node.abort and Node.load, which its class puts into the same concurrency group" in text, text
    assert "'control', are queued there" in text, text


def test_of_other_groups_and_of_calls_that_have_come_just_now_nothing_is_said() -> None:
    for queued in ((), ("Node.generate",), ("Node.other",)):
        assert "concurrency group" not in said(*queued), queued
    assert "concurrency group" not in said("Node.abort", before=())
    assert "concurrency group" not in said("Node.abort", method_groups={})


def test_a_call_that_would_end_it_and_is_in_its_group_is_named_once() -> None:
    text = said("Node.generate", method_groups={**GROUPS, "generate": "control"})
    assert (
        "; 1 call of Node.generate, where it is notified, is queued there; its class puts it into the same concurrency "
        "group, 'control'"
    ) in text, text


def test_the_groups_of_an_actors_methods_are_those_of_its_class() -> None:
    class Base:
        def pause(self) -> None: ...
        def generate(self) -> None: ...

    class Engine(Base):
        size = 3

        def pause(self) -> None: ...
        def load(self) -> None: ...

    vars(Base.generate)[waits._GROUP] = "generate"
    vars(Base.pause)[waits._GROUP] = "old"
    vars(Engine.pause)[waits._GROUP] = "control"
    known = waits._groups(SimpleNamespace(actors={"a": Engine()}))
    assert known == {"grouped": True, "method_groups": {"pause": "control", "generate": "generate"}}
    assert waits._groups(SimpleNamespace(actors={"a": 3})) == {"grouped": False, "method_groups": {}}
