"""What a process tells of itself: locks, system calls, steps. In this process, without Ray and without torch."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from devkit.debug.inworker import (
    children,
    collectives,
    costs,
    ended,
    kernel_view,
    locks,
    operations,
    progress,
    stacks,
)
from devkit.doctor.onnode import network
from tests.debug.conftest import eventually
from tests.pace import stretched

Document = dict[str, Any]


@contextmanager
def thread(name: str, run: Callable[[], object]) -> Iterator[threading.Thread]:
    """A thread that ends when the body does: it has to release what `run` waits for."""
    started = threading.Thread(target=run, name=name, daemon=True)
    started.start()
    yield started
    started.join(stretched(30))
    assert not started.is_alive()


def waits() -> dict[str, Document]:
    return {each["thread"]: each for each in locks.describe(*locks.innermost("devkit"))}


def wait_of(name: str) -> Document:
    found: Document = eventually(lambda: waits().get(name), f"{name} waits for a lock", 10)
    return found


def line_of(function: Callable[..., object], text: str) -> int:
    import inspect

    lines, first = inspect.getsourcelines(function)
    return next(first + number for number, line in enumerate(lines) if text in line)


class Holder:
    """Locks as programs keep them."""

    def __init__(self) -> None:
        self.first, self.second = threading.Lock(), threading.RLock()
        self.many = [threading.Lock(), threading.Lock()]
        self.named = {"a": threading.Lock()}
        self.asked = False

    @property
    def trap(self) -> threading.Lock:
        self.asked = True
        return self.first

    def by_with(self) -> None:
        with self.first:
            pass

    def by_acquire(self) -> None:
        self.first.acquire(timeout=30)
        self.first.release()

    def by_index(self, at: int) -> None:
        with self.many[at], self.named["a"]:
            pass

    def by_property(self) -> None:
        with self.trap:
            pass

    def twice(self) -> None:
        with self.first:
            self.first.acquire()  # nobody else will

    def owned(self) -> None:
        self.second.acquire()
        self.second.release()


def test_a_with_that_waits_and_the_with_that_holds() -> None:
    holder = Holder()
    with holder.first, thread("waiter", holder.by_with) as waiter:  # held here
        found = wait_of("waiter")
        assert found["at"]["line"] == line_of(Holder.by_with, "with self.first")
        assert found["at"]["function"] == "Holder.by_with"
        assert found["holder"] == "MainThread"
        here = line_of(test_a_with_that_waits_and_the_with_that_holds, "# held here")
        assert found["held_at"]["line"] == here
        holder.first.release()
        waiter.join(stretched(30))
        holder.first.acquire()


def test_a_lock_that_a_coroutine_keeps_while_another_one_of_its_loop_waits_for_it() -> None:
    lock = threading.Lock()

    async def keeps() -> None:
        with lock:
            await asyncio.sleep(0)
            lock.acquire()  # the test has released it

    async def wants() -> None:
        with lock:
            pass

    async def main() -> None:
        await asyncio.gather(keeps(), wants())

    with thread("looping", lambda: asyncio.run(main())):
        found = wait_of("looping")
        assert found["holder"] == "looping" and found["at"]["function"].endswith("wants"), found
        assert found["held_at"]["function"].endswith("keeps") and found["kept_at"]["function"].endswith("keeps"), found
        assert found["kept_at"]["line"] == found["held_at"]["line"] + 1
        lock.release()  # so it ends


def test_acquire_and_release() -> None:
    holder = Holder()
    holder.first.acquire()
    with thread("waiter", holder.by_acquire):
        found = wait_of("waiter")
        assert (found["holder"], found["at"]["function"]) == ("MainThread", "Holder.by_acquire")
        holder.first.release()


def test_locks_in_lists_and_dictionaries() -> None:
    holder = Holder()
    with holder.named["a"], thread("waiter", lambda: holder.by_index(1)) as waiter:
        assert wait_of("waiter")["lock"].endswith(f"{id(holder.named['a']):#x}")
        holder.named["a"].release()
        waiter.join(stretched(30))
        holder.named["a"].acquire()


def test_an_owned_lock_names_its_owner() -> None:
    holder = Holder()
    holder.second.acquire()
    with thread("waiter", holder.owned):
        assert wait_of("waiter")["holder"] == "MainThread"
        holder.second.release()


def test_a_thread_that_waits_for_itself() -> None:
    holder = Holder()
    with thread("waiter", holder.twice):
        found = wait_of("waiter")
        assert found["holder"] == "waiter" and found["held_at"]["line"] == line_of(Holder.twice, "with self.first")
        holder.first.release()


def test_no_code_of_the_program_runs() -> None:
    holder = Holder()
    holder.first.acquire()
    with thread("waiter", holder.by_property):
        eventually(lambda: holder.asked, "the thread", 10)
        holder.asked = False
        assert "waiter" not in waits() and not holder.asked
        holder.first.release()


def test_events_and_ends_are_no_locks() -> None:
    done = threading.Event()
    with thread("waiter", done.wait), thread("joiner", lambda: done.wait(20)):
        assert waits() == {}
        done.set()


def test_what_the_kernel_says_of_a_thread_that_reads() -> None:
    theirs, ours = os.pipe()
    with thread("reader", lambda: os.read(theirs, 1)) as reader:

        def reads() -> Document | None:
            found = kernel_view.thread(reader.native_id or 0)
            return found if found.get("wait", {}).get("call") == "read" else None

        found = eventually(reads, "the read", 10)
        inode = str(os.fstat(theirs).st_ino)
        assert found["wait"] == {"call": "read", "target": "a pipe", "pipes": [inode]} and found["state"] == "S"
        os.write(ours, b"x")
    os.close(theirs)
    os.close(ours)


def test_a_thread_that_runs_waits_in_no_call() -> None:
    """Its state and its call are read one after the other: a thread that goes in and out of calls all the time."""
    there, back, done = os.pipe(), os.pipe(), threading.Event()

    def passes_on(source: int, sink: int) -> None:
        while not done.is_set():
            os.write(sink, os.read(source, 1))

    with (
        thread("other", lambda: passes_on(back[0], there[1])),
        thread("one", lambda: passes_on(there[0], back[1])) as one,
    ):
        os.write(there[1], b"x")
        seen = [kernel_view.thread(one.native_id or 0) for _ in range(500)]
        done.set()
        for sink in (there[1], back[1]):
            os.write(sink, b"x")
    for end in (*there, *back):
        os.close(end)
    assert {found["state"] for found in seen if "wait" in found} <= set("SD")


def test_what_the_kernel_says_of_a_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert (kernel_view.process(child.pid) or {})["state"] in "RSD"
    child.send_signal(19)
    eventually(lambda: (kernel_view.process(child.pid) or {})["state"] == "T", "SIGSTOP", 10)
    child.send_signal(18)
    child.stdin.close()
    child.wait(stretched(10))
    assert kernel_view.process(child.pid) is None


def test_what_the_agent_computes_is_not_its_programs() -> None:
    """As another process sees it, which asks while the agent there is late with its answer."""
    code = (
        "import sys\n"
        "from devkit.debug.inworker import threads\n"
        "def spin():\n"
        "    while True: sum(range(1000))\n"
        "threads.start(spin, 'devkit-request')\n"
        "print('spins', flush=True)\n"
        "input()\n"
        "spin()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "spins\n"
        before = (kernel_view.process(child.pid) or {})["cpu"]
        eventually(lambda: _ticks(child.pid) > 50, "half a second of work", 20)
        assert (kernel_view.process(child.pid) or {})["cpu"] <= before + 0.1
        child.stdin.write("\n")
        child.stdin.flush()
        eventually(lambda: (kernel_view.process(child.pid) or {})["cpu"] > before + 0.5, "the program's own work", 20)
        child.kill()


def _ticks(pid: int) -> int:
    """That all of a process has computed."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(stat[11]) + int(stat[12])


