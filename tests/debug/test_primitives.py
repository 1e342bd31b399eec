"""What threads and coroutines of a process wait for among themselves, and what a loop that sleeps looks at."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import queue
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import awaited, locks, polls, pools, primitives
from devkit.debug.inworker.words import ASLEEP, READERS_TURN, UNREAD
from tests.debug.conftest import eventually

Document = dict[str, Any]


@pytest.fixture
def run() -> Callable[[Callable[[], object]], None]:
    """Starts something in a thread of its name, whatever it waits for."""
    return lambda call: threading.Thread(target=call, name=call.__name__, daemon=True).start()


def seen(how: Callable[..., list[Document]], name: str) -> Document:
    """What is told of the thread of that name, once it waits."""

    def look() -> Document | None:
        return next((each for each in how(*locks.innermost("devkit")) if each["thread"] == name), None)

    found: Document = eventually(look, name, 20)
    return found


def test_a_barrier_says_how_many_are_missing(run: Any) -> None:
    barrier = threading.Barrier(6)

    def arrives() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait()

    for _ in range(4):
        run(arrives)
    eventually(lambda: barrier.n_waiting == 4, "four at the barrier", 20)
    found = seen(primitives.describe, "arrives")
    assert found["what"] == "a threading.Barrier for 6, at which 4 have arrived" and found["count"] == 4
    assert found["at"]["function"].endswith("arrives") and not found["free"]
    barrier.abort()


def test_queues_events_semaphores_futures_and_threads(run: Any) -> None:
    empty: queue.Queue[int] = queue.Queue()
    full: queue.Queue[int] = queue.Queue(1)
    full.put(1)
    event, permits = threading.Event(), threading.Semaphore(0)
    pool = concurrent.futures.ThreadPoolExecutor(1)
    first, second = pool.submit(event.wait), pool.submit(event.wait)

    def takes() -> None:
        empty.get()

    def gives() -> None:
        full.put(2)

    def waits() -> None:
        event.wait()

    def asks() -> None:
        with permits:
            pass

    def results() -> None:
        second.result()

    thread = threading.Thread(target=waits, name="loader", daemon=True)
    thread.start()

    def joins() -> None:
        thread.join()

    def closes() -> None:
        with concurrent.futures.ThreadPoolExecutor(1, "job") as own:
            own.submit(event.wait)

    for each in (takes, gives, asks, results, joins, closes):
        run(each)
    # Before it closes its pool, it waits for the pool's thread to have started.
    eventually(lambda: seen(primitives.describe, "closes")["closes"], "the end of the pool", 20)
    ends = {name: seen(primitives.describe, name) for name in ("joins", "closes", "takes")}
    assert {name: (each["joins"], each["closes"]) for name, each in ends.items()} == {
        "joins": ("loader", False),
        "closes": ("job_0", True),
        "takes": ("", False),
    }
    said = {name: seen(primitives.describe, name)["what"] for name in ("takes", "gives", "asks", "results", "joins")}
    line = waits.__code__.co_firstlineno + 1
    assert said == {
        "takes": "an item from a queue.Queue that is empty",
        "gives": "room in a queue.Queue that is full (1 of 1)",
        "asks": "a threading.Semaphore with no permit left",
        "results": "a concurrent.futures.Future that nobody has begun",
        "joins": f"the end of thread loader, which is at {os.path.basename(__file__)}:{line}",
    }
    event.set()
    permits.release()
    empty.put(1)
    full.get()
    assert first.result() is True
    pool.shutdown()


def test_jobs_that_wait_for_jobs_of_their_own_pool(run: Any) -> None:
    pool, both = concurrent.futures.ThreadPoolExecutor(2), threading.Barrier(2)

    def outer() -> None:
        both.wait()
        inner().result()

    def inner() -> concurrent.futures.Future[int]:
        jobs.append(pool.submit(int))
        return jobs[-1]

    jobs: list[concurrent.futures.Future[int]] = []
    pool.submit(outer)
    pool.submit(outer)
    eventually(lambda: len(jobs) == 2, "two jobs in the queue", 20)

    def look() -> Document | None:
        told = primitives.describe(*locks.innermost("devkit"))
        return next((each for each in told if "queued in a pool" in each["what"] and each["count"] == 2), None)

    found = eventually(look, "two that wait", 20)
    assert found["what"].endswith("queued in a pool, all 2 threads of which wait for what is queued there")
    assert found["call"].endswith("outer")
    for job in jobs:
        job.cancel()
    pool.shutdown()


def test_jobs_that_wait_for_jobs_of_their_own_event_loops_pool() -> None:
    """Given two threads that wait for coroutines, each of which has a job for a third."""
    loop, both, asked = asyncio.new_event_loop(), threading.Barrier(2), []
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(2))
    runs = threading.Thread(target=loop.run_forever)
    runs.start()

    async def inner() -> int:
        return await asyncio.to_thread(int)

    def outer() -> int:
        both.wait()
        asked.append(asyncio.run_coroutine_threadsafe(inner(), loop))
        return asked[-1].result()

    for _ in range(2):
        loop.call_soon_threadsafe(loop.run_in_executor, None, outer)

    def look() -> Document | None:
        told = primitives.describe(*locks.innermost("devkit"))
        return next((each for each in told if "queued in a pool" in each["what"] and each["count"] == 2), None)

    found = eventually(look, "two that wait", 20)
    assert found["what"].endswith("queued in a pool, all 2 threads of which wait for other futures")
    assert found["call"].endswith("inner")
    assert found["at"]["file"] == __file__
    for each in asked:
        each.cancel()
    asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    runs.join()
    loop.close()


def test_a_queue_that_nobody_reads_keeps_who_has_put_into_it(run: Any) -> None:
    unread: Any = multiprocessing.get_context("fork").Queue()
    reader = Connection(os.dup(unread._reader.fileno()), writable=False)  # its own one ends with what is written
    unread.put(bytes(1 << 20))  # more than a pipe holds
    unread.close()

    def ends() -> None:
        unread.join_thread()

    run(ends)
    assert seen(primitives.describe, "ends")["what"] == UNREAD
    with reader:
        assert len(reader.recv_bytes()) > 1 << 20


def in_a_loop(made: Callable[[], Any]) -> list[Document]:
    """What is told of the coroutines of a loop in a thread, once nothing of it moves."""

    async def main() -> list[Document]:
        tasks = made()
        for _ in range(20):
            await asyncio.sleep(0)
        found = [each for each in primitives.describe({}, {}) if each["what"] != ASLEEP]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found

    return asyncio.run(main())


def test_who_holds_an_asyncio_lock() -> None:
    def made() -> list[asyncio.Task[None]]:
        lock = asyncio.Lock()

        async def publishes() -> None:
            async with lock:
                await asyncio.sleep(60)

        async def fetches() -> None:
            async with lock:
                pass

        return [asyncio.create_task(each()) for each in (publishes, fetches, fetches)]

    [found] = in_a_loop(made)
    assert (found["what"], found["count"], found["free"]) == ("an asyncio.Lock", 2, False)
    assert found["call"].endswith("fetches") and found["holder_call"].endswith("publishes")
    assert found["held_at"]["function"].endswith("publishes")


def test_who_holds_a_semaphore_by_acquire_and_one_that_nobody_holds() -> None:
    def made(keeps: bool) -> list[asyncio.Task[None]]:
        permits = asyncio.Semaphore(1)

        async def takes() -> None:
            await permits.acquire()
            if keeps:
                await asyncio.sleep(60)

        async def wants() -> None:
            await permits.acquire()

        return [asyncio.create_task(each()) for each in (takes, wants, wants, wants)]

    [held] = in_a_loop(lambda: made(True))
    assert held["what"] == "an asyncio.Semaphore with no permit left" and held["count"] == 3
    assert held["holder_call"].endswith("takes")
    [free] = in_a_loop(lambda: made(False))
    assert free["free"] and free["count"] == 3 and "holder" not in free  # who took it has ended


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="asyncio makes a RuntimeError of it")
def test_the_end_of_an_iterator_in_another_thread_ends_no_future() -> None:
    async def main() -> list[Document]:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda *_: ended.set())

        async def takes() -> None:
            await loop.run_in_executor(None, next, iter([]))

        task = asyncio.create_task(takes())
        await ended.wait()
        found = [each for each in primitives.describe({}, {}) if each["call"].endswith("takes")]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found

    [found] = asyncio.run(main())
    assert found["what"].startswith("an asyncio.Future that is never done: its thread raised StopIteration")


def test_a_wait_within_an_async_context_manager_is_at_its_line() -> None:
    def made() -> list[asyncio.Task[None]]:
        changed = asyncio.Condition()

        @contextlib.asynccontextmanager
        async def reads() -> AsyncIterator[None]:
            async with changed:
                await changed.wait_for(lambda: False)
            yield

        async def asks() -> None:
            async with reads():
                pass

        return [asyncio.create_task(asks())]

    [found] = in_a_loop(made)
    assert found["what"] == "the predicate of an asyncio.Condition to hold"
    assert found["at"]["function"].endswith("reads") and found["call"].endswith("asks")


@pytest.mark.parametrize(
    ("how", "what"),
    [("wait", "asyncio.wait, of which 2 of 2 are not done"), ("group", "2 tasks of an asyncio.TaskGroup")],
)
def test_tasks_that_are_waited_for_together(how: str, what: str) -> None:
    def made() -> list[asyncio.Task[None]]:
        async def sleeps() -> None:
            await asyncio.sleep(60)

        async def waits() -> None:
            if how == "wait":
                await asyncio.wait([asyncio.create_task(sleeps()) for _ in range(2)])
            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(sleeps())

        return [asyncio.create_task(waits())]

    [found] = in_a_loop(made)
    assert found["what"] == what and found["at"]["function"].endswith("waits")


def test_a_thread_that_waits_within_its_event_loop_blocks_it(run: Any) -> None:
    full: queue.Queue[int] = queue.Queue(1)

    async def puts() -> None:
        full.put(1)
        full.put(2)

    def loops() -> None:
        asyncio.run(puts())

    run(loops)
    found = seen(primitives.describe, "loops")
    assert found["what"] == "room in a queue.Queue that is full (1 of 1)" and found["blocks"]
    full.get()


def test_a_loop_without_a_frame_of_its_own_is_blocked_too(run: Any) -> None:
    """Such as uvloop's, which calls back out of C."""
    full: queue.Queue[int] = queue.Queue(1)

    def done(number: int) -> None:
        full.put(number)
        full.put(number)

    loop = types.SimpleNamespace(run_until_complete=functools.partial(done, 1))

    def calls_back() -> None:
        loop.run_until_complete()

    def puts() -> None:
        done(2)

    run(calls_back)
    assert seen(primitives.describe, "calls_back")["blocks"]
    run(puts)
    assert not seen(primitives.describe, "puts")["blocks"]
    for _ in range(4):
        full.get()


