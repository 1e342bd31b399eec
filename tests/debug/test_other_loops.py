"""A lock of asyncio that outlives its event loop: the crash says which it is, whose it is and where it was made."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from devkit.debug.crash_page import clues_of
from devkit.debug.inworker import clues
from tests.debug.test_other_versions import raised_by

LINES = Path(__file__).read_text().splitlines()


class State:
    """One for the process."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(1)  # @made
        self.served = 0


def told(call: Any) -> list[str]:
    found = clues.found(clues.Failure(raised_by(call), "actor")).get("loops", [])
    assert list(clues_of({"loops": found})) == found
    return list(found)


async def generate(state: State) -> None:
    async with state.slots:
        await asyncio.sleep(0.001)
        state.served += 1


async def both(state: State) -> None:
    await asyncio.gather(generate(state), generate(state))


def test_a_semaphore_of_a_loop_that_has_closed_is_named_with_its_place() -> None:
    state = State()
    asyncio.run(both(state))
    made = next(at for at, line in enumerate(LINES, 1) if line.endswith("# @made"))
    [line] = told(lambda: asyncio.run(both(state)))
    assert line == (
        "`state.slots`, an asyncio.Semaphore, was first waited for in another event loop, which has closed by now: "
        f"each asyncio.run has a loop of its own; it is made at test_other_loops.py:{made} in State.__init__"
    )


def test_a_loop_that_lives_on_is_not_said_to_have_closed() -> None:
    loop, event = asyncio.new_event_loop(), asyncio.Event()

    async def wait() -> None:
        await event.wait()

    async def short() -> None:
        task = asyncio.create_task(wait())
        await asyncio.wait({task}, timeout=0.001)
        task.cancel()
        await asyncio.wait({task})

    loop.run_until_complete(short())
    [line] = told(lambda: asyncio.run(wait()))
    loop.close()
    assert line == (
        "`event`, an asyncio.Event, was first waited for in another event loop: each asyncio.run has a loop of its own"
    )


def test_an_error_that_only_says_so_tells_nothing() -> None:
    def fails() -> None:
        raise RuntimeError("my queue is bound to a different event loop")

    assert told(fails) == []
