"""Measures the machine's pace when tests begin, and gives each test that much more time; none holds up a run for ever.

pytest-timeout raises an exception in the main thread, once. A thread that waits for a lock within C, code under test
that takes SIGALRM for itself, and a clean-up that waits for what hangs all get past it. So a second clock, which needs
neither the interpreter nor a signal, writes the stacks of all threads and ends the process: xdist tells which test that
was, and goes on with another worker.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator

import pytest

from tests import pace

MOST_S = 600.0  # for one test on a slow machine, unless it asks for more itself
OVERTIME_S = 90.0  # between pytest-timeout's exception and the end of the process
_stderr = 2


def pytest_addoption() -> None:
    """The first hook there is: the `conftest.py` of a folder that the command line names is imported before pytest is
    configured, and what it stretches when it is imported would be stretched by nothing.

    Workers, and pytest runs that a run starts, keep what was measured first.
    """
    if pace.VARIABLE not in os.environ:
        os.environ[pace.VARIABLE] = f"{pace.measured():.2f}"


def pytest_configure() -> None:
    global _stderr
    _stderr = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)  # before anything captures it


def pytest_report_header() -> str:
    return f"pace: deadlines are {os.environ[pace.VARIABLE]} times those of two quiet cores"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if limit := _limit(config, item):
            seconds = min(pace.stretched(limit), max(limit, MOST_S))
            item.add_marker(pytest.mark.timeout(seconds), append=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """With what comes before and after the test, a session's fixtures included."""
    limit = _limit(item.config, item)
    if not limit or sys.gettrace() is not None:  # somebody debugs it
        return (yield)
    faulthandler.dump_traceback_later(limit + pace.stretched(OVERTIME_S), exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()


def _limit(config: pytest.Config, item: pytest.Item) -> float:
    """Seconds for this test; 0 is no limit."""
    mark = item.get_closest_marker("timeout")
    if mark is not None and (found := mark.args[0] if mark.args else mark.kwargs.get("timeout")) is not None:
        return float(found)
    return float(config.getini("timeout") or 0)