def test_what_children_compute_counts() -> None:
    before = (kernel_view.process(os.getpid()) or {})["children_cpu"]
    code = "import sys\nwhile True: sum(range(1000))"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        eventually(lambda: (kernel_view.process(os.getpid()) or {})["children_cpu"] > before, "work", 20)
    finally:
        child.kill()
        child.wait()


def test_what_was_started_to_look_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither while it is at work nor once it has ended."""
    spy = tmp_path / "py-spy"
    work = "while time.process_time() < 0.6: pass"
    spy.write_text(f"#!{sys.executable}\nimport time\n{work}\ntime.sleep(1)\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "_find_py_spy", lambda: str(spy))

    def looks() -> None:
        with suppress(stacks.PySpyError):
            stacks.py_spy(os.getpid(), timeout=stretched(60))

    def of_children() -> float:
        return float((kernel_view.process(os.getpid()) or {})["children_cpu"])

    before = of_children()
    with thread("looks", looks):
        eventually(lambda: any(map(_has_worked, _children())), "half a second of work", 60)
        assert abs(of_children() - before) < 0.1
    assert abs(of_children() - before) < 0.1


def _has_worked(pid: int) -> bool:
    with suppress(OSError):
        return _ticks(pid) > 50
    return False


def _children() -> list[int]:
    found = (Path(f"/proc/self/task/{task}/children").read_text().split() for task in os.listdir("/proc/self/task"))
    return [int(child) for children in found for child in children]


def test_what_a_program_that_looks_has_read_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel adds it to the process that has started it, once it has ended."""
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!{sys.executable}\nfor _ in range(9): open('/dev/zero', 'rb').read(1_000_000)\nprint('[]')\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "_find_py_spy", lambda: str(spy))
    before = (kernel_view.process(os.getpid()) or {})["io"]
    with costs.counted():
        assert stacks.py_spy(os.getpid(), timeout=stretched(60)) == []
    assert abs((kernel_view.process(os.getpid()) or {})["io"] - before) < 300_000
    subprocess.run([str(spy)], stdout=subprocess.DEVNULL, check=True)
    assert (kernel_view.process(os.getpid()) or {})["io"] - before > 9_000_000, "one of the program's does"


