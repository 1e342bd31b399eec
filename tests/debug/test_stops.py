"""Threads and coroutines that are stopped, listed, asked and resumed: in this very process, without Ray."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from queue import Queue

import pytest

from tests.debug.parking_lot import SECONDS, Lot, identity
from tests.pace import stretched


@pytest.fixture
def lot() -> Iterator[Lot]:
    lot = Lot()
    yield lot
    lot.finish()


def test_a_stop_is_listed_with_its_place_and_ends_by_continue(lot: Lot) -> None:
    def work() -> None:
        lot.hit()

    lot.start(work, "worker-7")
    stop = lot.stop()
    (record,) = lot.stops.records()

    assert record.id == f"{identity().worker_id[:8]}-1"
    assert (record.role, record.rank, record.pid, record.reason) == ("Trainer", 3, 4242, "breakpoint")
    assert record.file == __file__ and record.line == work.__code__.co_firstlineno + 1
    assert record.function.endswith("work") and record.thread == "worker-7"
    assert lot.stops.resume(stop.id)
    lot.join()
    assert lot.stops.records() == []
    ended, why = lot.ended.get(timeout=SECONDS)
    assert (ended.id, why) == (record.id, "continued")
    assert not lot.stops.resume(stop.id)


def test_a_stop_in_an_except_knows_what_is_handled_there(lot: Lot) -> None:
    def inner() -> None:
        lot.hit()  # what the caller handles is no business of this frame

    def work() -> None:
        try:
            raise ValueError("signal only works in main thread")
        except ValueError:
            lot.hit()
            inner()

    lot.start(work, "worker-7")
    stop = lot.stop()
    assert isinstance(stop.names["__exception__"], ValueError)
    assert lot.stops.records()[0].thread == "worker-7 (handling ValueError: signal only works in main thread)"
    lot.stops.resume(stop.id)
    following = lot.stop(function="inner")
    assert following.names == {} and lot.stops.records()[0].thread == "worker-7"
    lot.stops.resume(following.id)
    lot.join()


def test_threads_stop_on_their_own_and_only_the_one_that_is_meant_goes_on(lot: Lot) -> None:
    done: Queue[int] = Queue()

    def work(number: int) -> None:
        lot.hit()
        done.put(number)

    for number in range(3):
        lot.start(lambda number=number: work(number))  # type: ignore[misc]
    lot.wait(lambda: len(lot.stops.records()) == 3)
    stops = {stop.run(lambda stop=stop: stop.frame.f_locals["number"], SECONDS): stop for stop in lot.stops.all()}

    assert len({stop.thread_id for stop in stops.values()}) == 3
    lot.stops.resume(stops[1].id)
    assert done.get(timeout=SECONDS) == 1
    assert {record.id for record in lot.stops.records()} == {stops[0].id, stops[2].id}


def test_jobs_run_in_the_stopped_thread_in_order_and_their_exceptions_come_back(lot: Lot) -> None:
    thread = lot.start(lot.hit)
    stop = lot.stop()
    order: list[int] = []

    for number in range(5):
        stop.run(lambda number=number: order.append(number), SECONDS)
    assert order == list(range(5))
    assert stop.run(threading.get_ident, SECONDS) == thread.ident
    with pytest.raises(ZeroDivisionError):
        stop.run(lambda: 1 // 0, SECONDS)
    with pytest.raises(SystemExit):
        stop.run(sys.exit, SECONDS)
    assert lot.stops.get(stop.id) is stop


def test_a_job_without_end_is_interrupted_and_the_stop_stays(lot: Lot) -> None:
    def spin() -> None:
        while True:
            pass

    lot.start(lot.hit)
    stop = lot.stop()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        stop.run(spin, 0.1)
    assert stop.run(lambda: "still here", SECONDS) == "still here"
    assert lot.stops.get(stop.id) is stop


def test_a_breakpoint_in_an_evaluation_is_passed_by(lot: Lot) -> None:
    lot.start(lot.hit)
    stop = lot.stop()
    assert stop.run(lot.hit, SECONDS) is None
    assert [record.id for record in lot.stops.records()] == [stop.id]


def test_a_job_that_comes_too_late_says_so(lot: Lot) -> None:
    lot.start(lot.hit)
    stop = lot.stop()
    lot.stops.resume(stop.id)
    lot.join()
    with pytest.raises(LookupError, match="not stopped any more"):
        stop.run(lambda: None, SECONDS)


def test_a_timeout_ends_a_stop_and_is_the_reason(lot: Lot) -> None:
    lot.start(lambda: lot.stops.park(sys._getframe(), "breakpoint", timeout=0.05))
    lot.join()
    assert lot.ended.get(timeout=SECONDS)[1] == "timeout"
    assert [why for _, why in lot.stops.gone] == ["timeout"]


def test_an_exception_from_another_thread_ends_the_stop_and_goes_its_way(lot: Lot) -> None:
    class Cancelled(BaseException):
        pass

    seen: Queue[BaseException] = Queue()

    def work() -> None:
        try:
            lot.hit()
        except Cancelled as error:
            seen.put(error)

    thread = lot.start(work)
    lot.stop()
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Cancelled))
    assert isinstance(seen.get(timeout=SECONDS), Cancelled)
    assert lot.ended.get(timeout=SECONDS)[1] == "cancelled"
    assert lot.stops.records() == []


def test_ctrl_c_ends_the_stop_of_a_main_thread() -> None:
    program = """
        import sys, threading, os, signal, _thread
        from tests.debug.parking_lot import Lot
        lot = Lot()
        def interrupt():
            lot.stop()
            _thread.interrupt_main()  # as ray.cancel does: no signal wakes the thread
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            lot.hit()
        except KeyboardInterrupt:
            print(lot.ended.get_nowait()[1])
    """
    assert _output(program) == "cancelled\n"


def test_a_forked_child_has_no_stops_and_can_stop_itself(lot: Lot) -> None:
    lot.start(lot.hit)
    lot.stop()
    child = os.fork()
    if child == 0:
        ok = lot.stops.records() == []
        threading.Thread(target=lot.hit, daemon=True).start()
        deadline = time.monotonic() + SECONDS
        while not lot.stops.records() and time.monotonic() < deadline:
            time.sleep(0.01)
        os._exit(0 if ok and len(lot.stops.records()) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(lot.stops.records()) == 1


def test_waiting_costs_no_cpu(lot: Lot) -> None:
    """Both ways of waiting, a second of CPU time of the process against ten seconds of turning at full speed."""
    spent: Queue[float] = Queue()

    def work() -> None:
        before = time.thread_time()
        lot.stops.park(sys._getframe(), "breakpoint", timeout=2.0)
        spent.put(time.thread_time() - before)

    async def main() -> None:
        work()

    lot.start(work)
    lot.start(lambda: asyncio.run(main()))
    lot.join()
    assert max(spent.get(timeout=SECONDS) for _ in range(2)) < 0.2


def test_frames_of_an_exception_go_on_with_its_causes(lot: Lot) -> None:
    def inner() -> None:
        key = "lost"
        {}[key]

    def outer() -> None:
        try:
            inner()
        except KeyError as error:
            raise ValueError("no such thing") from error

    def work() -> None:
        try:
            outer()
        except ValueError as error:
            lot.stops.park(sys._getframe(), "exception", exception=error, traceback=error.__traceback__)

    lot.start(work)
    stop = lot.stop()
    names = [frame.function.rpartition(".")[2] for frame in stop.frames()]
    marks = [frame.function.partition("]")[0] for frame in stop.frames() if frame.function.startswith("[")]

    assert names == ["outer", "work", "inner", "outer"]
    assert marks == ["[caused by: KeyError"] * 2
    assert stop.frames()[2].frame.f_locals == {"key": "lost"}
    (record,) = lot.stops.records()
    assert record.exception == {"type": "ValueError", "message": "no such thing"}
    assert record.reason == "exception"


def test_other_coroutines_go_on_while_one_is_stopped(lot: Lot) -> None:
    beats: Queue[str | None] = Queue()

    async def stopped() -> str:
        value = "unchanged"
        lot.hit()
        await asyncio.sleep(0)
        return value

    async def beat() -> None:
        while True:
            task = asyncio.current_task()
            beats.put(task and task.get_name())
            await asyncio.sleep(0.001)

    async def main() -> str:
        beating = asyncio.create_task(beat(), name="heart")
        value = await asyncio.create_task(stopped(), name="patient")
        beating.cancel()
        return value

    results: Queue[str] = Queue()
    lot.start(lambda: results.put(asyncio.run(main())))
    stop = lot.stop()
    while not beats.empty():
        beats.get_nowait()

    assert {beats.get(timeout=SECONDS) for _ in range(20)} == {"heart"}
    assert stop.run(lambda: getattr(asyncio.current_task(), "get_name", str)(), SECONDS) == "patient"
    assert lot.stops.records()[0].thread == "program patient"
    from devkit.debug.inworker.values import evaluate

    stop.run(lambda: evaluate("value = 'edited'", stop.frame), SECONDS)
    lot.stops.resume(stop.id)
    assert results.get(timeout=SECONDS) == "edited"
    lot.join()


@pytest.mark.parametrize("first", [0, 1])
def test_two_coroutines_of_one_loop_are_stopped_at_once(lot: Lot, first: int) -> None:
    """In either order of resuming; the earlier one goes on when the later one did."""
    order: list[int] = []

    async def work(number: int) -> None:
        lot.hit()
        order.append(number)

    async def main() -> None:
        await asyncio.gather(*(work(number) for number in range(2)))

    lot.start(lambda: asyncio.run(main()))
    lot.wait(lambda: len(lot.stops.records()) == 2)
    outer, inner = lot.stops.all()

    assert outer.run(lambda: outer.frame.f_locals["number"], SECONDS) == 0
    assert inner.run(lambda: inner.frame.f_locals["number"], SECONDS) == 1
    assert len({outer.thread_id, inner.thread_id}) == 2
    assert [frame.function.rpartition(".")[2] for frame in inner.frames()].count("work") == 1
    resumed = [outer, inner][first]
    lot.stops.resume(resumed.id)
    if first == 0:
        assert f"goes on when {inner.id} did" in lot.stops.record(outer).thread
        lot.stops.resume(inner.id)
    else:
        lot.wait(lambda: len(lot.stops.records()) == 1)
        lot.stops.resume(outer.id)
    lot.join()
    assert order == [1, 0]


def test_the_loop_finds_its_ready_queue_as_it_left_it(lot: Lot) -> None:
    """Callbacks that were ready when the stop began are run inside it; the interrupted round must not miss them."""
    ran: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(lot.hit)
        for number in range(50):
            loop.call_soon(ran.append, number)
        await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)

    lot.start(lambda: asyncio.run(main()))
    stop = lot.stop()
    stop.run(lambda: None, SECONDS)
    deadline = time.monotonic() + SECONDS
    while len(ran) < 50 and time.monotonic() < deadline:
        stop.run(lambda: None, SECONDS)
    lot.stops.resume(stop.id)
    lot.join()
    assert ran == list(range(50))


class CountingLoop(asyncio.SelectorEventLoop):
    rounds = 0

    def _run_once(self) -> None:
        self.rounds += 1
        super()._run_once()  # type: ignore[misc]


def test_a_loop_that_was_told_to_stop_holds_without_spinning(lot: Lot) -> None:
    """A loop that ends polls without waiting; run again and again, it would take a whole core."""
    loop = CountingLoop()

    async def stopped() -> None:
        lot.hit()

    async def main() -> None:
        loop.create_task(stopped())
        await asyncio.sleep(0)  # it stops in here; the loop's main coroutine ends meanwhile

    lot.start(lambda: loop.run_until_complete(main()))
    stop = lot.stop()
    while not loop._stopping:  # type: ignore[attr-defined]
        stop.run(lambda: None, SECONDS)
    before = loop.rounds
    for _ in range(20):
        time.sleep(0.01)  # in which it would turn
        stop.run(lambda: None, SECONDS)
    assert loop.rounds - before <= 1
    lot.stops.resume(stop.id)
    lot.join()
    loop.close()


def test_a_loop_of_another_make_waits_and_the_record_says_so(lot: Lot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devkit.debug.inworker.loops._NEEDED", ("_no_such_attribute",))

    async def main() -> None:
        lot.hit()

    lot.start(lambda: asyncio.run(main()))
    stop = lot.stop()
    assert "its event loop is also blocked" in lot.stops.records()[0].thread
    lot.stops.resume(stop.id)
    lot.join()


def test_context_variables_of_a_stopped_coroutine_are_its_own_afterwards(lot: Lot) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []

    async def stopped() -> None:
        variable.set("mine")
        lot.hit()
        seen.append(variable.get())

    async def other() -> None:
        variable.set("other's")
        await asyncio.sleep(0.001)

    async def main() -> None:
        await asyncio.gather(stopped(), *(other() for _ in range(3)))

    lot.start(lambda: asyncio.run(main()))
    lot.stops.resume(lot.stop().id)
    lot.join()
    assert seen == ["mine"]


def test_a_failing_owner_never_reaches_the_program(lot: Lot, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("the hub is gone")

    lot.stops._changed = fail
    lot.stops.on_end = fail
    lot.start(lambda: lot.stops.park(sys._getframe(), "breakpoint", timeout=0.01))
    lot.join()
    assert "the hub is gone" in capfd.readouterr().err


def _output(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