@pytest.mark.parametrize("holds", [False, True])
def test_who_only_waits_for_those_who_want_a_permit_holds_none(holds: bool) -> None:
    def made() -> list[asyncio.Task[None]]:
        permits = asyncio.Semaphore(1)

        async def wants() -> None:
            await permits.acquire()

        async def gathers() -> None:
            await asyncio.gather(*(wants() for _ in range(2 + (not holds))))

        async def begins() -> None:
            if not holds:
                return await gathers()
            async with permits:
                await gathers()

        return [asyncio.create_task(begins())]

    found = {each["kind"]: each for each in in_a_loop(made)}
    wait = found["Semaphore"]
    assert (wait["free"], wait["count"], "holder" in wait) == (not holds, 2, holds)


def test_an_empty_asyncio_queue() -> None:
    def made() -> list[asyncio.Task[None]]:
        items: asyncio.Queue[None] = asyncio.Queue()

        async def takes() -> None:
            await items.get()

        return [asyncio.create_task(takes())]

    assert in_a_loop(made)[0]["what"] == "an item from an asyncio.Queue that is empty"


def test_tasks_that_were_cancelled_and_go_on_are_told() -> None:
    async def stubborn(ends: asyncio.Event) -> None:
        while not ends.is_set():
            try:
                await ends.wait()
            except asyncio.CancelledError:
                continue

    async def waits(tasks: list[asyncio.Task[None]]) -> None:
        await asyncio.wait(tasks)

    async def main() -> list[str]:
        ends = asyncio.Event()
        tasks = [asyncio.create_task(stubborn(ends)) for _ in range(3)]
        waiting, found = asyncio.create_task(waits(tasks)), []
        for count in (0, 2, 3):
            for task in tasks[:count]:
                task.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
            found += [each["what"] for each in primitives.describe({}, {}) if each["call"].endswith("waits")]
        ends.set()
        await waiting
        return found

    said = "asyncio.wait, of which 3 of 3 are not done"
    assert asyncio.run(main()) == [
        said,
        f"{said} (cancel() was called on 2 of these)",
        f"{said} (cancel() was called on all 3)",
    ]


