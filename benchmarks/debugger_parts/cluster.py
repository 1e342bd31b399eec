"""The debugger's figures on a Ray of its own: two nodes, eight workers."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.debugger_parts.rows import Row, median

WORKERS = 8
DEADLINE = 120.0

# The workers step until a file appears. Each says how long our hook took in it, or how long it took to answer at all.
JOB = """
import os, sys, time
import ray
@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, rank):
        self.rank = rank
    def hook(self):
        agent = sys.modules.get("devkit_inworker.agent")
        return agent.current().start_seconds if agent and agent.current() else 0.0
    def step(self, k):
        return k * self.rank  # @step
    def train(self, end):
        k = 0
        while not os.path.exists(end):
            self.step(k)
            k += 1
            time.sleep(0.005)
        return k
if __name__ == "__main__":
    ray.init(logging_level="ERROR", log_to_driver=False)
    times = []
    for _ in range(int(sys.argv[2])):  # one at a time: all at once would measure how many cores there are
        worker = Worker.remote(0)
        times.append(ray.get(worker.hook.remote()))
        ray.kill(worker)
    workers = [Worker.options(scheduling_strategy="SPREAD").remote(rank) for rank in range(int(sys.argv[2]))]
    ray.get([worker.hook.remote() for worker in workers])
    print("hook", times, flush=True)
    print("done", ray.get([worker.train.remote(sys.argv[1]) for worker in workers]), flush=True)
"""


def all_rows(runs: int) -> list[Row]:
    with _cluster() as environ, _job(environ) as (job, hook):
        os.environ.update(environ)
        return [_start(hook), _arm(job, runs), *_stops(job, runs), _stacks(job, runs)]


@contextmanager
def _cluster() -> Iterator[dict[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="dkb", dir="/tmp"))  # Ray's sockets need a short path
    environ = {
        "DEVKIT_HOME": str(folder / "home"),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ADDRESS": "",
    }
    inner = {**os.environ, **environ}
    try:
        _devkit(inner, "debug-cluster", "--nodes", "2", "--num-cpus", str(WORKERS), "--json")
        yield environ
    finally:
        _devkit(inner, "debug-cluster", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def _devkit(environ: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "devkit", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE, check=True)
    return done.stdout


@contextmanager
def _job(environ: dict[str, str]) -> Iterator[tuple[Path, list[float]]]:
    """The program, once its workers step, and how many seconds our hook took in each."""
    folder = Path(environ["RAY_TMPDIR"]) / "job"
    folder.mkdir()
    program, end = folder / "bench_job.py", folder / "end"
    program.write_text(JOB)
    command = [sys.executable, "-m", "devkit", "run", "--", sys.executable, str(program), str(end), str(WORKERS)]
    with subprocess.Popen(
        command, env={**os.environ, **environ}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("hook"):
                hook = json.loads(line.removeprefix("hook"))
                break
        try:
            yield program, hook
        finally:
            end.touch()
            from devkit.debug.client import connect

            with connect(None) as hub:
                hub.call("continue", ids=None)
            running.stdout.read()


def _start(hook: list[float]) -> Row:
    floor = _python_start()
    return Row(
        "our hook in a worker's start",
        f"{median(hook) * 1e3:.1f} ms (most {max(hook) * 1e3:.0f} ms)",
        "< 20 ms",
        f"starting a bare Python: {floor * 1e3:.0f} ms",
    )


def _python_start() -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        times.append(time.perf_counter() - began)
    return median(times)


def _point(program: Path, condition: str) -> dict[str, Any]:
    from devkit.debug import breaks

    line = next(number for number, text in enumerate(JOB.splitlines(), 1) if "# @step" in text)
    return breaks.make(f"{program}:{line} @Worker if {condition}").to_json()


def _arm(program: Path, runs: int) -> Row:
    """From the request to the last worker's answer, over a connection that is open; beside an empty request."""
    from devkit.debug.client import connect

    times, floors = [], []
    with connect(None) as hub:
        for _ in range(max(runs, 9)):
            point = _point(program, "k < 0")
            began = time.perf_counter()
            state = hub.call("break", breakpoint=point, wait=10.0)
            times.append(time.perf_counter() - began)
            assert state["armed"] >= WORKERS, state
            hub.call("clear", id=point["id"])
            began = time.perf_counter()
            hub.call("ps")
            floors.append(time.perf_counter() - began)
    return Row(
        f"break to armed on {WORKERS} running workers",
        f"{median(times) * 1e3:.0f} ms",
        "< 200 ms",
        f"a request to the hub alone: {median(floors) * 1e3:.1f} ms",
    )


