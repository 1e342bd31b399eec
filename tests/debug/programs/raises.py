"""Raises exceptions in all ways in which they can be caught or go on; prints what was counted, as JSON."""

# ruff: noqa: SIM105 - that is what it is about

import asyncio
import concurrent.futures
import contextlib
import json
import sys
import threading

from devkit.debug.inworker import futures
from devkit.debug.inworker.raising import Raising
from devkit.debug.inworker.records import Breakpoint

HITS = []
WRAPPED = {}  # as Ray does each method of an actor
RAYS = "async def wraps(call):\n    return await call"
exec(compile(RAYS, "/v/site-packages/ray/util/tracing/tracing_helper.py", "exec"), WRAPPED)
FAILED = []


def inner(n):
    raise KeyError(n)


def swallows():
    for _ in range(10):
        try:
            inner("a")
        except KeyError:
            pass


def suppresses():
    with contextlib.suppress(KeyError):
        inner("b")


def catches_a_librarys():
    try:
        json.loads("{")
    except ValueError:
        return 0


def generates():
    try:
        yield 1
        inner("c")
    except KeyError:
        for _ in iter([1, 2]):
            yield 2


async def awaits():
    try:
        await asyncio.sleep(0)
        inner("d")
    except KeyError:
        await asyncio.sleep(0.001)
    try:
        await asyncio.wait_for(asyncio.sleep(9), 0.001)
    except TimeoutError:
        pass


def translates():
    try:
        inner("e")
    except KeyError as error:
        raise ValueError("translated") from error


def raises_again():
    try:
        inner("f")
    except KeyError:
        raise


def raises_by_name():
    try:
        inner("g")
    except KeyError as error:
        raise error


def tidies_up():
    try:
        inner("h")
    finally:
        str(1)


def expects_another():
    try:
        inner("i")
    except OSError:
        pass


def in_a_thread():
    try:
        inner("j")
    except KeyError:
        pass


def in_a_future():
    """Of which nobody asks for the result."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(inner, "k")


def in_a_future_that_is_asked():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with contextlib.suppress(ValueError):
            pool.submit(int, "n").result()
        with contextlib.suppress(ValueError):
            pool.submit(lambda: int("n")).result()


async def keeps_in_tasks():
    """Two of which nobody asks for the result, one that is asked for, and whose exception goes on."""

    async def fails(call):
        await asyncio.sleep(0)
        call()

    def other():
        raise KeyError("m")

    for _ in range(3):  # addresses are used again
        calls = [fails(lambda: inner("l")), fails(lambda: json.loads("{"))]
        await asyncio.gather(*map(WRAPPED["wraps"], calls), return_exceptions=True)
    try:
        await asyncio.create_task(fails(other))
    except KeyError:
        pass
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(other))
    except* KeyError:
        pass
    asyncio.create_task(asyncio.sleep(9)).cancel()


async def is_cancelled():
    task = asyncio.create_task(keeps_in_tasks())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


def ends_a_loop():
    try:
        next(iter([]))
    except StopIteration:
        return list(generates())


def main():
    swallows()
    suppresses()
    catches_a_librarys()
    ends_a_loop()
    asyncio.run(awaits())
    for call in (translates, raises_again, raises_by_name, tidies_up, expects_another):
        with contextlib.suppress(Exception):
            call()
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()


raising = Raising(
    lambda names, frame, error: HITS.append([*names, frame.f_code.co_name, frame.f_lineno, repr(error)]),
    lambda name, error: FAILED.append([name, type(error).__name__]),
    lambda: None,
)
futures.watch(raising.keep)
if "count" in sys.argv:
    raising.count()
for number, text in enumerate(sys.argv[1:]):
    kind, _, condition = text.partition(" if ")
    if text not in ("count", "future", "tasks", "asked"):
        raising.add(Breakpoint(f"b{number}", text, raises=kind, condition=condition))
main()
if "tasks" in sys.argv:
    asyncio.run(keeps_in_tasks())
    asyncio.run(is_cancelled())
if "asked" in sys.argv:
    in_a_future_that_is_asked()
if "future" in sys.argv:
    in_a_future()
rows = sorted(raising.caught._rows.values(), key=lambda row: row.flight.key)
counted = [[row.count, row.flight.kind, row.flight.text, row.flight.by.function] for row in rows if row.count]
for number, _ in enumerate(sys.argv[1:]):
    raising.remove(f"b{number}")
print(json.dumps({"counted": counted, "hits": HITS, "failed": FAILED, "traced": sys.gettrace() is not None}))
