"""Breakpoints in frames that run already when they are armed: loops that never return, generators, coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from devkit.debug.inworker import running
from devkit.debug.inworker.places import Site
from devkit.debug.inworker.running import Running, Target
from tests.debug.armory import DEADLINE, Armory

TRACES = sys.version_info < (3, 12)
LOOPS = """
import sys, threading

def loop(world):
    n = 0
    while world.go:
        n += 1  # @body
        world.tick(n)  # @tick
    return n

def spread(world):
    n = 0
    while world.go:
        n = (  # @spread
            n
            + world.one()
        )
        n = [n,
             n][0]  # in the one above

def trying(world):
    n = 0
    while world.go:
        try:
            n += 1
            if n % 3 == 0:
                raise ValueError(n)
        except ValueError:
            world.tick(n)  # @handler
        finally:
            last = n  # @finally

def maker(world):
    while world.go:
        def inner(x):
            y = x * 2  # @inner
            return y
        world.tick(inner(3))

def outer(world):
    world.inside()
    return 3  # @after

def caller(world):
    while world.go:
        helper(world)

def helper(world):
    world.tick(1)  # @helper

def numbers(world):
    for i in range(10**9):
        yield i  # @yield
        world.tick(i)

def consumer(world):
    found = numbers(world)
    while world.go:
        next(found)
    found.close()
    while world.go is not None:
        world.tick(0)

async def ticking(world):
    import asyncio
    n = 0
    while world.go:
        n += 1  # @async
        world.tick(n)
        await asyncio.sleep(0)
