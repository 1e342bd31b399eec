"""How the time of a job grows with the size of what it is given: seen by two small sizes, and not by one of hours."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMES = 4  # the second size is so many times the first
MOST = 2.0 * TIMES  # what is quadratic takes TIMES ** 2 as long
LEAST_S = 0.05  # what two looks at a clock may differ by
TRIES = 4  # a busy machine makes a look longer, and never what is quadratic any shorter


def assert_linear(job: Callable[[int], object], size: int) -> None:
    """Of the thread's own processor time, which who runs beside it has little part in."""
    job(1)  # what is imported and compiled once
    seen = []
    for _ in range(TRIES):
        few, many = _seconds(job, size), _seconds(job, TIMES * size)
        if many <= MOST * few + LEAST_S:
            return
        seen.append((few, many))
    raise AssertionError(f"{TIMES} times the size takes much more than {TIMES} times as long: {seen} s")


def _seconds(job: Callable[[int], object], size: int) -> float:
    start = time.thread_time()
    job(size)
    return time.thread_time() - start
