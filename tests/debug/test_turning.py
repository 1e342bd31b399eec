"""Which loops come round without getting on, in threads that compute."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devkit.debug.inworker import locks, turning
from tests.debug.conftest import eventually

Document = dict[str, Any]
OVER = threading.Event()


def parses() -> None:
    at, text = 2, "{}x"
    while at < len(text):
        char = text[at]
        if char in "{}":
            at += 1
        if OVER.is_set():
            return


def split(rows: list[int], size: int) -> Iterator[list[int]]:
    start = 0
    while start < len(rows):
        yield rows[start : start + size]
        start += size


def empties() -> None:
    for part in split([1, 2, 3], 0):
        for _ in range(3):
            len(part)
        if part or OVER.is_set():
            return


def spins() -> None:
    world = [0]
    threading.Thread(target=lambda: (OVER.wait(), world.append(1)), daemon=True).start()
    while len(world) < 2:
        pass


def counts() -> None:
    n = 0
    while n < 10**9 and not OVER.is_set():
        n += 1


def gets_on() -> None:
    n = 0
    while n < 10**12:
        n += 1
        if OVER.is_set():
            return


def calls() -> None:
    """Many short calls, each of which gets on."""
    while not OVER.is_set():
        for part in split([1, 2, 3], 3):
            sum(part)


class Sampler:
    def __init__(self) -> None:
        self._rows: list[int] = []
        self.text = "a" * 100

    @property
    def done(self) -> int:
        return len(self._rows)

    def asks_a_property(self) -> None:
        total = 10**12
        while self.done < total:
            self._rows = [*self._rows, 1][-9:]
            if OVER.is_set():
                return

    def writes_a_long_text(self) -> None:
        while len(self.text) < 10**9:
            self.text += "a"
            if OVER.is_set():
                return


def works(seconds: float = 60.0) -> None:
    """In one call."""
    end = time.monotonic() + seconds
    while not OVER.is_set() and time.monotonic() < end:
        sum(range(1000))


def one_long_turn_in_one_line() -> None:
    done = 0
    # fmt: off
    while done < 3: works(); done += 3  # noqa: E701, E702
    # fmt: on


async def collects() -> int:
    while not OVER.is_set():
        for _ in range(200):
            sum(range(1000))
        await asyncio.sleep(0.002)
    return 3


def awaits_in_one_turn() -> None:
    async def main() -> None:
        done = 0
        while done < 3:
            done += await collects()

    asyncio.run(main())


class Slow:
    """Of which the end takes long."""

    def __enter__(self) -> None:
        works(0.02)

    def __exit__(self, *_: object) -> None:
        works()


def leaves_a_with() -> None:
    done = 0
    while done < 3:
        with Slow():
            works(0.02)
            done += 3


def parts() -> Iterator[int]:
    while not OVER.is_set():
        yield sum(range(20_000))


def yields_from_in_one_turn() -> None:
    def rows() -> Iterator[int]:
        done = 0
        while done < 3:
            yield from parts()
            done += 3

    for each in rows():
        sum(range(each % 20_000))


def waits() -> None:
    n = 0
    while n < 3:
        OVER.wait()
        n += 3


@pytest.fixture(autouse=True)
def over() -> Iterator[None]:
    OVER.clear()
    yield
    OVER.set()


def found_in(call: Callable[[], None], wanted: bool) -> list[Document]:
    """A thread that has had no core meanwhile is looked at again."""
    thread = threading.Thread(target=call, name=call.__name__, daemon=True)
    thread.start()
    _, names = locks.innermost("devkit")
    found: list[Document] = []
    if wanted:
        found = eventually(lambda: turning.describe(names, "MainThread"), call.__name__)
    else:
        found = turning.describe(names, "MainThread")
    OVER.set()
    thread.join()
    return found


@pytest.mark.parametrize(
    ("call", "loop", "values", "function"),
    [
        (parses, "while at < len(text)", {"at": "2", "text": "'{}x'"}, "parses"),
        (empties, "while start < len(rows)", {"start": "0", "rows": "[1, 2, 3]"}, "split"),
        (spins, "while len(world) < 2", {"world": "[0]"}, "spins"),
    ],
)
def test_what_comes_round_and_stays(call: Any, loop: str, values: dict[str, str], function: str) -> None:
    [found] = found_in(call, wanted=True)
    assert (found["loop"], found["values"], found["at"]["function"]) == (loop, values, function)


@pytest.mark.parametrize(
    "call",
    [
        *(counts, gets_on, calls, waits, Sampler().asks_a_property, Sampler().writes_a_long_text),
        *(one_long_turn_in_one_line, awaits_in_one_turn, yields_from_in_one_turn, leaves_a_with),
    ],
)
def test_what_gets_on_or_waits_is_none(call: Any) -> None:
    assert found_in(call, wanted=False) == []