"""


class World:
    """What a loop and its test share."""

    def __init__(self) -> None:
        self.go: bool | None = True
        self.ticks = 0
        self.tracer: Any = None
        self.moved = threading.Semaphore(0)
        self.halt = threading.Event()
        self.inside_now = threading.Event()
        self.at_tick: Callable[[], None] = lambda: None
        self.threads: list[threading.Thread] = []
        self.problems: list[BaseException] = []

    def tick(self, n: int) -> None:
        self.ticks += 1
        self.tracer = sys.gettrace()
        self.at_tick()
        self.moved.release()
        if self.ticks > 100:
            self.halt.wait(0.001)  # leaves the processor to others

    def one(self) -> int:
        self.tick(1)
        return 1

    def inside(self) -> None:
        self.inside_now.set()
        assert self.halt.wait(DEADLINE)

    def start(self, function: Callable[[World], Any], until: bool = True) -> threading.Thread:
        def run() -> None:
            try:
                function(self)
            except BaseException as error:  # noqa: BLE001 - `end` tells the test
                self.problems.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()
        if until:
            self.advance()
        return thread

    def advance(self, count: int = 3) -> None:
        """Waits until the loop has gone round again."""
        while self.moved.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self.moved.acquire(timeout=DEADLINE)

    def end(self) -> None:
        self.go = None
        self.halt.set()
        for thread in self.threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        assert not self.problems


@pytest.fixture
def armory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_objects: None) -> Iterator[Armory]:
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Armory(tmp_path)
    yield found
    found.close()


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.end()


@pytest.fixture
def loops(armory: Armory, request: pytest.FixtureRequest) -> Any:
    armory.write(LOOPS, "loops")
    return armory.load()


def test_a_loop_that_runs_already(armory: Armory, world: World, loops: Any) -> None:
    thread = world.start(loops.loop)
    armory.arm("body", condition="n >= 0")
    assert (armory.places("body"), armory.note("body")) == (1, "")
    seen = [armory.wait("body") for _ in range(5)]
    assert {each["thread"] for each in seen} == {thread.ident}
    numbers = [each["n"] for each in seen]
    assert numbers == list(range(numbers[0], numbers[0] + 5))  # once per round
    armory.arming.remove("body")
    world.advance()
    assert world.tracer is None
    armory.hits.clear()
    world.advance()
    assert not armory.hits


def test_its_conditions(armory: Armory, world: World, loops: Any) -> None:
    world.start(loops.loop)
    armory.arm("body", condition="n % 7 == 0 and [k for k in (n,) if k]")
    armory.arm("tick", condition="n.missing")
    assert all(armory.wait("body")["n"] % 7 == 0 for _ in range(3))
    world.advance()
    assert [name for name, _ in armory.errors] == ["tick"]
    assert "tick" not in armory.marks()


def test_a_statement_of_several_lines_is_hit_once(armory: Armory, world: World, loops: Any) -> None:
    world.start(loops.spread)
    armory.arm("spread")
    numbers = [armory.wait("spread")["n"] for _ in range(6)]
    assert numbers == list(range(numbers[0], numbers[0] + 6))


def test_handlers_and_finally(armory: Armory, world: World, loops: Any) -> None:
    world.start(loops.trying)
    armory.arm("handler", "finally")
    rounds = []
    for _ in range(4):
        armory.wait("handler")
        rounds.append([armory.wait("finally")["n"] for _ in range(3)])
    assert [n % 3 for n in rounds[-1]] == [0, 1, 2]


def test_the_code_it_has_later_is_swapped_too(armory: Armory, world: World, loops: Any) -> None:
    """The running frame is watched; calls after that have the breakpoint inlined. Neither is hit twice."""
    world.start(loops.loop)
    armory.arm("body")
    armory.wait("body")
    other = World()
    other.at_tick = lambda: setattr(other, "go", other.ticks < 3)
    loops.loop(other)
    mine = threading.get_ident()
    found = [each for each in list(armory.seen.queue) if each["thread"] == mine]
    assert [each["n"] for each in found] == [0, 1, 2]


def test_a_second_breakpoint_in_code_that_has_one(armory: Armory, world: World, loops: Any) -> None:
    armory.arm("body", condition="n == -1")
    world.start(loops.loop)
    armory.arm("tick")
    armory.wait("tick")
    armory.arming.remove("tick")
    world.advance()
    armory.marks()
    armory.seen.queue.clear()  # it may have been hit twice before it was removed
    armory.arm("tick")  # it comes back under the same name
    armory.wait("tick")
    assert set(armory.marks()) == {"tick"}


def test_code_that_has_the_breakpoint_needs_nothing_else(armory: Armory, world: World, loops: Any) -> None:
    armory.arm("body")
    world.start(loops.loop)
    armory.arming.refresh()
    world.advance()
    assert world.tracer is None
    armory.seen.queue.clear()
    numbers = [armory.wait("body")["n"] for _ in range(5)]
    assert numbers == list(range(numbers[0], numbers[0] + 5))


def test_functions_that_it_makes_from_its_old_code(armory: Armory, world: World, loops: Any) -> None:
    world.start(loops.maker)
    armory.arm("inner")
    assert armory.places("inner") == 1
    assert [armory.wait("inner")["x"] for _ in range(3)] == [3, 3, 3]
    armory.arming.remove("inner")
    world.advance()
    assert world.tracer is None


def test_a_frame_that_waits_in_a_call(armory: Armory, world: World, loops: Any) -> None:
    """Its line comes long after it was armed; when it has left, its thread is free again."""
    after: list[Any] = []

    def run() -> None:
        loops.outer(world)
        after.append(sys.gettrace())

    thread = world.start(lambda _world: run(), until=False)
    assert world.inside_now.wait(DEADLINE)
    armory.arm("after")
    world.halt.set()
    armory.wait("after")
    thread.join(DEADLINE)
    assert armory.marks() == ["after"] and after == [None]


def test_only_who_runs_the_old_code_is_traced(armory: Armory, world: World, loops: Any) -> None:
    other = World()
    other.start(loops.caller)
    world.start(loops.loop)
    armory.arm("body", condition="n == -1")
    world.advance()
    other.advance()
    assert other.tracer is None and (world.tracer is not None) == TRACES
    other.end()


def test_a_function_that_a_running_loop_calls_needs_no_tracing(armory: Armory, world: World, loops: Any) -> None:
    world.start(loops.caller)
    armory.arm("helper", condition="world is not None")
    armory.wait("helper")
    armory.arming.refresh()
    world.advance()
    assert armory.marks() and (world.tracer is None or TRACES)


def test_a_module_whose_body_runs(armory: Armory, world: World) -> None:
    """A script: its loop is in no function at all."""
    text = """
    n = 0
    while world.go:
        n += 1  # @script
        def helper(x):
            return x  # @made
        world.tick(helper(n))
    """
    path = armory.write(text, "script")
    code = compile(path.read_text(), str(path), "exec")
    world.start(lambda _world: exec(code, {"__name__": "__main__", "world": world}))
    armory.arm("script", "made")
    numbers = [armory.wait("script")["n"] for _ in range(3)]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    armory.wait("made")
    assert armory.places("script") == armory.places("made") == 1


def test_a_suspended_generator(armory: Armory, world: World, loops: Any) -> None:
    found = loops.numbers(world)
    next(found)
    armory.arm("yield")
    assert [next(found) for _ in range(3)] == [1, 2, 3]
    assert armory.marks() == ["yield"] * 3
    found.close()
    assert sys.gettrace() is None
    assert next(loops.numbers(world)) == 0 and armory.marks() == ["yield"]


def test_two_suspended_generators(armory: Armory, world: World, loops: Any) -> None:
    """The end of one doesn't free the thread from the other."""
    one, other = loops.numbers(world), loops.numbers(world)
    next(one), next(other)
    armory.arm("yield")
    one.close()
    assert next(other) == 1 and armory.marks() == ["yield"]
    other.close()
    assert sys.gettrace() is None


def test_a_generator_in_a_thread_until_it_is_closed(armory: Armory, world: World, loops: Any) -> None:
    world.start(loops.consumer)
    armory.arm("yield", condition="i >= 0")
    armory.wait("yield")
    world.go = False
    world.advance()
    assert world.tracer is None