ASKED = """
import json, os, select, signal, sys, time
sys.path.insert(0, sys.argv[1])
from devkit.debug.inworker import children, costs, forked, kernel_view, progress
class Agent:
    _stops = None
    def caught(self): return []
with costs.counted(): progress.facts(Agent())
def facts(): return {**progress.facts(Agent()), "more": [len(os.read(zeros, 2_000_000)), sum(range(2_000_000))]}
forked.prepare(facts)
zeros = os.open("/dev/zero", os.O_RDONLY)
born = os.fork()
if not born:
    while True: select.select([], [], [], 600)
time.sleep(1)
seen = [(children.look(), kernel_view.process(os.getpid()), kernel_view.process(born)) for _ in range(6)]
os.kill(born, signal.SIGKILL)
print(json.dumps({
    "answers": ["more" in found[0]["facts"] for found, _, _ in seen],
    "seconds": [own["children_cpu"] for _, own, _ in seen],
    "bytes": [its["io"] for _, _, its in seen],
}))
"""


def test_what_it_costs_a_forked_child_to_be_asked_does_not_count() -> None:
    """There may be many of them, and each is asked at each look."""
    command = [sys.executable, "-c", ASKED, str(Path(__file__).parents[2])]
    told = json.loads(subprocess.check_output(command, timeout=stretched(120)))
    seen = [number for number, answers in enumerate(told["answers"]) if answers]
    assert len(seen) > 3, told
    first, last = seen[0], seen[-1]
    assert abs(told["seconds"][last] - told["seconds"][first]) < 0.1, told
    assert abs(told["bytes"][last] - told["bytes"][first]) < 500_000, told