def test_a_future_that_another_thread_has_completed_without_a_word_to_the_loop() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    answer = loop.create_future()

    async def asks() -> int:
        return int(await answer)

    asked = asyncio.run_coroutine_threadsafe(asks(), loop)

    def told() -> list[Document]:
        return [each for each in primitives.describe({}, {}) if each["call"].endswith("asks")]

    eventually(lambda: getattr(answer, "_callbacks", None), "the task waits", 20)
    assert [each["what"] for each in told()] == ["an asyncio.Future that is not done"]
    answer.set_result(7)
    [found] = told()
    assert found["what"] == f"a future that is done ({primitives.UNHEARD})"
    other = asyncio.new_event_loop()
    assert awaited.is_asleep(loop) and not awaited.is_asleep(other)
    other.close()
    loop.call_soon_threadsafe(lambda: None)
    assert asked.result(20) == 7 and told() == []
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_who_waits_for_its_turn_to_read_from_a_queue_of_several_processes(run: Any) -> None:
    context = multiprocessing.get_context("fork")
    items: Any = context.Queue()
    came = threading.Event()

    def reads() -> None:
        items.get()
        came.set()

    killed = context.Process(target=lambda: (items._rlock.acquire(), os._exit(0)))
    killed.start()
    killed.join()
    run(reads)
    assert seen(primitives.describe, "reads")["what"] == READERS_TURN
    items._rlock.release()  # then it has the turn, and waits for the pipe, of which the kernel tells
    eventually(lambda: items._rlock._semlock._count(), "its turn", 20)
    assert not [each for each in primitives.describe(*locks.innermost("devkit")) if each["thread"] == "reads"]
    items.put(1)
    assert came.wait(20), "the thread got its item"  # before the queue is closed under it
    items.close()
    items.join_thread()


