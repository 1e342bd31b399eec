"""A program's own tracer, profiler or coverage sees what it sees without the debugger: a control run each."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from devkit.debug.inworker import agent as agents
from devkit.debug.inworker import threads
from devkit.debug.inworker.arming import Arming
from devkit.debug.inworker.records import Breakpoint
from devkit.debug.inworker.scopes import evaluate
from tests.debug.armory import Armory
from tests.debug.parking_lot import SECONDS, Lot

PROGRAM = """
import threading

def helper(k):
    return k + 1  # @helper

def loop(n):
    found = []
    for k in range(n):
        found.append(helper(k))  # @body
        squares = [i * i for i in range(2)]  # @squares
    return found

def run(n=3):
    thread = threading.Thread(target=loop, args=(n,))
    thread.start()
    thread.join()
    return loop(n)
"""
OURS = os.path.dirname(agents.__file__)

Events = list[tuple[Any, ...]]
Tool = Callable[[Callable[[], Any]], Events]


def told(frame: FrameType, event: str, argument: Any) -> tuple[Any, ...]:
    code = frame.f_code
    called = getattr(argument, "__name__", "") if event.startswith("c_") else ""
    return threading.get_ident(), event, os.path.basename(code.co_filename), code.co_name, frame.f_lineno, called


def by_settrace(run: Callable[[], Any]) -> Events:
    events: Events = []

    def tracer(frame: FrameType, event: str, argument: Any) -> Any:
        events.append(told(frame, event, argument))
        return tracer

    threading.settrace(tracer)
    sys.settrace(tracer)
    try:
        run()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    return events


def by_setprofile(run: Callable[[], Any]) -> Events:
    events: Events = []

    def profiler(frame: FrameType, event: str, argument: Any) -> None:
        events.append(told(frame, event, argument))

    threading.setprofile(profiler)
    sys.setprofile(profiler)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return events


def by_monitoring(run: Callable[[], Any]) -> Events:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    events: Events = []

    def seen(name: str) -> Callable[..., None]:
        def callback(code: CodeType, *where: Any) -> None:
            line = where[:1] if name == "LINE" else ()
            events.append((threading.get_ident(), name, os.path.basename(code.co_filename), code.co_name, *line))

        return callback

    kinds = {name: getattr(monitoring.events, name) for name in ("PY_START", "PY_RETURN", "LINE")}
    monitoring.use_tool_id(monitoring.COVERAGE_ID, "the program's")
    for name, kind in kinds.items():
        monitoring.register_callback(monitoring.COVERAGE_ID, kind, seen(name))
    monitoring.set_events(monitoring.COVERAGE_ID, sum(kinds.values()))
    try:
        run()
    finally:
        monitoring.set_events(monitoring.COVERAGE_ID, 0)
        monitoring.free_tool_id(monitoring.COVERAGE_ID)
    return events


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Armory]:
    monkeypatch.syspath_prepend(tmp_path)
    made = Armory(tmp_path)
    made.write(PROGRAM, "watched_program")
    yield made
    made.close()


def looked_at(lot: Lot, stops: list[str], count: int) -> None:
    """Somebody who looks at each stop, and lets it go on."""
    for _ in range(count):
        stop = lot.stop()
        stop.run(lambda stop=stop: evaluate("helper(k) and [j for j in (k,)]", stop.frame), SECONDS)  # type: ignore[misc]
        stops.append(stop.thread_name)
        lot.stops.resume(stop.id)
        lot.wait(lambda stop=stop: lot.stops.get(stop.id) is None)


TOOLS = [by_settrace, by_setprofile, *([by_monitoring] if sys.version_info >= (3, 12) else [])]


def only(events: Events) -> tuple[list[Events], set[str]]:
    """What was seen of the program, by thread; and which other files were seen in its threads.

    Its threads begin and end as the machine likes it, and Hypothesis is told of each collection of garbage.
    """
    threads: dict[int, Events] = {}
    for thread, *event in events:
        if event[1] == "watched_program.py":
            threads.setdefault(thread, []).append(tuple(event))
    files = {file for thread, _, file, *_ in events if thread in threads}
    return sorted(threads.values()), files - {
        "threading.py",
        "_weakrefset.py",
        "junkdrawer.py",
        os.path.basename(__file__),
    }


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_of_the_programs_sees_the_program_alone(tool: Tool, program: Armory) -> None:
    module = program.load()
    before = only(tool(module.run))
    lot, stops = Lot(), []

    def hit(names: tuple[str, ...], frame: FrameType) -> None:
        lot.stops.park(frame, "breakpoint", breakpoints=names)

    arming = Arming(hit, lambda name, error: None)
    arming.install()
    where = {"paths": (str(program.path),)}
    lines = program.lines
    arming.add(Breakpoint("plain", "", line=lines["body"], condition="k == 1", **where))  # type: ignore[arg-type]
    arming.add(Breakpoint("asks", "", line=lines["helper"], condition="any(k == j for j in [2])", **where))  # type: ignore[arg-type]
    arming.add(Breakpoint("inner", "", line=lines["squares"], condition="i == 1 and k == 0", **where))  # type: ignore[arg-type]
    watcher = lot.start(lambda: looked_at(lot, stops, 6), "devkit-watcher")
    try:
        after = only(tool(module.run))
    finally:
        arming.uninstall()
        lot.finish()
    watcher.join(SECONDS)
    assert len(stops) == 6
    assert after == before


def test_a_tracer_that_a_thread_of_ours_gets_sees_nothing_of_it() -> None:
    done = threading.Event()
    for tool in (by_settrace, by_setprofile):
        done.clear()

        def work() -> None:
            sum(range(3))
            done.set()

        def begin() -> None:
            threads.start(work, "devkit-request")
            assert done.wait(SECONDS)

        events = tool(begin)
        assert not [each for each in events if each[3] in ("work", "run", "_guarded") and each[2] != "threading.py"]
