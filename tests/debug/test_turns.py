"""Python's lock while somebody looks around in a process that computes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from devkit.debug.inworker import turns


@pytest.fixture(autouse=True)
def usual() -> Iterator[float]:
    interval = sys.getswitchinterval()
    yield interval
    sys.setswitchinterval(interval)


def test_threads_take_turns_more_often_until_the_last_has_looked(usual: float) -> None:
    with turns.often():
        with turns.often():
            assert sys.getswitchinterval() == pytest.approx(turns.OFTEN, abs=2e-6)
        assert sys.getswitchinterval() == pytest.approx(turns.OFTEN, abs=2e-6)
    assert sys.getswitchinterval() == pytest.approx(usual, abs=2e-6)


def test_a_program_that_sets_it_has_its_way() -> None:
    sys.setswitchinterval(0.0001)  # shorter than ours
    with turns.often():
        assert sys.getswitchinterval() == pytest.approx(0.0001, abs=2e-6)
    assert sys.getswitchinterval() == pytest.approx(0.0001, abs=2e-6)
    with turns.often():
        sys.setswitchinterval(0.01)
    assert sys.getswitchinterval() == pytest.approx(0.01, abs=2e-6)


def test_a_child_that_is_forked_meanwhile_has_the_programs_own(usual: float) -> None:
    with turns.often():
        pid = os.fork()
        if not pid:
            os._exit(int(abs(sys.getswitchinterval() - usual) > 1e-6))
        assert os.waitpid(pid, 0)[1] == 0
        assert sys.getswitchinterval() == pytest.approx(turns.OFTEN, abs=2e-6)


def test_who_reads_has_a_little_longer(usual: float) -> None:
    with turns.often(), turns.patient(), turns.patient():
        assert sys.getswitchinterval() == pytest.approx(turns.PATIENT, abs=2e-6)
    assert sys.getswitchinterval() == pytest.approx(usual, abs=2e-6)
    looks, reads = turns.often(), turns.patient()
    looks.__enter__()
    reads.__enter__()
    looks.__exit__(None, None, None)
    reads.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(usual, abs=2e-6), "the one who looked was done before"


def test_a_child_that_is_forked_while_somebody_reads_has_the_programs_own(usual: float) -> None:
    with turns.often(), turns.patient():
        pid = os.fork()
        if not pid:
            os._exit(int(abs(sys.getswitchinterval() - usual) > 1e-6))
        assert os.waitpid(pid, 0)[1] == 0
