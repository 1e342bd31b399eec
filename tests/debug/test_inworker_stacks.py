"""The stacks of this process: threads, asyncio tasks, and py-spy's view."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import progress, stacks
from devkit.debug.inworker.documents import ThreadStack
from tests import documents
from tests.debug.conftest import eventually
from tests.debug.parking_lot import Lot
from tests.pace import stretched


@pytest.fixture
def lot() -> Iterator[Lot]:
    lot = Lot()
    yield lot
    lot.finish()


def functions(threads: list[dict[str, Any]], name: str) -> list[str]:
    thread = next(thread for thread in threads if thread["name"] == name)
    return [frame["function"] for frame in thread["frames"] if frame["file"] == __file__]


@contextmanager
def waiting_thread(name: str) -> Iterator[None]:
    entered, release = threading.Event(), threading.Event()

    def inner_wait() -> None:
        entered.set()
        release.wait(stretched(60))

    def outer_wait() -> None:
        inner_wait()

    thread = threading.Thread(target=outer_wait, name=name)
    thread.start()
    assert entered.wait(stretched(60))
    try:
        yield
    finally:
        release.set()
        thread.join(stretched(60))


def test_all_threads_are_there_innermost_frame_first() -> None:
    with waiting_thread("patient"):
        threads = stacks.all_threads()

    names = [name.rpartition(".")[2] for name in functions(threads, "patient")]
    assert names == ["inner_wait", "outer_wait"]
    assert threads[0]["name"] == "MainThread"
    assert functions(threads, "MainThread")[0].startswith("test_all_threads"), "our own frames are not shown"
    assert set(threads[0]["frames"][0]) == {"file", "line", "function"}


def test_our_own_threads_are_not_shown() -> None:
    with waiting_thread("devkit-agent"):
        assert all(thread["name"] != "devkit-agent" for thread in stacks.all_threads())


def test_a_lock_that_a_stopped_thread_holds_stops_nobody() -> None:
    lock = threading._active_limbo_lock  # type: ignore[attr-defined]
    locked, looked = threading.Event(), threading.Event()

    def look() -> None:
        assert locked.wait(stretched(60))
        stacks.all_threads()
        looked.set()

    looking = threading.Thread(target=look)
    looking.start()  # before the lock is taken: starting needs it
    with lock:
        locked.set()
        assert looked.wait(stretched(30))
    looking.join(stretched(60))


def test_a_deep_recursion_is_cut() -> None:
    def deep(left: int) -> list[dict[str, Any]]:
        return deep(left - 1) if left else stacks.all_threads()

    frames = next(thread for thread in deep(stacks.DEPTH * 2) if thread["name"] == "MainThread")["frames"]

    assert len(frames) == stacks.DEPTH and frames[0]["function"].endswith("deep")


def test_asyncio_tasks_that_wait_are_shown_and_the_one_that_runs_is_not() -> None:
    async def innermost(event: asyncio.Event) -> None:
        await event.wait()

    async def call(event: asyncio.Event) -> None:
        await innermost(event)

    async def main() -> list[dict[str, Any]]:
        event = asyncio.Event()
        waiting = asyncio.create_task(call(event), name="call 7")
        asyncio.current_task().set_name("runs")  # type: ignore[union-attr]
        await asyncio.sleep(0)  # until the task waits
        threads = stacks.all_threads()
        event.set()
        await waiting
        return threads

    threads = asyncio.run(main())

    names = [name.rpartition(".")[2] for name in functions(threads, "task call 7")]
    assert names == ["innermost", "call"]
    assert all(thread["name"] != "task runs" for thread in threads)


def test_tasks_come_in_the_order_of_their_numbers_and_those_with_a_name_last() -> None:
    async def main() -> list[str]:
        event = asyncio.Event()
        waiting = [asyncio.create_task(event.wait()) for _ in range(30)]
        waiting[7].set_name("a call")
        await asyncio.sleep(0)
        names = [str(thread["name"]) for thread in stacks.all_threads() if str(thread["name"]).startswith("task ")]
        event.set()
        await asyncio.gather(*waiting)
        return names

    *numbered, last = asyncio.run(main())
    numbers = [int(name.removeprefix("task Task-")) for name in numbered]
    assert numbers == sorted(numbers) and len(numbers) == 29 and last == "task a call"


def test_a_task_of_another_threads_loop_is_shown() -> None:
    async def patient(entered: threading.Event, event: asyncio.Event) -> None:
        entered.set()
        await event.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    entered, event = threading.Event(), asyncio.Event()
    future = asyncio.run_coroutine_threadsafe(patient(entered, event), loop)
    try:
        assert entered.wait(stretched(60))
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(stretched(60))
        found = [
            frame["function"] for each in stacks.all_threads() for frame in each["frames"][:2] if "task" in each["name"]
        ]
    finally:
        loop.call_soon_threadsafe(event.set)
        future.result(stretched(60))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(stretched(60))
        loop.close()

    assert any(name.endswith("patient") for name in found)


@pytest.mark.parametrize(("actor_id", "task"), [("", "load"), ("ab12", "")])
def test_a_task_is_named_only_where_no_actor_lives(actor_id: str, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that is being made has the title `ray::Engine.__init__`, as if that were a task."""
    monkeypatch.setattr(progress, "task_name", lambda: "load")
    monkeypatch.setattr(progress.waits, "actor", lambda: {"actor_id": actor_id, "concurrency": 1})
    assert progress.task_function() == task


