"""Threads that tests leave: those at work are errors, those that wait are none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins import at_work

OVER = threading.Event()
TESTS = """
import threading
from tests import test_at_work

def test_waits():
    threading.Thread(target=test_at_work.OVER.wait, daemon=True).start()

def test_ends():
    threading.Thread(target=sum, args=(range(1000),)).start()

def test_works():
    threading.Thread(target=test_at_work.works, name="mill", daemon=True).start()

def test_comes_after_it():
    pass
"""


def works() -> None:
    while not OVER.is_set():
        sum(range(100))


def looks() -> None:
    while not OVER.wait(0.01):
        pass


@pytest.fixture(autouse=True)
def over() -> Iterator[None]:
    OVER.clear()
    yield
    OVER.set()


needs_proc = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel tells no thread's time")


@needs_proc
def test_which_threads_are_at_work() -> None:
    threads = {call: threading.Thread(target=call, daemon=True) for call in (works, looks, OVER.wait)}
    for each in threads.values():
        each.start()
    assert at_work.at_work(list(threads.values()), 0.5) == [threads[works]]
    OVER.set()
    for each in threads.values():
        each.join()
    assert at_work.at_work(list(threads.values()), 0.5) == []


@needs_proc
def test_only_the_test_that_left_one_at_work_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_inprocess("-p", "tests.plugins.at_work", "-p", "no:xdist", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=4, errors=1)
    done.stdout.fnmatch_lines(
        ["*ERROR at teardown of test_works*", "the test has left the thread mill at work:", "*in works"]
    )
