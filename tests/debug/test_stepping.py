"""Steps from line to line. Programs mark their lines with `# @name`; a test says which it expects, in order."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from devkit.debug.inworker.scopes import evaluate
from devkit.debug.inworker.stops import How, Stop
from tests.debug.parking_lot import SECONDS, Lot

_MARKS = {
    name: number
    for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
    for name in re.findall(r"# @(\w+)$", text)
}


@pytest.fixture
def lot() -> Iterator[Lot]:
    lot = Lot()
    yield lot
    lot.finish()


def steps(lot: Lot, program: Callable[[], Any], how: str, *, first: str) -> list[str]:
    """Starts a program; the marks at which it stops, when it is told these ways to go on ("next next stepIn")."""
    names = {number: name for name, number in _MARKS.items()}
    lot.start(program)
    lot.stop(line=_MARKS[first])
    seen = []
    for each in how.split():
        (stop,) = lot.stops.all()
        go(lot, stop.id, each)
        found = lot.wait(lambda stop=stop: [each for each in lot.stops.all() if each is not stop] or finished(lot))
        if found is True:
            return [*seen, "end"]
        assert found[0].id == stop.id and found[0].reason == "step"
        seen.append(names.get(lot.stops.record(found[0]).line, str(lot.stops.record(found[0]))))
    lot.stops.resume(stop.id)
    lot.threads[-1].join(SECONDS)
    return seen


def go(lot: Lot, name: str, how: Any) -> None:
    words: dict[str, How] = {"in": "stepIn", "out": "stepOut", "next": "next", "continue": "continue"}
    assert lot.stops.resume(name, words[how])


def finished(lot: Lot) -> bool:
    for thread in lot.threads:
        thread.join(0.05 if not lot.stops.records() else 0)
    if lot.threads[-1].is_alive():
        lot.changes.put(None)
        return False
    return True


def test_next_goes_over_calls_and_back_to_the_caller(lot: Lot) -> None:
    def inner() -> int:
        total = 1  # @over_inner
        return total

    def work() -> int:
        lot.hit()  # @over_hit
        a = inner()  # @over_a
        return a  # @over_return

    def caller() -> None:
        work()
        print("back")  # @over_back

    assert steps(lot, caller, "next next next", first="over_hit") == ["over_a", "over_return", "over_back"]


def test_step_in_and_out(lot: Lot) -> None:
    def inner() -> int:
        total = 1  # @in_first
        return total

    def work() -> None:
        lot.hit()  # @in_hit
        a = inner()  # @in_call
        print(a)  # @in_after

    seen = steps(lot, work, "next in out", first="in_hit")
    assert seen == ["in_call", "in_first", "in_after"]


def test_a_loop_stops_at_each_round(lot: Lot) -> None:
    def work() -> None:
        lot.hit()  # @loop_hit
        for _ in range(2):  # @loop_for
            repr(None)  # @loop_body

    assert steps(lot, work, "next next next next", first="loop_hit") == ["loop_for", "loop_body"] * 2


def test_recursion_is_stepped_over(lot: Lot) -> None:
    def recurse(depth: int) -> int:
        if depth == 3:
            lot.hit()  # @rec_hit
        if depth:  # @rec_if
            recurse(depth - 1)  # @rec_call
        return depth  # @rec_return

    seen = steps(lot, lambda: recurse(3), "next next next", first="rec_hit")
    assert seen == ["rec_if", "rec_call", "rec_return"]


def test_an_exception_that_leaves_a_function_stops_where_it_is_caught(lot: Lot) -> None:
    def fail() -> None:
        lot.hit()  # @exc_hit
        raise ValueError  # @exc_raise

    def work() -> None:
        try:
            fail()
        except ValueError as error:  # @exc_except
            repr(error)

    assert steps(lot, work, "next next", first="exc_hit") == ["exc_raise", "exc_except"]


def test_what_a_line_raised_is_said_at_the_next_one(lot: Lot) -> None:
    """As pdb does; a loop that has come to its end has raised nothing."""

    def work() -> None:
        try:
            lot.hit()  # @swallow_hit
            int("none")  # @swallow_raise
        except ValueError:  # @swallow_except
            for _ in iter(range(0)):  # @swallow_loop
                pass
            next(iter(()), None)  # @swallow_end

    lot.start(work)
    told = []
    for line in ("hit", "raise", "except", "loop", "end"):
        stop = lot.stop(line=_MARKS[f"swallow_{line}"])
        told.append(stop.note)
        if line == "except":
            assert isinstance(stop.names["__exception__"], ValueError)
        go(lot, stop.id, "continue" if line == "end" else "next")
    assert lot.wait(lambda: finished(lot))
    assert told == ["", "", "ValueError: invalid literal for int() with base 10: 'none'", "", ""]


def test_a_function_that_no_code_of_the_program_called_is_shown_as_it_returns(lot: Lot) -> None:
    def work() -> int:
        lot.hit()  # @end_hit
        return 40 + 2  # @end_return

    lot.start(work)
    for how, line in (("next", "end_hit"), ("next", "end_return")):
        go(lot, lot.stop(line=_MARKS[line]).id, how)
    stop = lot.wait(lambda: [each for each in lot.stops.all() if each.note])[0]
    assert (stop.note, stop.frame.f_locals["__return__"]) == (f"{work.__qualname__}()->42", 42)
    assert lot.stops.record(stop).line == _MARKS["end_return"]
    go(lot, stop.id, "next")
    assert lot.wait(lambda: finished(lot))


@pytest.mark.parametrize("how", ["next", "in", "out", "continue"])
def test_a_step_from_a_last_return_ends_nowhere(lot: Lot, how: str) -> None:
    def work() -> None:
        lot.hit()  # @last_hit

    assert steps(lot, work, f"next {how}", first="last_hit") == ["last_hit", "end"]


def test_an_exception_that_ends_a_function_is_not_shown_as_its_return(lot: Lot) -> None:
    def work() -> None:
        lot.hit()  # @fails_hit
        raise KeyError("no caller")  # @fails_raise

    def calm(*_: Any) -> None:
        return None

    before, threading.excepthook = threading.excepthook, calm
    try:
        assert steps(lot, work, "next next", first="fails_hit") == ["fails_raise", "end"]
    finally:
        threading.excepthook = before


def test_step_out_of_a_thread_function_shows_what_it_returns(lot: Lot) -> None:
    def work() -> int:
        lot.hit()  # @thread_hit
        repr(None)
        return 42  # @thread_return

    assert steps(lot, work, "out out", first="thread_hit") == ["thread_return", "end"]


def stepped(lot: Lot, how: str) -> Stop:
    """The stop after these steps from the one that stands."""
    for each in how.split():
        [last] = lot.stops.all()
        go(lot, last.id, each)
        lot.wait(lambda last=last: [each for each in lot.stops.all() if each is not last])
    [stop] = lot.stops.all()
    return stop


@pytest.mark.parametrize("how", ["out", "next next"])
def test_what_a_function_returned_is_shown_with_pdbs_arrow(lot: Lot, how: str) -> None:
    def inner(k: int) -> list[int]:
        lot.hit()
        return [k, k + 1]

    def work() -> None:
        found = sorted(inner(1))
        print(found)  # @arrow_back

    lot.start(work)
    lot.stop(function="inner")
    stop = stepped(lot, how)
    assert stop.note.endswith("inner()->[1, 2]") and stop.reason == "step"
    assert stop.run(lambda: evaluate("__return__ + [3]", stop.frame, also=stop.names), SECONDS) == [1, 2, 3]
    assert "__return__" not in stop.frame.f_locals
    while lot.stops.record(stop).line != _MARKS["arrow_back"]:
        stop = stepped(lot, "next")
        assert stop.note == ""


@pytest.mark.parametrize("how", ["out", "next next"])
def test_a_secret_is_not_shown_as_it_returns(lot: Lot, how: str) -> None:
    def get_password() -> str:
        lot.hit()
        return "hunter2"

    def work() -> None:
        repr(get_password())
        repr(None)

    lot.start(work)
    lot.stop(function="get_password")
    assert stepped(lot, how).note.endswith("get_password()->'<redacted>'")


def test_what_raised_has_returned_nothing(lot: Lot) -> None:
    def inner() -> int:
        lot.hit()
        raise ValueError

    def work() -> None:
        try:
            inner()
        except ValueError as error:  # @nothing_back
            repr(error)

    lot.start(work)
    lot.stop(function="inner")
    stop = stepped(lot, "out")
    assert lot.stops.record(stop).line == _MARKS["nothing_back"] and stop.note == "ValueError"


def test_another_tracer_is_back_after_the_step(lot: Lot) -> None:
    traces: Queue[Any] = Queue()

    def tracer(_frame: Any, _event: str, _argument: Any) -> None:
        return None

    def work() -> None:
        sys.settrace(tracer)
        lot.hit()  # @tracer_hit
        traces.put(sys.gettrace())  # @tracer_next
        sys.settrace(None)

    assert steps(lot, work, "next", first="tracer_hit") == ["tracer_next"]
    assert traces.get(timeout=SECONDS) is tracer


def test_nothing_is_traced_after_continue_and_in_other_threads(lot: Lot) -> None:
    traces: Queue[Any] = Queue()
    go_on = threading.Event()

    def work() -> None:
        lot.hit()  # @free_hit
        repr(None)  # @free_next
        traces.put((sys.gettrace(), sys._getframe().f_trace))

    def other() -> None:
        go_on.wait(SECONDS)
        traces.put((sys.gettrace(), sys._getframe().f_trace))

    lot.start(other)
    assert steps(lot, work, "next", first="free_hit") == ["free_next"]
    assert traces.get(timeout=SECONDS) == (None, None)
    go_on.set()
    assert traces.get(timeout=SECONDS) == (None, None)


def test_a_value_set_at_a_step_is_used_by_the_program(lot: Lot) -> None:
    from devkit.debug.inworker.values import evaluate

    results: Queue[int] = Queue()

    def work() -> None:
        value = 1
        lot.hit()  # @set_hit
        value += 1  # @set_next
        results.put(value)

    lot.start(work)
    stop = lot.stop(line=_MARKS["set_hit"])
    go(lot, stop.id, "next")
    stop = lot.stop(line=_MARKS["set_next"])
    stop.run(lambda: evaluate("value = 41", stop.frame), SECONDS)
    lot.stops.resume(stop.id)
    assert results.get(timeout=SECONDS) == 42


def test_a_closure_that_changes_a_stepped_frame_meanwhile_is_kept(lot: Lot) -> None:
    """CPython before 3.13 writes back, after a trace function, the variables that were looked at: not the old ones."""
    results: Queue[int] = Queue()
    changes: Queue[Callable[[], None]] = Queue()
    changed: Queue[None] = Queue()

    async def main() -> None:
        value = 1

        def change() -> None:
            nonlocal value
            value = 5
            changed.put(None)

        loop = asyncio.get_running_loop()
        changes.put(lambda: loop.call_soon_threadsafe(change) and None)
        lot.hit()  # @cell_hit
        repr(None)  # @cell_next
        results.put(value)

    lot.start(lambda: asyncio.run(main()))
    go(lot, lot.stop(line=_MARKS["cell_hit"]).id, "next")
    stop = lot.stop(line=_MARKS["cell_next"])
    assert stop.run(lambda: stop.frame.f_locals["value"], SECONDS) == 1
    changes.get(timeout=SECONDS)()
    changed.get(timeout=SECONDS)
    lot.stops.resume(stop.id)
    assert results.get(timeout=SECONDS) == 5


def test_next_over_await_stops_in_the_same_coroutine(lot: Lot) -> None:
    """Not in the loop's other callbacks, and these aren't traced while it waits."""
    traced: set[bool] = set()

    async def other() -> None:
        while True:
            await asyncio.sleep(0.001)
            traced.add(sys.gettrace() is not None)

    async def fetch() -> int:
        await asyncio.sleep(0.05)
        return 7

    async def work() -> None:
        lot.hit()  # @await_hit
        value = await fetch()  # @await_fetch
        await asyncio.sleep(0)  # @await_zero
        print(value)  # @await_print

    async def main() -> None:
        others = [asyncio.create_task(other()) for _ in range(3)]
        await asyncio.create_task(work())
        for task in others:
            task.cancel()

    seen = steps(lot, lambda: asyncio.run(main()), "next next next", first="await_hit")
    assert seen == ["await_fetch", "await_zero", "await_print"]
    assert traced == {False}


def test_step_into_and_out_of_a_coroutine(lot: Lot) -> None:
    async def fetch() -> int:
        value = 7  # @co_in
        await asyncio.sleep(0.01)  # @co_sleep
        return value  # @co_return

    async def work() -> None:
        lot.hit()  # @co_hit
        value = await fetch()  # @co_fetch
        print(value)  # @co_print

    async def again() -> None:
        await work()

    seen = steps(lot, lambda: asyncio.run(again()), "next in next next next", first="co_hit")
    assert seen == ["co_fetch", "co_in", "co_sleep", "co_return", "co_print"]
    seen = steps(lot, lambda: asyncio.run(again()), "next in out", first="co_hit")
    assert seen == ["co_fetch", "co_in", "co_print"]


def test_a_cancelled_await_stops_where_it_is_caught(lot: Lot) -> None:
    async def work() -> None:
        try:
            lot.hit()  # @cancel_hit
            await asyncio.sleep(60)  # @cancel_sleep
        except asyncio.CancelledError as error:  # @cancel_except
            repr(error)

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        task.cancel()
        await task

    seen = steps(lot, lambda: asyncio.run(main()), "next next", first="cancel_hit")
    assert seen == ["cancel_sleep", "cancel_except"]


def test_next_over_a_yield_stops_at_the_consumer(lot: Lot) -> None:
    def numbers() -> Iterator[int]:
        lot.hit()  # @gen_hit
        yield 1  # @gen_yield
        print("resumed")  # @gen_after

    def work() -> None:
        for number in numbers():  # @gen_for
            print(number)  # @gen_body

    seen = steps(lot, work, "next next next next next", first="gen_hit")
    assert seen == ["gen_yield", "gen_body", "gen_for", "gen_for", "end"]  # the last one as `work` returns


def test_next_in_an_async_generator(lot: Lot) -> None:
    async def numbers() -> AsyncIterator[int]:
        lot.hit()  # @agen_hit
        await asyncio.sleep(0.01)  # @agen_await
        yield 1  # @agen_yield

    async def work() -> None:
        async for number in numbers():
            print(number)  # @agen_body

    seen = steps(lot, lambda: asyncio.run(work()), "next next next", first="agen_hit")
    assert seen == ["agen_await", "agen_yield", "agen_body"]


def test_another_stop_of_the_thread_ends_a_step(lot: Lot) -> None:
    def inner() -> None:
        lot.hit()  # @other_hit

    def work() -> None:
        lot.hit()  # @both_hit
        inner()  # @both_call
        print("passed")  # @both_print

    lot.start(work)
    for mark in ("both_hit", "both_call"):
        go(lot, lot.stop(line=_MARKS[mark]).id, "next")
    stop = lot.stop(line=_MARKS["other_hit"])
    assert stop.reason == "breakpoint"
    lot.stops.resume(stop.id)
    lot.join()


def test_a_thread_whose_expression_was_interrupted_is_stepped(lot: Lot) -> None:
    """On CPython 3.11 an interrupt that is taken back leaves the interpreter in a state in which tracing never ends."""

    def inner() -> None:
        repr(None)  # @after_inner

    def work() -> None:
        lot.hit()  # @after_hit
        inner()  # @after_call

    def spin() -> None:
        while True:
            pass

    lot.start(work)
    stop = lot.stop(line=_MARKS["after_hit"])
    with pytest.raises(TimeoutError):
        stop.run(spin, 0.05)
    for how, mark in (("next", "after_call"), ("in", "after_inner")):
        go(lot, stop.id, how)
        lot.stop(line=_MARKS[mark])
    lot.stops.resume(stop.id)
    lot.join()


def test_two_coroutines_are_stepped_while_both_are_stopped(lot: Lot) -> None:
    """The outer one stops in a trace function, inside which the inner one is traced."""

    async def work() -> None:
        lot.hit()  # @two_hit
        repr(None)  # @two_next
        repr(None)  # @two_last

    loop = asyncio.new_event_loop()
    lot.start(loop.run_forever)
    calls = [asyncio.run_coroutine_threadsafe(work(), loop)]
    outer = lot.stop(line=_MARKS["two_hit"])
    go(lot, outer.id, "next")
    outer = lot.stop(line=_MARKS["two_next"])
    calls.append(asyncio.run_coroutine_threadsafe(work(), loop))
    inner = lot.stop(line=_MARKS["two_hit"])
    go(lot, inner.id, "next")
    lot.wait(lambda: [each.line for each in lot.stops.records()] == [_MARKS["two_next"]] * 2)
    go(lot, inner.id, "next")
    inner = lot.stop(line=_MARKS["two_last"])
    lot.stops.resume(inner.id)
    calls[1].result(SECONDS)
    go(lot, outer.id, "next")
    outer = lot.stop(line=_MARKS["two_last"])
    lot.stops.resume(outer.id)
    calls[0].result(SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    lot.join()
    loop.close()
