"""The debugger's figures that need no Ray."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.debugger_parts.rows import Row, in_turn, median, ratio
from benchmarks.vscode_parts.hub import Nowhere

AGENTS = 1000

# A program with a loop and a function that is called; `{setup}` arms what is measured. Prints seconds per million.
PROGRAM = """
import sys, threading, time
def elsewhere(x):
    y = x + 1
    return y
def hot(n):
    total = 0
    for k in range(n):
        total += k  # @hot
    return total
def call(x):
    return x
def calls(n):
    for k in range(n):
        call(k)
lines = open(__file__).read().splitlines()
def line(text):
    return next(number for number, each in enumerate(lines, 1) if text in each)
{setup}
def best(f):
    times = []
    for _ in range(7):
        began = time.perf_counter()
        f(100_000)
        times.append(time.perf_counter() - began)
    return min(times) * 10
print(best(hot), best(calls))
sys.stdout.flush()
import os
os._exit(0)
"""

OURS = """
from devkit.debug.inworker.arming import Arming
from devkit.debug.inworker.records import Breakpoint
arming = Arming(lambda *_: None, lambda *_: None)
arming.install()
arming.add(Breakpoint(id="a", spec="x", paths=(__file__,), line=line({where!r}), condition={condition!r}))
assert arming.state("a").places, arming.state("a")
"""

DEBUGPY = """
import debugpy, socket
from devkit.debug.inworker import gate
host, port = debugpy.listen(("127.0.0.1", 0))
there = socket.create_connection((host, port))
answers = gate.messages(there)
def ask(number, command, **arguments):
    there.sendall(gate.frame(dict(seq=number, type="request", command=command, arguments=arguments)))
def until(test):
    return next(message for message in answers if test(message))