# ---- py-spy


@pytest.fixture
def sleeper() -> Iterator[int]:
    source = "def waits():\n    print('ready', flush=True)\n    input()\nwaits()"
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    yield process.pid
    process.communicate("\n", timeout=stretched(60))


def spied(pid: int) -> list[dict[str, Any]]:
    try:
        return stacks.py_spy(pid, timeout=stretched(60))
    except stacks.PySpyError as error:
        pytest.skip(str(error))


def test_py_spy_gives_the_same_shape(sleeper: int) -> None:
    def waiting() -> list[dict[str, Any]]:
        """Once it is behind the line that has said that it is ready."""
        return [each for each in spied(sleeper) if each["frames"][0]["line"] == 3]

    (thread,) = eventually(waiting, "its third line", 20)

    assert [frame["function"] for frame in thread["frames"]] == ["waits", "<module>"]
    assert set(thread["frames"][0]) == {"file", "line", "function"} and thread["frames"][0]["line"] == 3


def test_a_process_that_is_gone_is_an_error_in_words(sleeper: int) -> None:
    spied(sleeper)  # else there is no py-spy
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(stretched(60))

    with pytest.raises(stacks.PySpyError, match=r"\w+"):
        stacks.py_spy(process.pid, timeout=stretched(60))


def test_no_py_spy_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(stacks.PySpyError, match="not installed"):
        stacks.py_spy(os.getpid())


@pytest.mark.parametrize(
    ("output", "words"),
    [("echo 'Error: Permission Denied: Try running again' >&2; exit 1", "SYS_PTRACE"), ("echo no json", "JSON"),
     ("echo 'Error: no such thing' >&2; exit 1", "no such thing"), ("exec sleep 60", "within 0.2 s")],
)  # fmt: skip
def test_what_py_spy_says_is_passed_on(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, output: str, words: str) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\n{output}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(stacks.PySpyError, match=words):
        stacks.py_spy(os.getpid(), timeout=0.2 if "sleep" in output else 60)


def test_who_holds_the_gil_is_in_the_documents_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [{"name": "spin", "filename": "/work/train.py", "line": 3}]
    threads = [{"thread_name": name, "owns_gil": name == "spins", "frames": frames} for name in ("spins", "waits")]
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho {shlex.quote(json.dumps(threads))}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    found = stacks.py_spy(os.getpid(), timeout=stretched(60))

    assert [thread.get("gil") for thread in found] == [True, None]
    documents.check(found, list[ThreadStack])


def test_a_stop_at_an_exception_shows_the_frames_that_it_went_through(lot: Lot) -> None:
    def fails() -> None:
        raise KeyError("response")

    def task() -> None:
        try:
            fails()
        except KeyError as error:
            lot.stops.park(sys._getframe(), "exception", exception=error)

    running = lot.start(task, "worker")
    stop = lot.stop()
    [thread] = [each for each in stacks.all_threads() if each["name"] == "worker"]
    assert thread["stopped"]
    assert [each["function"].rpartition(".")[2] for each in thread["frames"][:2]] == ["fails", "task"]
    lot.stops.resume(stop.id)
    running.join(60)
