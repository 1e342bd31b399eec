"""Which loops nothing inside of them ends, read from the text around the line of a frame."""

from __future__ import annotations

import linecache
import textwrap
from types import GeneratorType
from typing import Any

import pytest

from devkit.debug.inworker.flags import endless

SHELL = """
class Other:
    def stop(self):
        self.running = False

class Worker:
    def __init__(self):
        self.running, self.done = True, Event()

    def stop(self):
        self.running = False
        self.done.set()

    def work(self):
        return self.{touches}

    def run(self):
{body}

{beside}

def must(value):
    if not value:
        raise ValueError

def checked(value):
    must(value)
    return value

class Event:
    def set(self):
        pass

    def is_set(self):
        return False
"""
PLAIN = "while self.running:\n    yield\n"


def found(body: str, touches: str = "running", beside: str = "", base: str = "") -> dict[str, Any] | None:
    """Of a worker that stands at the `yield` of its `run`."""
    text = SHELL.format(body=textwrap.indent(body, " " * 8), touches=touches, beside=beside)
    text = text.replace("class Worker:", f"class Worker({base}):") if base else text
    name = f"<flags {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    run: GeneratorType[None, None, None] = space["Worker"]().run()
    next(run)
    return endless(run.gi_frame)


@pytest.mark.parametrize(
    ("body", "loop", "by"),
    [
        (PLAIN, "while self.running", ["stop"]),
        ("while not self.done.is_set():\n    yield\n", "while not self.done.is_set()", ["stop"]),
        ("while True:\n    yield\n", "while True", []),
        ("while True:\n    yield\n    self.done.wait(timeout=1)\n", "while True", []),
        ("while True:\n    for each in range(3):\n        yield\n        break\n", "while True", []),
        ("while self.running:\n    while self.work():\n        yield\n        break\n", "while self.running", ["stop"]),
    ],
)
def test_what_only_another_call_ends(body: str, loop: str, by: list[str]) -> None:
    known = found(body)
    assert known is not None and known["loop"] == loop and [each["function"] for each in known["by"]] == by


def test_its_values_and_lines() -> None:
    known = found(PLAIN)
    assert known is not None and known["values"] == {"self.running": "True"}
    assert known["by"] == [{"line": 10, "function": "stop"}]


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n    yield\n    break\n",
        "while True:\n    for each in range(3):\n        yield\n    if self.work():\n        return\n",
        "while self.running:\n    yield\n    raise ValueError\n",
        "rows = iter([1, 2])\nwhile True:\n    yield next(rows)\n",
        "while True:\n    yield\n    sys.exit(0)\n",
        "rows = [1, 2]\ntry:\n    while True:\n        yield rows.pop()\nexcept IndexError:\n    pass\n",
        "while self.running:\n    yield\n    self.running = False\n",
        "while self.running:\n    yield\n    self.stop()\n",
        "while self.running and self.work():\n    yield\n",
        "while True:\n    yield\n    assert self.work()\n",
        "rows = [1]\nwhile True:\n    yield rows.pop()\n",
        "while True:\n    yield\n    self.done.get(timeout=1)\n",
        "while True:\n    yield checked(self.work())\n",
        "while self.running:\n    yield\n    tell(self)\n",
        "while not self.done.is_set():\n    yield\n    Watcher(self.done)\n",
        "while self.running:\n    yield\n    self.__dict__.update(running=False)\n",
        "while len([1]) < 2:\n    yield\n",
        "for each in range(3):\n    yield\n",
        "yield\n",
    ],
)
def test_what_may_end_by_itself(body: str) -> None:
    assert found(body) is None


@pytest.mark.parametrize(
    "shell",
    [
        {"touches": "stop"},  # somebody may call it here
        {"beside": "def end(worker):\n    worker.running = False\n"},
        {"beside": "def end(worker):\n    setattr(worker, 'running', False)\n"},
        {"base": "Other"},
    ],
)
def test_what_others_of_its_file_may_end(shell: dict[str, str]) -> None:
    assert found(PLAIN, **shell) is None