def attach():
    ask(1, "initialize", adapterID="python", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
    ask(2, "attach", justMyCode=False)
    until(lambda m: m.get("event") == "initialized")
    points = [dict(line=line({where!r}), condition={condition!r} or None)]
    ask(3, "setBreakpoints", source=dict(path=__file__), breakpoints=points)
    until(lambda m: m.get("command") == "setBreakpoints")
    ask(4, "configurationDone")
    until(lambda m: m.get("command") == "attach")
attach()
debugpy.trace_this_thread(True)
"""


def _program(setup: str) -> dict[str, float]:
    """Microseconds per iteration of the loop, and per call."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(PROGRAM.replace("{setup}", setup))
        done = subprocess.run(
            [sys.executable, "-Xfrozen_modules=off", str(path)], capture_output=True, text=True, timeout=300, check=True
        )
    loop, call = done.stdout.split()[-2:]
    return {"loop": float(loop), "call": float(call)}


def lines(runs: int) -> list[Row]:
    """A breakpoint that is armed and not hit, and one on a hot line that is never true."""
    elsewhere, hot = {"where": "y = x + 1", "condition": ""}, {"where": "# @hot", "condition": "k < 0"}
    setups = {
        "plain": "",
        "elsewhere": OURS.format(**elsewhere),
        "debugpy elsewhere": DEBUGPY.format(**elsewhere),
        "hot": OURS.format(**hot),
        "debugpy hot": DEBUGPY.format(**hot),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in setups}
    for _ in range(runs):
        for name, setup in setups.items():
            found[name].append(_program(setup))

    def times(name: str, part: str) -> float:
        return ratio([each[part] for each in found[name]], [each[part] for each in found["plain"]])

    return [
        Row(
            "armed elsewhere, not hit",
            f"loops {times('elsewhere', 'loop'):.2f}x, calls {times('elsewhere', 'call'):.2f}x of the plain program",
            "no cost",
            f"debugpy: {times('debugpy elsewhere', 'loop'):.1f}x, {times('debugpy elsewhere', 'call'):.1f}x",
        ),
        Row(
            "a condition never true, on a hot line",
            f"{times('hot', 'loop'):.2f}x of the plain loop",
            "< 1.3x",
            f"debugpy: {times('debugpy hot', 'loop'):.0f}x",
        ),
    ]


def snapshot(runs: int) -> list[Row]:
    """A crash in a function with a model, a batch and an optimizer's state among its variables."""
    import json

    import torch

    from devkit.debug.inworker import crash_files, snapshot
    from devkit.debug.inworker.identity import identify

    def fail(model: Any, batch: Any) -> None:
        hidden = model(batch["x"])
        hidden[0, 0] = float("nan")
        assert not hidden.isnan().any(), "NaN in the activations"

    def crash() -> BaseException:
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
        batch = {"x": torch.randn(64, 512), "ids": list(range(1000)), "text": "hello" * 100}
        with torch.no_grad():
            try:
                fail(model, batch)
            except AssertionError as error:
                return error
        raise AssertionError

    error, who, sizes = crash(), identify(), []

    def take() -> float:
        began = time.perf_counter()
        document = snapshot.take(error, who, "task")
        with tempfile.TemporaryDirectory() as folder:
            crash_files.store(document, Path(folder))
        seconds = time.perf_counter() - began
        sizes.append(len(json.dumps(document)))
        return seconds * 1e3

    def text() -> float:
        import traceback

        began = time.perf_counter()
        traceback.TracebackException.from_exception(error, capture_locals=True)
        return (time.perf_counter() - began) * 1e3

    found = in_turn({"ours": take, "text": text}, max(runs, 9))
    return [
        Row(
            "a snapshot, written",
            f"{median(found['ours']):.1f} ms, {max(sizes) / 1024:.0f} KiB",
            "< 10 ms, < 64 KiB",
            f"traceback with repr of locals: {median(found['text']):.1f} ms",
        )
    ]


def hub(runs: int) -> list[Row]:
    """One eval to 1,000 agents and back, beside 1,000 bare messages there and back."""
    return asyncio.run(_hub(runs))


async def _hub(runs: int) -> list[Row]:
    from devkit.debug.inworker import wire
    from devkit.debug.inworker.hub import Hub
    from devkit.debug.inworker.hub_links import Link

    key = wire.derive_key("", "benchmark")
    hub = Hub(key, Path(tempfile.mkdtemp()), Nowhere())
    port = await hub.serve("127.0.0.1")
    agents = [asyncio.create_task(_agent(port, key, number)) for number in range(AGENTS)]
    while sum(len(worker.stops) for worker in hub.table.workers.values()) < AGENTS:
        await asyncio.sleep(0.05)
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    client = Link(told.put_nowait)

    async def ask() -> float:
        began = time.perf_counter()
        hub.from_client(client, {"id": 1, "op": "eval", "arguments": {"expression": "x", "ids": None, "timeout": 30}})
        answer = await told.get()
        assert len(answer["ok"]["results"]) == AGENTS
        return time.perf_counter() - began

    times = [await ask() for _ in range(max(runs, 5))]
    floor = [await _echo(AGENTS) for _ in range(max(runs, 5))]
    for agent in agents:
        agent.cancel()
    await hub.close()
    return [
        Row(
            f"hub with {AGENTS:,} agents: eval to all and back",
            f"{median(times) * 1e3:.0f} ms",
            "< 1 s",
            f"bare lines over as many connections: {median(floor) * 1e3:.0f} ms",
        )
    ]


async def _agent(port: int, key: bytes, number: int) -> None:
    from devkit.debug.inworker import wire

    who = {
        "job_id": "01", "worker_id": f"w{number}", "node_id": "n", "node_ip": "127.0.0.1", "host": "h", "pid": number,
        "role": "Worker", "actor": "", "rank": number, "python": "3",
    }  # fmt: skip
    stop = {
        **who, "id": f"w{number}-1", "file": "x.py", "line": 1, "function": "f", "reason": "breakpoint",
        "exception": None, "since": 0.0, "attached": 0, "thread": "MainThread", "breakpoint": "",
    }  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reply, _ = wire.answer(wire.decode(await reader.readline()), key, "agent")
    writer.write(wire.encode(reply))
    await reader.readline()
    writer.write(wire.encode({"type": "hello", "identity": who}))
    writer.write(wire.encode({"type": "report", "identity": who, "stops": [stop], "armed": {}, "ended": []}))
    with suppress(asyncio.CancelledError, ConnectionError):
        while line := await reader.readline():
            document = wire.decode(line)
            if document["type"] == "request":
                writer.write(wire.encode({"type": "reply", "id": document["id"], "value": "1", "error": None}))
    writer.close()


async def _echo(count: int) -> float:
    """A line to each of `count` connections and back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    began = time.perf_counter()
    for _, writer in pairs:
        writer.write(b'{"op":"eval"}\n')
    for reader, _ in pairs:
        await reader.readline()
    seconds = time.perf_counter() - began
    for _, writer in pairs:
        writer.close()
    server.close()
    return seconds
