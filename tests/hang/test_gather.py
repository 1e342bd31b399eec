"""Samples of a job where Ray's dashboard has stopped answering, as it does on a head node that stands itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from devkit.debug.dashboard import Dashboard
from devkit.hang.answers import read_sample
from devkit.hang.facts import Sample
from devkit.hang.gather import SILENT, Sampler, watch_until_decided
from tests.debug.hub_fake import FakeHub
from tests.hang.jobs import NOW, answer, driver, process, simulated


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server whose callers are connected by the kernel and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_dashboard_that_no_longer_answers_costs_no_verdict(silent: socket.socket) -> None:
    samples = iter([answer(simulated(4, 2), 100.0), answer(simulated(4, 2), 112.0)])
    hub = FakeHub(hang=lambda **_: next(samples), crashes={"crashes": []}, stores={"time": 100.0, "stores": []})
    with Dashboard(f"http://127.0.0.1:{silent.getsockname()[1]}", None, timeout=0.2) as dashboard:
        found = watch_until_decided(Sampler(hub, dashboard, "02000000"), wait=lambda _: None)
    assert found.verdict.hang and "rank 2 has not reached" in found.verdict.sentence
    assert found.verdict.evidence[-1] == SILENT, "what is said rests on the processes alone"
    silent.settimeout(5.0)
    silent.accept()[0].close()  # the first sample asked
    silent.setblocking(False)
    with pytest.raises(BlockingIOError):  # and the next ones did not wait for it again
        silent.accept()


def test_who_did_not_answer_at_the_first_look_is_looked_at_twice_from_then_on() -> None:
    def look(at: float, *, late: bool = False) -> tuple[Sample, dict[str, Any]]:
        known = [process(None, None, "driver", process={"state": "S"}, threads=[]) if late else driver()]
        return read_sample(answer(known, NOW + at)), {}

    looks = iter([look(0.0, late=True), look(2.0), look(4.0), look(14.0)])
    found = watch_until_decided(lambda: next(looks), 10.0, wait=lambda _: None)
    assert found.first.time == NOW + 2.0 and found.last.time == NOW + 14.0, "the first one tells nothing of it"
