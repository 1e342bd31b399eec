"""Futures that nothing can complete any more, and all others, which may be."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from devkit.debug.inworker import finding, forgotten, primitives


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgotten, "SECONDS", 0.0)
    monkeypatch.setattr(forgotten, "AGAIN", 0.0)


class Server:
    """Calls keep their futures by an id, which two of them may have in common."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[str, asyncio.Future[str]]] = {}

    async def execute(self, call_id: str) -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waiting[call_id] = (call_id, answer)
        return await answer


def test_a_future_that_another_one_has_replaced_is_never_done() -> None:
    async def main() -> list[str]:
        server = Server()
        calls = [asyncio.create_task(server.execute(each)) for each in ("a", "a", "b")]
        await asyncio.sleep(0)
        looks = [[each["what"] for each in primitives.describe({}, {}) if "execute" in each["call"]] for _ in range(2)]
        server.waiting["b"][1].set_result("done")
        assert await calls[2] == "done"
        for each in calls:
            each.cancel()
        assert looks[0] == ["an asyncio.Future that is not done"], "not at the first look"
        return sorted(looks[1])

    assert asyncio.run(main()) == [
        "an asyncio.Future that is never done (nothing of Python's holds it but who awaits it, as where another one "
        "has taken its place under its key)",
        "an asyncio.Future that is not done",
    ]


async def _of_a_sleep() -> None:
    await asyncio.sleep(100)


async def _of_an_event() -> None:
    await asyncio.Event().wait()


async def _of_a_stream() -> None:
    reader, writer = await asyncio.open_unix_connection(sock=SOCKETS[0])
    try:
        await reader.read(1)
    finally:
        writer.close()


SOCKETS: list[socket.socket] = []


@pytest.mark.parametrize("wait", [_of_a_sleep, _of_an_event, _of_a_stream])
def test_what_may_be_completed_is_not_forgotten(wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> bool:
        task: Any = asyncio.create_task(wait())
        for _ in range(10):  # the stream is made in some rounds
            await asyncio.sleep(0)
        forgotten.is_forgotten(task._fut_waiter)
        found = forgotten.is_forgotten(task._fut_waiter)
        task.cancel()
        return found

    one, other = socket.socketpair()
    with one, other:
        SOCKETS[:] = [one]
        assert asyncio.run(main()) is False


def test_a_variable_of_a_thread_may_complete_it() -> None:
    begun, end = threading.Event(), threading.Event()

    def serves(futures: list[Any]) -> None:
        answer = futures.pop()
        begun.set()
        end.wait()
        assert answer is not None

    async def main() -> bool:
        futures = [asyncio.get_running_loop().create_future()]

        async def asks(answers: list[Any]) -> None:
            await answers[0]

        task: Any = asyncio.create_task(asks(list(futures)))
        await asyncio.sleep(0)
        thread = threading.Thread(target=serves, args=(futures,))
        thread.start()
        begun.wait()
        forgotten.is_forgotten(task._fut_waiter)
        found = forgotten.is_forgotten(task._fut_waiter)
        end.set()
        thread.join()
        task.cancel()
        return found

    assert asyncio.run(main()) is False


def test_who_has_it_just_in_hand_may_complete_it() -> None:
    begun, end = threading.Event(), threading.Event()
    waiting: dict[str, Any] = {}

    def computes() -> str:
        begun.set()
        end.wait()
        return "done"

    def serves(loop: asyncio.AbstractEventLoop) -> None:
        waiting.pop("a").set_result(computes())
        loop.call_soon_threadsafe(lambda: None)

    async def asks() -> str:
        waiting["a"] = asyncio.get_running_loop().create_future()
        return str(await waiting["a"])

    async def main() -> tuple[bool, str]:
        task: Any = asyncio.create_task(asks())
        await asyncio.sleep(0)
        thread = threading.Thread(target=serves, args=(asyncio.get_running_loop(),))
        thread.start()
        begun.wait()
        forgotten.is_forgotten(task._fut_waiter)
        found = forgotten.is_forgotten(task._fut_waiter)
        end.set()
        answer = await task
        thread.join()
        return found, answer

    assert asyncio.run(main()) == (False, "done")


def test_of_what_the_collector_does_not_show_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: finding._FROZEN + 1)  # the program has frozen what it has
    loop = asyncio.new_event_loop()
    assert [forgotten.is_forgotten(each) for each in [loop.create_future()] * 2] == [False, False]
    loop.close()
