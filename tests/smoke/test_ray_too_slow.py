"""A smoke test whose Ray does not come up: its raylet is stopped by SIGSTOP as soon as it is there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from devkit.debug.inworker import stacks
from tests.pace import stretched
from tests.smoke.calls import DEADLINE_S, Call, calling
from tests.smoke.test_smoke import assert_one_error

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(2 * DEADLINE_S)]
SOON_S = stretched(
    40.0
)  # on a machine with ten times the work that it has cores for; Ray would wait for the time below
LONG_WAIT = {"RAY_raylet_start_wait_time_s": "600"}


def stop_the_first_raylet(call: Call) -> None:
    def stopped() -> bool:
        for pid in call.processes():
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet":
                    os.kill(pid, signal.SIGSTOP)
                    return True
        return False

    wait_for(call, stopped)


def wait_until_it_asks_for_the_node(call: Call) -> None:
    """In C++, where no signal is heard until there is an answer."""

    def asks() -> bool:
        try:
            threads = stacks.py_spy(call.process.pid, timeout=stretched(60))
        except stacks.PySpyError as error:
            pytest.skip(str(error))
        return any(frame["function"] == "get_node" for thread in threads for frame in thread["frames"])

    wait_for(call, asks)


def wait_for(call: Call, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not happened():
        assert call.process.poll() is None and time.monotonic() < deadline, call.said
        time.sleep(0.01)  # between two looks; the deadline is above


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_is_answered_while_ray_starts(number: signal.Signals) -> None:
    with calling("--json", **LONG_WAIT) as call:
        stop_the_first_raylet(call)
        wait_until_it_asks_for_the_node(call)
        os.kill(call.process.pid, number)
        done = call.wait(SOON_S)
        call.assert_nothing_left()
    assert_one_error(done, 130, "interrupted")
    assert done.record["exit_code"] == 130


def test_the_deadline_is_kept_while_ray_starts() -> None:
    with calling("--json", "--timeout", "12", **LONG_WAIT) as call:
        stop_the_first_raylet(call)
        done = call.wait(12 + SOON_S)
        call.assert_nothing_left()
    assert_one_error(done, 4, "longer than 12 s", "it was in start")
