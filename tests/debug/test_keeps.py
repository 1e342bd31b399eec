"""What an actor and a function keep, in short, without running or fetching anything of theirs."""

from __future__ import annotations

import asyncio
import collections
import sys
import threading
from typing import Any

import pytest

from devkit.debug.inworker import keeps


class Request:
    def __init__(self, need: int) -> None:
        self.need = need
        self.done = threading.Event()
        self.api_key = "sk-hidden-hidden"

    def __repr__(self) -> str:
        raise AssertionError("it is the program's code")

    @property
    def room(self) -> int:
        raise AssertionError("a property is code, too")


def test_plain_data_as_it_is_and_containers_by_their_first_items() -> None:
    assert keeps.brief({"a": 1, "b": [1, 2, 3, 4]}) == "{'a': 1, 'b': [1, 2, 3, 4]}"
    assert keeps.brief(list(range(100))) == "[0, 1, 2, ... 97 more]"
    assert keeps.brief({number: str(number) for number in range(12)}) == "{0: '0', 1: '1', 2: '2', ... 9 more}"
    assert keeps.brief(collections.deque([(1036, threading.Event())])) == "[(1036, <Event not set>)]"
    assert (
        keeps.brief({1, 2}) == "{1, 2}"
        and keeps.brief(()) == "()"
        and keeps.brief((threading.Event(),)) == ("(<Event not set>,)")
    )


def test_objects_of_the_programs_classes_by_their_attributes() -> None:
    assert keeps.brief(Request(7)) == "Request(need=7, done=<Event not set>, api_key=<redacted>)"
    assert keeps.brief([Request(7)] * 5) == (
        "[" + "Request(need=7, done=<Event not set>, api_key=<redacted>), " * 3 + "... 2 more]"
    )
    assert keeps.brief(sys) is None and keeps.brief(object()) is None and keeps.brief(len) is None


def test_a_class_of_the_drivers_script_is_the_programs_where_its_module_is_not() -> None:
    """A worker's `__main__` is Ray's."""
    text = (
        "from dataclasses import dataclass\n\nclass Pool:\n    def __init__(self):\n        self.free = []\n\n"
        "@dataclass\nclass Row:\n    uid: int\n"
    )
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "/job/train.py", "exec"), space)
    assert keeps.brief([space["Pool"](), space["Row"](3)]) == "[Pool(free=[]), Row(uid=3)]"


def test_an_object_that_holds_itself_has_an_end() -> None:
    own: list[Any] = [1]
    own.append(own)
    text = keeps.brief(own)
    assert text is not None and text.startswith("[1, [1, [1, ") and len(text) < 100


def test_arrays_by_their_shape() -> None:
    torch = pytest.importorskip("torch")
    assert keeps.brief({"w": torch.zeros(3, 4)}) == "{'w': tensor [3, 4] float32}"
    assert keeps.brief(torch.nn.Linear(2, 2)) == "Linear of 2 parameters: weight [2, 2], bias [2]"


def test_futures() -> None:
    async def main() -> str | None:
        return keeps.brief({0: asyncio.get_running_loop().create_future()})

    assert asyncio.run(main()) == "{0: <Future pending>}"


def test_the_variables_of_a_function() -> None:
    def serve(rid: str, password: str) -> dict[str, Any]:
        future, loop, text = None, sys, "x" * 300
        known = keeps.of_function(sys._getframe(), told_already=["rid"])
        assert (rid, future, loop, text, password) is not None
        return known

    known = serve("11", "hunter2")
    assert list(known) == ["text", "future", "password"], known
    assert known["future"] == "None" and known["password"] == "<redacted>" and len(known["text"]) <= keeps.LENGTH


def test_where_there_is_no_actor_it_keeps_nothing() -> None:
    assert keeps.of_actor() == {}


def test_of_a_loop_that_asks_a_change_is_seen_where_it_is_not_shown() -> None:
    """A text that grows, and the last of many counters: what is shown of both stays the same."""
    texts = ["a" * 200, "a" * 201]
    counters = [dict.fromkeys(range(9), 0), {**dict.fromkeys(range(9), 0), 8: 1}]
    for before, after in (texts, counters):
        assert keeps.brief(before) == keeps.brief(after) and keeps.content(before) != keeps.content(after)


def test_an_ordered_dictionary_in_its_own_order() -> None:
    """The dictionary below it keeps the order in which the keys came."""
    kept = collections.OrderedDict((key, number) for number, key in enumerate("abcd"))
    kept.move_to_end("a")
    assert keeps.brief(kept) == "{'b': 1, 'c': 2, 'd': 3, ... 1 more}"


class Key:
    """Whose hash is code of the program's."""

    runs = 0

    def __hash__(self) -> int:
        Key.runs += 1
        return 1


def test_of_an_ordered_dictionary_whose_order_is_the_programs_code_to_find_no_order_is_shown() -> None:
    kept = collections.OrderedDict({Key(): 1})
    before = Key.runs
    assert (keeps.brief(kept), Key.runs) == ("OrderedDict of 1", before)