def test_a_generator_that_is_dropped(armory: Armory, world: World, loops: Any) -> None:
    """One that never began runs nothing when it goes: no trace function hears of it."""
    unborn = loops.numbers(world)
    world.start(loops.caller)
    armory.arm("yield")
    world.advance()
    assert (world.tracer is not None) == TRACES
    del unborn
    gc.collect()
    world.advance()
    assert world.tracer is None and sys.gettrace() is None


def test_a_coroutine_of_a_running_event_loop(armory: Armory, world: World, loops: Any) -> None:
    world.start(lambda _world: asyncio.run(loops.ticking(world)))
    armory.arm("async")
    numbers = [armory.wait("async")["n"] for _ in range(5)]
    assert numbers == list(range(numbers[0], numbers[0] + 5))
    armory.arming.remove("async")
    world.advance()
    assert world.tracer is None


def test_another_tools_tracer_is_left_alone(armory: Armory, world: World, loops: Any) -> None:
    events: list[str] = []

    def tool(frame: FrameType, event: str, _argument: Any) -> Any:
        events.append(event)
        return None

    def traced(world: World) -> None:
        sys.settrace(tool)
        try:
            loops.loop(world)
        finally:
            sys.settrace(None)

    world.start(traced)
    armory.arm("body")
    if TRACES:
        assert armory.places("body") == 1  # calls from now on have it
        assert "another tool" in armory.note("body")
    else:
        armory.wait("body")
    world.advance()
    assert world.tracer is tool and events


@pytest.mark.skipif(not TRACES, reason="Python 3.12 needs no trace function")
def test_a_tracer_that_somebody_took_away_comes_back(armory: Armory, world: World, loops: Any) -> None:
    world.start(loops.loop)
    armory.arm("body")
    armory.wait("body")
    world.at_tick = lambda: sys.settrace(None)
    world.advance()
    world.at_tick = lambda: None
    world.advance()
    assert world.tracer is None
    armory.marks()
    assert armory.note("body") == ""  # to be asked is enough
    armory.seen.queue.clear()
    armory.wait("body")


@pytest.mark.skipif(TRACES, reason="sys.monitoring came with Python 3.12")
def test_an_id_of_another_tool_is_not_taken(armory: Armory, world: World, loops: Any) -> None:
    monitoring: Any = sys.monitoring
    taken = []
    with contextlib.ExitStack() as stack:
        for tool in range(6):
            if monitoring.get_tool(tool) is None:
                monitoring.use_tool_id(tool, "another")
                stack.callback(monitoring.free_tool_id, tool)
                taken.append(tool)
        world.start(loops.loop)
        armory.arm("body")
        assert "sys.monitoring" in armory.note("body")
        assert all(monitoring.get_tool(tool) == "another" for tool in taken)
    armory.arming.remove("body")
    armory.arm("body")
    armory.wait("body")
    armory.arming.remove("body")


def test_the_instructions_with_which_a_statement_begins() -> None:
    text = """
    def f(x):
        x = [
            x,
        ]; y = 1
        for i in y:
            print(i)
        with open(x) as y:
            z = 1
        try:
            z = 2
        finally:
            w = 3
        if x:
            x = (1 if y
                 else 2)
    """
    names: dict[str, Any] = {}
    exec(compile(textwrap.dedent(text), "x.py", "exec"), names)
    code = names["f"].__code__
    for first, last, count in (
        (3, 5, 1),
        (6, 6, 1),
        (7, 7, 1),
        (8, 8, 1),
        (9, 9, 1),
        (13, 13, 2),
        (15, 16, 1),
        (18, 20, 0),
    ):
        found = running.entries(Target(code, (statement(first, last),)))
        assert len(found) == count, (first, found)


def statement(first: int, last: int) -> Site:
    return Site((), first, last, 0, "f", (), "", is_in_function=True)


def test_arming_and_disarming_a_running_loop(armory: Armory, world: World, loops: Any) -> None:
    """Threads begin and end, and are traced and freed, hundreds of times."""
    watched = Running(lambda names, frame: armory.hits.append((names[0], "", 0)), lambda name, error: None)
    stop = threading.Event()

    def short() -> None:
        other = World()
        other.at_tick = lambda: setattr(other, "go", other.ticks < 20)
        loops.loop(other)

    def spawn() -> None:
        while not stop.is_set():
            threads = [threading.Thread(target=short) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE)

    world.start(loops.loop)
    spawner = threading.Thread(target=spawn)
    spawner.start()
    line = armory.lines["body"]
    target = Target(loops.loop.__code__, (statement(line, line),))
    try:
        for count in range(1000):
            assert watched.watch("body", [target], None) == ""
            if count % 100 == 0:
                armory.hits.clear()
                world.advance()
                assert armory.hits
            watched.unwatch("body")
    finally:
        stop.set()
        spawner.join(DEADLINE)
    world.advance()
    assert world.tracer is None and not world.problems