def _stops(program: Path, runs: int) -> list[Row]:
    """All workers stop; until the list shows them; until all stacks are there."""
    from devkit.debug.client import connect

    listed, shown, attached, pure = [], [], [], []
    with connect(None) as hub:
        for _ in range(max(runs, 5)):
            point = _point(program, "k % 7 == 0")
            news = hub.watch()
            next(news)
            hub.call("break", breakpoint=point, wait=10.0)
            stops: list[dict[str, Any]] = []
            while len(stops) < WORKERS:
                stops = next(news)["stops"]
            listed.append(time.time() - max(stop["since"] for stop in stops))
            began = time.perf_counter()
            _devkit(dict(os.environ), "ps", "--json")
            shown.append(time.perf_counter() - began)
            began = time.perf_counter()
            _attach_all([stop["worker_id"] for stop in stops])
            attached.append(time.perf_counter() - began)
            hub.call("clear", id=point["id"])
            hub.call("continue", ids=None)
            pure.append(_python_start())
    return [
        Row(
            "a stop until a watch, and until a new `devkit ps`, shows it",
            f"{median(listed) * 1e3:.0f} ms, {median(listed) * 1e3 + median(shown) * 1e3:.0f} ms",
            "< 500 ms",
            f"starting a bare Python: {median(pure) * 1e3:.0f} ms",
        ),
        Row(
            f"attach to {WORKERS} ranks, until all stacks are there",
            f"{median(attached) * 1e3:.0f} ms",
            "< 1 s",
            "debugpy, one rank: 221-237 ms (reference/ray_debugger.md 1.4)",
        ),
    ]


def _attach_all(workers: list[str]) -> None:
    from devkit.debug.client import HubClient, connect

    def attach(hub: HubClient, worker: str) -> None:
        channel = hub.channel(worker)
        channel.send({"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "devkit"}})
        channel.send({"seq": 2, "type": "request", "command": "attach", "arguments": {}})
        channel.send({"seq": 3, "type": "request", "command": "configurationDone", "arguments": {}})
        while (message := channel.receive(10)) is not None:
            if message.get("event") == "stopped":
                arguments = {"threadId": message["body"]["threadId"]}
                channel.send({"seq": 4, "type": "request", "command": "stackTrace", "arguments": arguments})
            if message.get("command") == "stackTrace":
                break
        channel.close()

    with connect(None) as hub:
        threads = [threading.Thread(target=attach, args=(hub, worker)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)


def _stacks(program: Path, runs: int) -> Row:
    """The whole command's request, beside py-spy on one worker after another."""
    from devkit.debug.client import connect

    times, spied = [], []
    with connect(None) as hub:
        pids = [worker["pid"] for worker in hub.call("ps")["workers"] if worker["role"] == "Worker"]
        for _ in range(max(runs, 5)):
            began = time.perf_counter()
            ranks = hub.call("stacks", job_id=None, native=False, timeout=10.0)["ranks"]
            times.append(time.perf_counter() - began)
            assert sum(bool(rank["threads"]) for rank in ranks) >= WORKERS
            began = time.perf_counter()
            for pid in pids:
                subprocess.run(["py-spy", "dump", "--json", "--pid", str(pid)], capture_output=True, check=False)
            spied.append(time.perf_counter() - began)
    return Row(
        f"stacks of {WORKERS} workers",
        f"{median(times) * 1e3:.0f} ms",
        "< 500 ms",
        f"py-spy, one after another: {median(spied) * 1e3:.0f} ms",
    )
