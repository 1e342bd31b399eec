"""The agent of one process, without Ray: what it tells the hub, and in which order."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker.agent import Agent
from devkit.debug.inworker.caught import Flight, Place
from devkit.debug.inworker.records import Breakpoint
from devkit.debug.inworker.settings import Settings
from tests.debug.conftest import eventually
from tests.pace import stretched

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
    thread.join(stretched(10))
    agent.stand_down()
    reporter.join(stretched(10))
    assert not thread.is_alive() and not reporter.is_alive()


def test_a_crash_without_a_pause_is_told_by_its_own_thread(agent: Agent) -> None:
    agent.settings = Settings(post_mortem="snapshot")
    agent.connection = hub = Hub()  # type: ignore[assignment]
    fail(agent)
    assert hub.kinds() == ["crash"]


def test_a_stop_that_nobody_has_set_is_told_once_where_the_programs_output_is_read(
    agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the hub knows of it, and not before: until then nobody could attach."""

    def line(text: str) -> str:
        number = next(n for n, each in enumerate(Path(__file__).read_text().splitlines(), 1) if text in each)
        return f"tests/debug/test_agent.py:{number}"

    # given two stops of a process that has no way to the hub
    threads = [
        threading.Thread(target=fail, args=(agent,), daemon=True),
        threading.Thread(target=lambda: agent.pause_here(sys._getframe(0)), daemon=True),
    ]
    for count, thread in enumerate(threads, 1):
        thread.start()
        eventually(lambda count=count: len(agent.stops.all()) == count, "a stop", 10)
    reporter = threading.Thread(target=agent._tell, daemon=True)
    reporter.start()
    agent._told.clear()
    agent.wake()
    agent._told.wait(stretched(10))
    assert capsys.readouterr().err == ""
    # when there is one, and it is told a second time
    for _ in range(2):
        agent.connection = hub = Hub()  # type: ignore[assignment]
        agent.wake()
        eventually(lambda hub=hub: hub.kinds(), "a report", 10)
    # then each has its line, once, and a breakpoint from outside has none
    point = Breakpoint("line", "", log="")
    agent._reached.points[point.id] = point
    threads.append(threading.Thread(target=lambda: agent._reached.by(("line",), sys._getframe(0)), daemon=True))
    threads[-1].start()
    eventually(lambda: len(hub.heard[-1].get("stops", ())) == 3, "a report of three", 10)
    agent.stand_down()
    reporter.join(stretched(10))
    for stop in agent.stops.all():
        agent.stops.resume(stop.id)
    for thread in threads:
        thread.join(stretched(10))
    assert sorted(capsys.readouterr().err.splitlines()) == [
        f"devkit: worker is stopped at {line('raise ValueError(')} (ValueError: not finite): devkit attach",
        f"devkit: worker is stopped at {line('agent.pause_here(sys')} (breakpoint()): devkit attach",
    ]


def test_two_breakpoints_of_a_place_stop_a_call_once(new_objects: None, agent: Agent, tmp_path: Path) -> None:
    # given a function with a breakpoint by its line, two by its name, and a logpoint
    path = tmp_path / "twice.py"
    path.write_text("class Point:\n    def norm(self):\n        return 3\n")
    spec = importlib.util.spec_from_file_location("twice", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    by_line: Document = {"paths": (str(path),), "line": 3}
    point = module.Point()
    try:
        for each in (
            Breakpoint("line", "", **by_line),
            Breakpoint("name", "", paths=(str(path),), module="twice", qualname="Point.norm", hits=">=2"),
            Breakpoint("never", "", condition="self is None", **by_line),
            Breakpoint("wrong", "", condition="gone", **by_line),
            Breakpoint("log", "", log="self", **by_line),
        ):
            agent.add(each)
        # when it is called twice
        seen: list[tuple[str, tuple[str, ...]]] = []
        for _ in range(2):
            thread = threading.Thread(target=point.norm, daemon=True)
            thread.start()
            [stop] = eventually(agent.stops.all, "a stop", 10)
            record = agent.stops.record(stop)
            seen.append((record.breakpoint, record.breakpoints))
            agent.stops.resume(stop.id)
            thread.join(stretched(10))
            assert not thread.is_alive() and not agent.stops.all()
        # then each call stopped once, and each breakpoint was counted
        assert seen == [("line", ("line",)), ("line", ("line", "name"))]
        armed = agent.report()["armed"]
        assert {name: each["hits"] for name, each in armed.items()} == {
            "line": 2,
            "name": 2,
            "never": 0,
            "wrong": 0,
            "log": 2,
        }
        assert "NameError" in armed["wrong"]["error"]
    finally:
        agent.arming.uninstall()


def test_what_it_has_caught_is_told_at_its_end(agent: Agent) -> None:
    """A process may end long before the next look at it, and nobody can ask it then."""
    agent.connection = hub = Hub()  # type: ignore[assignment]
    agent._leave()
    assert hub.heard == [], "it has caught nothing"
    place = Place("/job/reward.py", 30, "score")
    for _ in range(384):
        agent.raising.caught.add(Flight("TypeError", "no", place, place))
    agent._leave()
    assert hub.kinds() == ["caught"] and hub.heard[0]["caught"][0]["count"] == 384
    # a forked child has raised none of them
    agent.restart_in_child(lambda: None)
    assert agent.caught() == []