CONTEXT = multiprocessing.get_context("fork")


@pytest.mark.parametrize(
    ("made", "waits", "ends", "what"),
    [
        ("Lock", lambda it: it.__enter__(), lambda it: it.release(), "a multiprocessing.Lock that is taken"),
        ("Lock", lambda it: it.acquire(), lambda it: it.release(), "a multiprocessing.Lock that is taken"),
        (
            "Semaphore",
            lambda it: it.acquire(),
            lambda it: it.release(),
            "a multiprocessing.Semaphore with no permit left",
        ),
        ("Event", lambda it: it.wait(), lambda it: it.set(), "a multiprocessing.Event that is not set"),
        ("Queue", lambda it: it.put(1), lambda it: it.get(), "room in a multiprocessing queue that is full (1)"),
    ],
    ids=["with", "acquire", "semaphore", "event", "queue"],
)
def test_what_processes_share(run: Any, made: str, waits: Any, ends: Any, what: str) -> None:
    """Whoever had it before has ended, or is another process."""
    it: Any = getattr(CONTEXT, made)(*([1] if made == "Queue" else []))
    if made == "Queue":
        it.put(0)
    elif made != "Event":
        killed = CONTEXT.Process(target=lambda: (it.acquire(), os._exit(0)))
        killed.start()
        killed.join()
    done = threading.Event()

    def stands() -> None:
        waits(it)
        done.set()

    run(stands)
    assert seen(primitives.describe, "stands")["what"] == what
    ends(it)
    assert done.wait(20)
    if made == "Queue":
        it.get()
        it.close()
        it.join_thread()


def leaves(value: int) -> int:
    if value == 3:
        raise SystemExit(7)
    return value


def test_what_gathers_says_how_much_is_not_done() -> None:
    ends: list[Callable[[], object]] = []

    async def main() -> None:
        done, loop = asyncio.Event(), asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(done.set))
        await asyncio.gather(asyncio.sleep(0), done.wait(), done.wait())

    def told() -> Document | None:
        found = primitives.describe(*locks.innermost("devkit"))
        return next((each for each in found if "gather" in each["what"] and "2 of 3" in each["what"]), None)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="gathers", daemon=True)
    thread.start()
    found: Document = eventually(told, "two of three", 20)
    assert found["what"] == "asyncio.gather, of which 2 of 3 are not done" and found["call"].endswith("main")
    ends[0]()
    thread.join(20)


def with_loss(found: Document) -> str | None:
    """Once the other chunks are done."""
    what = str(found["what"])
    return what if "lost" in what and what.startswith("1 of 3 ") else None


