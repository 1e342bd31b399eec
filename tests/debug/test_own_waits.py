"""What is easily said wrong of waits within a process: who holds what, and what is behind a wait of a library's."""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import contextlib
import linecache
import multiprocessing
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from devkit.debug.inworker import counterparts, primitives, ray_queues, waits
from devkit.debug.inworker.words import ASLEEP
from tests.debug.conftest import eventually
from tests.debug.test_primitives import in_a_loop, run, seen

Document = dict[str, Any]
__all__ = ["run"]


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_who_waits_for_what_it_has_itself(kind: str) -> None:
    def made() -> list[asyncio.Task[None]]:
        mine: Any = asyncio.Lock() if kind == "lock" else asyncio.Semaphore(2)

        async def visits(depth: int) -> None:
            async with mine:
                if depth:
                    await visits(depth - 1)

        async def wants() -> None:
            async with mine:
                pass

        return [asyncio.create_task(each) for each in (visits(3), visits(3), wants())]

    own, other = in_a_loop(made)
    assert (own["free"], own["count"], other["free"], other["count"]) == (False, 2, False, 1)
    assert own["holder"] == own["thread"] == other["holder"] and own["call"].endswith("visits"), own
    assert other["call"].endswith("wants") and other["holder_call"].endswith("visits"), other


@pytest.mark.parametrize("holders", [1, 2])
def test_a_permit_may_come_back_from_any_of_its_holders(holders: int) -> None:
    def made() -> list[asyncio.Task[None]]:
        permits = asyncio.Semaphore(holders)

        async def works() -> None:
            async with permits:
                await asyncio.sleep(60)

        async def wants() -> None:
            async with permits:
                pass

        return [*(asyncio.create_task(works()) for _ in range(holders)), asyncio.create_task(wants())]

    [found] = in_a_loop(made)
    assert found["holder_call"].endswith("works") and found["shared"] is (holders > 1)


def test_who_waits_for_a_second_permit_while_another_may_give_one_back_is_no_holder() -> None:
    def made() -> list[asyncio.Task[None]]:
        permits = asyncio.Semaphore(2)

        async def enters() -> None:
            await permits.acquire()

        async def works() -> None:
            await enters()  # by another function, so it is not seen to hold one
            await asyncio.sleep(60)

        async def visits() -> None:
            async with permits, permits:
                pass

        return [asyncio.create_task(each) for each in (works(), visits())]

    [found] = in_a_loop(made)
    assert not found["free"] and "holder" not in found


def test_a_coroutine_that_runs_in_another_thread_is_not_unbegun(run: Any) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    end = asyncio.Event()

    async def answers() -> None:
        await end.wait()

    def asks() -> None:
        asyncio.run_coroutine_threadsafe(answers(), loop).result()

    run(asks)
    eventually(lambda: any(each["call"].endswith("answers") for each in primitives.describe({}, {})), "it runs", 20)
    assert seen(primitives.describe, "asks")["what"] == "a concurrent.futures.Future that is not done"
    loop.call_soon_threadsafe(end.set)
    eventually(lambda: all(each.done() for each in asyncio.all_tasks(loop)), "it ends", 20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()


def test_who_was_notified_waits_for_the_lock(run: Any) -> None:
    changed = threading.Condition()

    def waits() -> None:
        with changed:
            changed.wait()

    run(waits)
    assert seen(primitives.describe, "waits")["what"] == "a threading.Condition to be notified"
    with changed:
        changed.notify()
        assert _notified("waits") == "the lock of a threading.Condition, which has notified it"


def _notified(name: str) -> str:
    def look() -> str | None:
        what = str(seen(primitives.describe, name)["what"])
        return what if "lock" in what else None

    found: str = eventually(look, "the lock", 20)
    return found


def test_a_coroutine_that_was_notified_waits_for_the_lock() -> None:
    def made() -> list[asyncio.Task[None]]:
        changed = asyncio.Condition()

        async def waits() -> None:
            async with changed:
                await changed.wait_for(lambda: False)

        async def notifies() -> None:
            async with changed:
                changed.notify_all()
                await asyncio.sleep(60)

        return [asyncio.create_task(waits()), asyncio.create_task(notifies())]

    found = [each for each in in_a_loop(made) if each["call"].endswith("waits")]
    assert [each["what"] for each in found] == ["the lock of an asyncio.Condition, which has notified it"]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (concurrent.futures.wait, "concurrent.futures.wait, of which 2 of 3 are not done"),
        (
            lambda parts: list(concurrent.futures.as_completed(parts)),
            "concurrent.futures.as_completed, of which 2 are not done",
        ),
    ],
)
def test_futures_of_threads_that_are_waited_for_together(run: Any, how: Callable[..., object], what: str) -> None:
    end = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(3) as pool, contextlib.ExitStack() as last:
        last.callback(end.set)
        parts = [pool.submit(end.wait) for _ in range(2)]
        parts.append(pool.submit(len, ""))
        parts[2].result(20)

        def waits() -> None:
            how(parts)

        run(waits)
        assert seen(primitives.describe, "waits")["what"] == what


