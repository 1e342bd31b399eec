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


LOOP = """
while (groups := ray.get(buffer.sample.remote(4))) is None:
    ready = buffer.size.remote()
"""


def test_the_calls_of_a_loop_with_what_their_results_are_given_to() -> None:
    buffer = Handle()
    [loop] = ast.parse(LOOP).body
    assert asked_of.calls(loop, sys._getframe()) == [
        {"actor": "ac", "method": "sample", "line": 2, "answer": "groups"},
        {"actor": "ac", "method": "size", "line": 3, "answer": "ready"},
    ]
    assert buffer is not None
    [unknown] = ast.parse(f"{LOOP}    others[0].ask.remote()").body
    assert asked_of.calls(unknown, sys._getframe()) == [], "one of them cannot be told"