def test_a_pool_one_of_whose_workers_has_ended_says_so(run: Any) -> None:
    pools.watch()
    with multiprocessing.get_context("spawn").Pool(2) as pool:  # forked, they may have a lock of another test's thread

        def maps() -> None:
            with contextlib.suppress(Exception):
                pool.map(leaves, range(6), 2)

        run(maps)
        found = eventually(lambda: with_loss(seen(primitives.describe, "maps")), "one of three chunks", 20)
        assert found.startswith("1 of 3 chunks of a multiprocessing.Pool's map; a worker of the pool, pid "), found
        assert found.endswith(" ended with exit code 7, and what it was at, if anything, is lost"), found


def waits_for(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_what_one_pool_has_lost_another_one_does_not_miss(run: Any) -> None:
    pools.watch()
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as lossy, context.Pool(1) as pool:
        lossy.apply_async(leaves, (3,))
        eventually(lambda: any(each.workers is lossy._pool for each in pools._ended), "a worker that left", 20)
        result = pool.apply_async(waits_for, (60.0,))

        def gets() -> None:
            with contextlib.suppress(Exception):
                result.get(60)

        run(gets)
        assert seen(primitives.describe, "gets")["what"] == "a result of a multiprocessing.Pool"


class Loops:
    """Loops that sleep."""

    def __init__(self) -> None:
        self.ready = False
        self.rows: list[int] = []
        self.api_key = "sk-abcdef"
        self.total = 0
        self.lock = Path()

    def for_a_flag(self) -> None:
        while not self.ready and len(self.rows) < 3 and self.api_key:
            time.sleep(0.05)

    def for_a_break(self) -> None:
        version = 0
        while True:
            with threading.Lock():
                if version >= 1 or self.ready:
                    break
            time.sleep(0.05)

    def adds_up(self) -> None:
        tries, pause = 0, 0.05
        while not self.ready:
            tries += 1
            pause += min(0.0, pause)
            self.total += len(self.api_key)
            time.sleep(pause)

    def for_a_file(self) -> None:
        while os.path.exists(self.lock) and not self.ready:
            time.sleep(0.05)

    def for_nothing(self) -> None:
        while True:
            time.sleep(0.05)
            if os.getpid() == 0:
                raise AssertionError


@pytest.fixture
def loops() -> Iterator[Loops]:
    made = Loops()
    yield made
    made.ready = True


def test_what_a_loop_that_sleeps_looks_at(run: Any, loops: Loops) -> None:
    run(loops.for_a_flag)
    found = seen(polls.describe, "for_a_flag")
    assert found["loop"] == "while not self.ready and len(self.rows) < 3 and self.api_key"
    assert found["values"] == {"self.ready": "False", "self.rows": "[]", "self.api_key": "<redacted>"}
    assert found["at"]["function"] == "Loops.for_a_flag" and found["by"] == found["at"]


def test_what_a_loop_adds_up_is_told_and_not_its_turns_nor_the_length_of_its_sleeps(run: Any, loops: Loops) -> None:
    run(loops.for_a_flag)
    assert seen(polls.describe, "for_a_flag")["sums"] == ""
    loops.ready = True
    loops.total, loops.ready = 1, False
    run(loops.adds_up)
    first = seen(polls.describe, "adds_up")["sums"]
    assert first
    eventually(lambda: seen(polls.describe, "adds_up")["sums"] != first, "another sum")


def test_a_file_that_a_loop_looks_for_is_told_with_its_age(run: Any, loops: Loops, tmp_path: Path) -> None:
    loops.lock = tmp_path / "lock"
    loops.lock.touch()
    os.utime(loops.lock, (0.0, datetime(2026, 1, 2, 3, 4, 5).timestamp()))
    run(loops.for_a_file)
    assert seen(polls.describe, "for_a_file")["values"]["self.lock"].endswith("there since 2026-01-02 03:04:05")


def test_what_would_end_a_loop_without_a_condition(run: Any, loops: Loops) -> None:
    run(loops.for_a_break)
    found = seen(polls.describe, "for_a_break")
    assert found["loop"] == "until version >= 1 or self.ready"
    assert found["values"] == {"version": "0", "self.ready": "False"}


def test_of_a_loop_that_nothing_ends_nothing_is_told() -> None:
    class Frame:
        f_code = Loops.for_nothing.__code__
        f_lineno = Loops.for_nothing.__code__.co_firstlineno + 2

    assert polls.loop_of(Frame()) is None  # type: ignore[arg-type]