def test_coroutines_that_are_waited_for_one_by_one() -> None:
    def made() -> list[asyncio.Task[None]]:
        async def sleeps() -> None:
            await asyncio.sleep(60)

        async def takes() -> None:
            for each in asyncio.as_completed([sleeps(), sleeps()]):
                await each

        async def waits() -> None:
            await asyncio.wait_for(sleeps(), 50)

        return [asyncio.create_task(takes()), asyncio.create_task(waits())]

    found = {each["call"].rpartition(".")[2]: each["what"] for each in in_a_loop(made)}
    assert found["takes"] == "the next of asyncio.as_completed"
    # from Python 3.12 on, what is waited for is in the same task, and asleep: `in_a_loop` leaves it out
    assert found.get("waits", ASLEEP) in ("asyncio.wait_for, for at most 50 s", ASLEEP), found


@pytest.mark.parametrize(
    ("wait", "how", "body"),
    [
        ("self.done.wait()", "set", "loop.call_soon_threadsafe(self.done.set)"),
        ("self.gate.acquire()", "released", "with self.gate: pass"),
        ("self.rows.get()", "put into", "pool.submit(self.rows.put, 1)"),
        ("self.rows.get()", "", "Thread(target=fills, args=(self.rows,))"),
        ("self.rows.get()", "nowhere", "self.others.put(1)"),
    ],
)
def test_what_could_end_a_wait_without_being_called_by_name(wait: str, how: str, body: str) -> None:
    text = f"def here(self):\n    yield\n\ndef other(self, loop, pool):\n    {body}\n"
    name = f"<counterparts {body}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    frame = space["here"](None).gi_frame
    found = counterparts.of(ast.parse(wait).body[0], frame, {})
    if not how:
        assert found is None, "it is handed on, and may be filled by another name"
    else:
        assert found is not None and [each["function"] for each in found["at"]] == ["other"] * (how != "nowhere")
        assert found["how"] in (how, "put into")


@pytest.mark.parametrize(
    ("made", "wait", "told"),
    [
        (lambda: threading.Barrier(2), "it.wait()", False),
        (threading.Event, "it.wait()", True),
        (lambda: multiprocessing.get_context("fork").Lock(), "it.acquire()", True),
        (concurrent.futures.Future, "it.get()", False),
    ],
)
def test_of_what_nobody_sets_or_fills_no_line_is_looked_for(made: Any, wait: str, told: bool) -> None:
    """Who waits at a barrier is let go by others that wait there."""
    text = "def here(it):\n    yield\n\ndef other(it):\n    it.set(), it.put(1), it.release()\n"
    name = f"<of nobody {wait} {told}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    coroutine = space["here"](made())
    next(coroutine)
    found = counterparts.of(ast.parse(wait).body[0], coroutine.gi_frame, {})
    assert (found is not None) == told, found


def test_a_child_of_asyncio_and_its_output() -> None:
    async def main() -> dict[str, str]:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None and child.stdin is not None

        async def reads(stream: asyncio.StreamReader) -> None:
            await stream.read()

        async def ends() -> None:
            await child.wait()

        tasks = [asyncio.create_task(reads(child.stdout)), asyncio.create_task(ends())]
        for _ in range(20):
            await asyncio.sleep(0)
        found = {each["call"].rpartition(".")[2]: str(each["what"]) for each in primitives.describe({}, {})}
        child.stdin.close()
        await asyncio.gather(*tasks)
        return {name: what.replace(str(child.pid), "PID") for name, what in found.items()}

    found = asyncio.run(main())
    assert (found["reads"], found["ends"]) == ("data from a stream of asyncio", "the end of child process PID")


def test_a_task_that_is_awaited_is_named() -> None:
    def made() -> list[asyncio.Task[None]]:
        async def sleeps() -> None:
            await asyncio.sleep(60)

        async def asks() -> None:
            await asyncio.create_task(sleeps(), name="inner")

        return [asyncio.create_task(asks())]

    found = in_a_loop(made)[0]
    assert found["what"].startswith("the asyncio task inner, which is at test_own_waits.py:"), found