def test_what_rays_daemons_compute_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor what is started by them: under `ray.init()` they and all workers are the driver's descendants."""
    daemon = tmp_path / "ray" / "dashboard" / "dashboard.py"
    daemon.parent.mkdir(parents=True)
    work = "while True: sum(range(1000))"
    daemon.write_text(f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', '{work}'])\n{work}\n")
    package = ModuleType("ray")
    package.__file__ = str(tmp_path / "ray" / "__init__.py")
    children = subprocess.Popen([sys.executable, "-u", str(daemon)], start_new_session=True)
    try:
        eventually(lambda: (kernel_view.process(children.pid) or {})["children_cpu"] > 0.2, "work", 20)
        monkeypatch.setitem(sys.modules, "ray", package)
        without = (kernel_view.process(os.getpid()) or {})["children_cpu"]
        monkeypatch.delitem(sys.modules, "ray")
        assert (kernel_view.process(os.getpid()) or {})["children_cpu"] >= without + 0.2  # both of them
    finally:
        os.killpg(children.pid, signal.SIGKILL)
        children.wait()


def test_what_is_read_to_tell_this_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text("a line of the table\n" * 500_000)
    before = (kernel_view.process(os.getpid()) or {})["io"]
    with costs.counted():
        kernel_view.unanswered(str(tmp_path))
        meanwhile = (kernel_view.process(os.getpid()) or {})["io"] - before
    told = (kernel_view.process(os.getpid()) or {})["io"] - before
    (tmp_path / "tcp").read_bytes()
    read = (kernel_view.process(os.getpid()) or {})["io"] - before
    assert meanwhile < 100_000 and told < 100_000 < 9_000_000 < read


def _read(count: int) -> bytes:
    with open("/dev/zero", "rb") as file:
        return file.read(count)


def test_what_children_tell_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """They and py-spy tell of lines and variables: of many, that may be megabytes."""
    monkeypatch.setattr(children, "look", lambda: [{"read": len(_read(3_000_000))}])
    before = (kernel_view.process(os.getpid()) or {})["io"]
    assert operations.children(None, {})["children"]
    assert (kernel_view.process(os.getpid()) or {})["io"] - before < 100_000


def test_what_was_released_is_held_no_more() -> None:
    """Some other code holds it then, of which nobody can tell."""
    holder = Holder()
    holder.first.acquire()
    holder.first.release()
    take = getattr(holder.first, "".join(("acq", "uire")))
    take()
    with thread("waiter", holder.by_with):
        assert wait_of("waiter")["holder"] is None
        holder.first.release()


class Trainer:
    def __init__(self) -> None:
        self.global_steps = 41


def step_and_phase(call: Callable[[], Any]) -> tuple[int | None, str]:
    """Of the frames above; `call` runs them."""
    found: tuple[int | None, str] = call()
    return found


def test_steps_by_name_the_outermost_first() -> None:
    def inner(step: int, phase: str) -> Any:
        return progress.position(sys._getframe())

    def outer() -> Any:
        self, step = Trainer(), True  # noqa: F841 - a flag is no number of a step
        return inner(3, "update")

    assert step_and_phase(outer) == (41, "update")


def test_an_async_actor_is_in_the_calls_whose_coroutines_wait() -> None:
    ray = "/v/lib/python3.11/site-packages/ray/_private/async_compat.py"
    waits = [{"file": "/job/a.py", "line": 4, "function": each} for each in ("next", "E.run")]
    threads = [{"frames": [{"file": ray, "line": 1, "function": "loop"}]}, {"frames": waits}, {"frames": waits}]
    assert progress.running_calls(threads) == "run"
    more = [{"frames": [{**waits[0], "function": name}]} for name in ("E.a", "E.b")]
    assert progress.running_calls([*threads, *more]) == "run, a, ..."


@pytest.mark.parametrize(("package", "told"), [("trainer", (7, "update_actor")), ("torch", (None, ""))])
def test_the_installed_trainer_tells_its_step(package: str, told: tuple[int | None, str]) -> None:
    """The frames of other packages are left out: their variables are their own."""
    source = "def run(look):\n    step, phase = 7, 'update_actor'\n    return look()\n"
    names: dict[str, Any] = {}
    exec(compile(source, f"/v/lib/python3.11/site-packages/{package}/run.py", "exec"), names)
    assert names["run"](lambda: progress.position(sys._getframe(1))) == told


def test_without_torch_there_is_nothing_to_tell() -> None:
    if "torch" not in sys.modules:
        assert collectives.groups() == []
    assert collectives.call_of(sys._getframe()) is None


AGENTS = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from devkit.debug.inworker import threads
def spins():
    while True: pass
threads.start(spins, "devkit-request")
print("begun", flush=True)
sys.stdin.read()
"""


def test_what_a_childs_own_agent_computes_is_no_work_of_its_parent() -> None:
    """It is asked for what it does at each look, and there may be many children."""
    with subprocess.Popen(
        [sys.executable, "-c", AGENTS, str(Path(__file__).parents[2])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        try:
            assert child.stdout is not None and child.stdout.readline() == "begun\n"
            began = _ticks(child.pid)

            mine = (kernel_view.process(os.getpid()) or {})["children_cpu"]
            eventually(lambda: _ticks(child.pid) > began + 50, "the agent computes", 60)
            assert (kernel_view.process(os.getpid()) or {})["children_cpu"] - mine < 0.3
        finally:
            child.kill()


def test_a_module_of_torch_that_is_imported_is_no_collective() -> None:
    """Nor is the body of a class there: both are code with a name, as functions are."""
    found: list[Document | None] = []
    source = "here()\nclass Group:\n    here()\ndef all_reduce():\n    here()\nall_reduce()\n"
    names = {"here": lambda: found.append(collectives.call_of(sys._getframe(1)))}
    exec(compile(source, "/v/torch/distributed/c10d.py", "exec"), names)
    assert found == [None, None, {"op": "all_reduce"}]


def test_a_sample_is_quick() -> None:
    class Agent:
        _stops = None

        def caught(self) -> list[object]:
            return []

    began = time.thread_time()
    found = progress.facts(Agent())
    assert found["process"]["state"] in "RS" and found["threads"][0]["name"] == "MainThread"
    assert time.thread_time() - began < 5  # it looks at what there is, and waits for nothing


TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: {own} 0300004D:1F90 01 00000400:00000000 01:00000014 00000005     0        0 {inode} 1
   1: {own} 0400004D:1F90 01 00000400:00000000 01:00000014 00000001     0        0 {inode} 1
   2: {own} 0500004D:1F90 0A 00000000:00000000 00:00000000 00000009     0        0 {inode} 1
   3: {own} 0600004D:1F90 01 00000400:00000000 01:00000014 00000009     0        0 1 1
"""


def test_peers_that_do_not_acknowledge(tmp_path: Path) -> None:
    with socket.socket() as mine:
        inode = os.readlink(f"/proc/self/fd/{mine.fileno()}")[8:-1]
        (tmp_path / "tcp").write_text(TCP.format(own="0100004D:9999", inode=inode))
        assert kernel_view.unanswered(str(tmp_path)) == [{"peer": "77.0.0.3", "tries": 5}]
    assert kernel_view.unanswered(str(tmp_path)) == [], "another process's"
    assert network.unacknowledged("77.0.0.3", str(tmp_path)) == 5
    assert network.unacknowledged("77.0.0.9", str(tmp_path)) == 0 == network.unacknowledged("::1")
    mapped = TCP.format(own="0100004D:9999", inode=1).replace("0300004D", "0000000000000000FFFF00000300004D")
    (tmp_path / "tcp6").write_text(mapped.replace("00000005", "00000007"))
    assert network.unacknowledged("77.0.0.3", str(tmp_path)) == 7


@pytest.mark.parametrize("together", ["gather", "wait"])
def test_a_task_that_failed_beside_others_that_are_awaited_with_it_is_not_unheard(together: str) -> None:
    class RayTaskError(Exception):
        cause = ValueError("no text")

    async def part(fails: bool) -> None:
        if fails:
            raise RayTaskError("a whole traceback")
        await asyncio.sleep(60)

    async def main() -> list[Document]:
        tasks = [asyncio.create_task(part(each)) for each in (True, False)]
        one = asyncio.gather(*tasks, return_exceptions=True) if together == "gather" else asyncio.wait(tasks)
        waiter = asyncio.ensure_future(one) if together == "wait" else asyncio.create_task(awaits(one))
        for _ in range(5):
            await asyncio.sleep(0)
        found = ended.ended()
        for each in (waiter, *tasks):
            each.cancel()
        await asyncio.gather(waiter, *tasks, return_exceptions=True)
        return found

    async def awaits(one: Any) -> None:
        await one

    [task] = [each for each in asyncio.run(main()) if each["name"].endswith("part")]
    assert (task["kind"], task["said"]) == ("part", "ValueError: no text, awaited")


def test_tasks_of_one_name_that_failed_at_one_line_are_counted() -> None:
    async def loop(number: int) -> None:
        await asyncio.sleep(60 if number == 3 else 0)
        raise ValueError(f"prompt {number % 2}")

    async def main() -> list[Document]:
        tasks = [asyncio.create_task(loop(each)) for each in range(4)]
        while sum(task.done() for task in tasks) < 3:  # an await of one of them would hear it
            await asyncio.sleep(0)
        found = ended.ended()
        tasks[3].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found

    [task] = [each for each in asyncio.run(main()) if each["name"].endswith("loop")]
    assert (task["kind"], task["count"], task["alike"], task["open"]) == ("task", 3, False, 1)


def test_a_thread_that_has_ended_and_a_task_that_failed_unheard_are_told() -> None:
    done = threading.Thread(target=lambda: None, name="prefetch")
    fresh = threading.Thread(target=lambda: None, name="not begun")
    done.start()
    done.join()

    async def apply_updates() -> None:
        raise KeyError("grad_norm")

    async def fine() -> None:
        pass

    async def main() -> list[Document]:
        tasks = [asyncio.get_running_loop().create_task(each()) for each in (apply_updates, fine)]
        await asyncio.wait(tasks)
        found = ended.ended()
        assert ended.ended() == found, "to look is not to hear"
        with pytest.raises(KeyError):
            await tasks[0]
        assert not [each for each in ended.ended() if each["name"].endswith("apply_updates")]
        return found

    found = asyncio.run(main())
    [task] = [each for each in found if each["name"].endswith("apply_updates")]
    assert (task["kind"], task["said"], task["at"]["function"].rpartition(".")[2]) == (
        "task",
        "KeyError: 'grad_norm'",
        "apply_updates",
    )
    names = [each["name"] for each in ended._threads()]
    assert done.name in names and fresh.name not in names and threading.current_thread().name not in names
