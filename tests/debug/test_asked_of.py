"""Which actors a loop asks, and what of these only other methods add to."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from typing import Any

from devkit.debug.inworker import asked_of


class Id:
    def hex(self) -> str:
        return "ac"


class Handle:
    def __init__(self) -> None:
        self._ray_actor_id = Id()


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


class Buffer:
    def __init__(self) -> None:
        self.groups: list[int] = []
        self.size, self.version = 4, 0

    @wrapped
    def add(self, group: int) -> None:
        self.groups.append(group)

    def sample(self, n: int) -> list[int] | None:
        if len(self.groups) < n or self.size < n:
            return None
        self.groups.remove(1)
        return self.groups[:n]

    def step(self) -> int:
        self.version += 1
        return self.version


class RaysOwn(Buffer):
    """As Ray makes one of it, with its name."""


RaysOwn.__name__ = "Buffer"


def test_what_a_method_reads_and_only_others_add_to() -> None:
    line = inspect.getsource(sys.modules[__name__]).splitlines().index("        self.groups.append(group)") + 1
    found = asked_of.growing(RaysOwn())
    assert found == {
        "file": __file__,
        "methods": {"sample": {"reads": ["groups"], "in": [{"line": line, "function": "Buffer.add"}]}},
    }
    assert asked_of.growing(Id())["methods"] == {}


class Pending:
    def __init__(self) -> None:
        self.calls: dict[int, str] = {}

    def begin(self, number: int) -> None:
        self.calls[number] = "begun"

    def end(self, number: int) -> None:
        self.calls.pop(number)

    def many(self) -> int:
        return len(self.calls)


def test_what_takes_from_it_may_be_what_is_missing_too() -> None:
    found = asked_of.growing(Pending())["methods"]["many"]
    assert found["reads"] == ["calls"] and found["takes"]
    assert [each["function"] for each in found["in"]] == ["Pending.begin", "Pending.end"]


LOOP = """
while (groups := ray.get(buffer.sample.remote(4))) is None:
    ready = buffer.size.remote()
    others[0].ask.remote()
"""


def test_the_calls_that_keep_a_loop_with_what_their_results_are_given_to() -> None:
    buffer = Handle()
    [loop] = ast.parse(LOOP).body
    assert isinstance(loop, ast.While)
    assert asked_of.calls(loop, sys._getframe()) == [
        {"actor": "ac", "method": "sample", "line": 2, "answer": "groups"},
    ]
    assert buffer is not None
    [unknown] = ast.parse(LOOP.replace("is None", "is None or others[0].ask.remote()")).body
    assert isinstance(unknown, ast.While)
    assert asked_of.calls(unknown, sys._getframe()) == [], "one of them cannot be told"