@pytest.mark.parametrize(
    ("how", "ends"),
    [
        ("await asks()", False),
        ("await asyncio.wait_for(asks(), 60)", True),
        ("await asyncio.wait_for(asks(), None)", False),
        ("async with asyncio.timeout(60):\n    await asks()", True),
        ("async with asyncio.timeout(None):\n    await asks()", False),
    ],
)
def test_a_coroutine_that_a_time_out_ends_does_not_wait_for_ever(how: str, ends: bool) -> None:
    """Two actors that await each other are in no deadlock where one gives up after a minute."""

    class Reference:
        def task_id(self) -> bytes:
            return b"\x07" * 24

    class Kept:
        object_ref = Reference()

    async def asks() -> None:
        future, kept = asyncio.get_running_loop().create_future(), Kept()
        future.add_done_callback(lambda _: kept)
        await future

    async def main() -> list[Document]:
        known: dict[str, Any] = {"asyncio": asyncio, "asks": asks}
        body = "\n".join(f"    {line}" for line in how.splitlines())
        exec(f"async def waits():\n{body}", known)
        task = asyncio.create_task(known["waits"]())
        for _ in range(5):
            await asyncio.sleep(0)
        found = waits.of_process({}, {})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found

    assert [each["ends"] for each in asyncio.run(main())] == [ends]


def test_queues_of_ray_from_which_a_thread_takes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    class Id:
        def __init__(self, name: str) -> None:
            self.name = name

        def hex(self) -> str:
            return self.name

    class Queue:
        __module__ = "ray.util.queue"

        def __init__(self, name: str) -> None:
            self.actor = type("Handle", (), {})()
            self.actor._ray_actor_id = Id(name)

        def get(self) -> int:
            raise AssertionError("nothing of it runs")

        def put(self, frames: list[Any]) -> Any:
            return ray_queues.taken_from(frames, [sys._getframe()])

    class Stage:
        def __init__(self) -> None:
            self.source, self.sink, self.spare = Queue("a"), Queue("b"), {"x": 1}

        def run(self, other: Any) -> Any:
            if other is None:
                self.spare.get("x")
                return other.get()  # takes
            return self.sink.put([sys._getframe()])

        def next(self) -> Any:
            return self.source.get()  # in another method

    monkeypatch.setattr(ray_queues, "FILE", __file__)
    found = Stage().run(Queue("c"))
    lines = {
        each["actor"]: (linecache.getline(__file__, each["at"]["line"]).strip(), each["at"]["function"])
        for each in found
    }
    assert lines["c"][0] == "return other.get()  # takes"
    assert lines["a"] == ("return self.source.get()  # in another method", "Stage.next") and set(lines) == {"a", "c"}
    monkeypatch.undo()
    assert Stage().run(Queue("c")) == [], "it is in no queue of Ray"


@pytest.mark.parametrize(
    ("made", "wait", "at"),
    [
        (asyncio.Queue, "it.join()", ["other"]),
        (lambda: threading.Thread(target=int), "it.join()", None),
        (lambda: ",", "it.join(['a'])", None),
    ],
)
def test_who_marks_the_items_of_a_queue_as_done_could_end_its_join(made: Any, wait: str, at: list[str] | None) -> None:
    text = "def here(it):\n    yield\n\ndef other(it):\n    it.task_done()\n"
    name = f"<of a join {wait} {at}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    coroutine = space["here"](made())
    next(coroutine)
    found = counterparts.of(ast.parse(wait).body[0], coroutine.gi_frame, {})
    assert (found and [each["function"] for each in found["at"]]) == at


def test_an_event_that_another_event_loop_has_set_is_said_to_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray runs the methods of each concurrency group on a loop of its own."""
    mine, other, event = asyncio.new_event_loop(), asyncio.new_event_loop(), asyncio.Event()

    def forever(loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        loop.close()

    for loop in (mine, other):
        threading.Thread(target=forever, args=(loop,), daemon=True).start()

    async def generate() -> None:
        await event.wait()

    async def resume() -> None:
        event.set()

    def told() -> list[str]:
        return [str(each["what"]) for each in primitives.describe({}, {}) if each["call"].endswith("generate")]

    waits = asyncio.run_coroutine_threadsafe(generate(), mine)
    eventually(lambda: told() == ["an asyncio.Event that is not set"], "it waits", 20)
    asyncio.run_coroutine_threadsafe(resume(), other).result(20)
    assert told() == [primitives.AN_EVENT]
    with monkeypatch.context() as patched:
        patched.setattr(primitives.told, "is_asleep", lambda loop: False)
        assert told() == [primitives.SET]
    mine.call_soon_threadsafe(lambda: None)
    waits.result(20)
    for loop in (mine, other):
        loop.call_soon_threadsafe(loop.stop)
    eventually(lambda: mine.is_closed() and other.is_closed(), "both have ended", 20)
