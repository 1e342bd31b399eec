"""The agent of one process, without Ray: what it tells the hub, and in which order."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker.agent import Agent
from devkit.debug.inworker.settings import Settings
from tests.debug.conftest import eventually

Document = dict[str, Any]


class Hub:
    """The other end of the agent's connection."""

    def __init__(self) -> None:
        self.heard: list[Document] = []

    def send(self, document: Document) -> None:
        self.heard.append(document)

    def close(self) -> None: ...

    def kinds(self) -> list[str]:
        """The documents by what they say first."""
        return ["stop" if each.get("stops") else str(each["type"]) for each in self.heard]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """One whose threads are not started: the test lets it tell."""
    monkeypatch.setattr("devkit.debug.inworker.hooks.crash_folder", lambda: tmp_path)
    made = Agent(Settings(post_mortem="pause"), lambda: None)
    made._running = True
    made._crashes.joined.set()
    return made


def fail(agent: Agent) -> None:
    try:
        raise ValueError("not finite")
    except ValueError as error:
        agent.crashed(error, "task")


def test_a_pause_is_told_before_its_snapshot(agent: Agent) -> None:
    # given a process that has reported, and then stops at an exception
    agent.connection = hub = Hub()  # type: ignore[assignment]
    thread = threading.Thread(target=fail, args=(agent,), daemon=True)
    thread.start()
    stops = eventually(agent.stops.all, "a stop", 10)
    eventually(lambda: len(agent._crashes), "a snapshot", 10)
    assert hub.kinds() == [], "the crashed thread has told nothing by itself"
    # when it reports
    reporter = threading.Thread(target=agent._tell, daemon=True)
    reporter.start()
    agent.wake()
    eventually(lambda: "crash" in hub.kinds(), "a crash", 10)
    # then nobody has heard of the snapshot who had not heard of the stop
    assert hub.kinds()[:2] == ["stop", "crash"], hub.kinds()
    for stop in stops:
        agent.stops.resume(stop.id)
    thread.join(10)
    agent.stand_down()
    reporter.join(10)
    assert not thread.is_alive() and not reporter.is_alive()


def test_a_crash_without_a_pause_is_told_by_its_own_thread(agent: Agent) -> None:
    agent.settings = Settings(post_mortem="snapshot")
    agent.connection = hub = Hub()  # type: ignore[assignment]
    fail(agent)
    assert hub.kinds() == ["crash"]
