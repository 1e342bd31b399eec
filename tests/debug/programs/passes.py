"""An exception that stands in the exit of a `with` or in a `finally`, and what becomes of it; prints counts as JSON."""

# ruff: noqa: B012 - that is what it is about

import asyncio
import contextlib
import json
import sys
import threading
import time

from devkit.debug.inworker.raising import Raising

if sys.version_info < (3, 12):
    from devkit.debug.inworker import raising_traced

    raising_traced.HANDLING_SECONDS = 0.0  # what stands so long may have been caught

STANDS, GO = threading.Semaphore(0), threading.Semaphore(0)


def stand():
    STANDS.release()
    GO.acquire()


class Manager:
    """What a pool's or a lock's is: its exit takes its time, and says whether that was all."""

    def __init__(self, swallows=False):
        self.swallows = swallows

    def __enter__(self):
        return self

    def __exit__(self, *_):
        stand()
        return self.swallows

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await asyncio.sleep(0)
        stand()
        return self.swallows


@contextlib.contextmanager
def guard():
    try:
        yield
    except KeyError:
        stand()


def inner():
    raise KeyError("k")


def in_with():
    with Manager():
        inner()


def in_with_that_swallows():
    with Manager(swallows=True):
        inner()
    time.sleep(0.001)


def in_with_of_a_generator():
    with guard():
        inner()


async def in_async_with():
    async with Manager():
        inner()


async def in_async_with_that_swallows():
    async with Manager(swallows=True):
        inner()


def in_finally():
    try:
        inner()
    finally:
        stand()


def in_finally_behind_another_handler():
    try:
        inner()
    except OSError:
        pass
    finally:
        stand()


def in_finally_that_returns():
    try:
        inner()
    finally:
        stand()
        return 1


def in_with_in_a_handler():
    """Which catches something else."""
    try:
        int("x")
    except ValueError:
        with Manager():
            inner()


def raises_again():
    try:
        inner()
    except KeyError:
        stand()
        raise


def raises_another():
    try:
        inner()
    except KeyError as error:
        stand()
        raise ValueError("other") from error


def raises_again_in_a_branch(again=True):
    try:
        inner()
    except KeyError:
        stand()
        if again:
            raise


def goes_on():
    try:
        inner()
    except KeyError:
        stand()


def suppresses():
    with contextlib.suppress(KeyError):
        try:
            inner()
        finally:
            stand()
    time.sleep(0.001)


def comprehends():
    try:
        return [inner() for _ in range(3)]
    finally:
        stand()


def closes_a_generator():
    def numbers():
        try:
            yield 1
        finally:
            stand()

    for _ in numbers():
        break


def in_a_generator():
    def numbers():
        with Manager():
            yield 1
            inner()

    return list(numbers())


async def closes_an_async_generator():
    async def numbers():
        async with Manager():
            yield 1

    each = numbers()
    await anext(each)
    await each.aclose()


async def over_an_async_generator():
    async def numbers():
        yield 1
        inner()

    try:
        async for _ in numbers():
            pass
    finally:
        stand()


def ends_a_loop():
    each = iter([1])
    try:
        while True:
            next(each)
    except StopIteration:
        stand()


CALLS = [
    *(in_with, in_with_that_swallows, in_with_of_a_generator, in_async_with, in_async_with_that_swallows),
    *(in_finally, in_finally_behind_another_handler, in_finally_that_returns, in_with_in_a_handler),
    *(raises_again, raises_another, raises_again_in_a_branch, goes_on, suppresses, comprehends),
    *(closes_a_generator, in_a_generator, closes_an_async_generator, over_an_async_generator, ends_a_loop),
]


def call(function):
    with contextlib.suppress(Exception):
        asyncio.run(function()) if asyncio.iscoroutinefunction(function) else function()


def counted(raising):
    return [[each["count"], each["by"]["function"]] for each in raising.listed() if each["kind"] == "KeyError"]


def main():
    found = {}
    for function in CALLS:
        raising = Raising(lambda *_: None, lambda *_: None, lambda: None)
        raising.count()
        thread = threading.Thread(target=call, args=(function,))
        thread.start()
        assert STANDS.acquire(timeout=20), function
        raising.look()
        standing = counted(raising)
        GO.release()
        thread.join()
        found[function.__name__] = [standing, counted(raising)]
        raising._engine.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
