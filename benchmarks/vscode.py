"""What the editor's part of the debugger costs, each figure beside its floor in the same run.

    python benchmarks/vscode.py [--runs 3] [--ranks 64]

Simulated ranks: processes with devkit's real agent, a real hub, no Ray and no editor. The editor's side asks what VS
Code asks. Attaching to all stopped ranks by `devkit dap --all`; a click on one stop by `devkit dap --id`; a new stop
until the extension's `devkit ps --watch --json` has printed it. Medians; on a shared machine the ratios matter more.
"""

from __future__ import annotations

import argparse
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.debugger_parts.rows import Row, in_turn, median, table
from benchmarks.vscode_parts import editor
from benchmarks.vscode_parts.editor import ChannelLine, Session, StreamLine
from benchmarks.vscode_parts.world import WORKER, World, wait_for, world

PING_S = 0.02
FILE = str(WORKER)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=64)
    options = parser.parse_args(argv)
    with world(options.ranks) as ranks:
        rows = [watch(ranks, options.runs)]
        for rank in range(options.ranks):
            ranks.stop(rank)
        with ranks.client() as client:
            stops = wait_for(client, "stops", options.ranks)
        rows += [*attach_all(ranks, stops, options.runs), click(ranks, stops[0], options.runs)]
    print(table(rows))
    return 0


# ---- a new stop


def watch(ranks: World, runs: int) -> Row:
    """A rank stops, and the line that says so has come."""
    times, floor = [], []
    with ranks.client() as client, running(ranks.devkit("ps", "--watch", "--json")) as process:
        lines = editor.lines_of(process)
        next(lines)
        for _ in range(max(runs, 5)):
            began = ranks.stop(0)
            times.append(next(at for at, document in lines if document["stops"]) - began)
            floor.append(seconds(lambda: client.call("ps")))
            client.call("continue", ids=None)
            next(document for _, document in lines if not document["stops"])
    return Row(
        "a stop until ps --watch has printed it",
        f"{median(times) * 1e3:.0f} ms",
        "< 1 s",
        f"a request to the hub: {median(floor) * 1e3:.1f} ms",
    )


# ---- all ranks


def attach_all(ranks: World, stops: list[dict[str, Any]], runs: int) -> list[Row]:
    """Every rank as a child session, up to its variables; meanwhile the hub is asked by somebody else."""
    waits: list[float] = []

    def through_pipe() -> float:
        with pinging(ranks, waits):
            return attach_once(ranks, len(stops))

    found = in_turn({"pipe": through_pipe, "channels": lambda: straight(ranks, stops)}, runs)
    return [
        Row(
            f"{len(stops)} stopped ranks: from the start of dap --all to the last variable",
            f"{median(found['pipe']):.2f} s",
            "< 5 s",
            f"the same questions straight through the hub: {median(found['channels']):.2f} s",
        ),
        Row(
            "the longest that the hub answers a view meanwhile",
            f"{max(waits) * 1e3:.0f} ms",
            "< 1 s",
            f"the median: {median(waits) * 1e3:.1f} ms",
        ),
    ]


def attach_once(ranks: World, count: int) -> float:
    """As VS Code: it answers each `startDebugging`, and makes the child's session beside the others."""
    began = time.monotonic()
    with running(ranks.devkit("dap", "--all")) as process:
        parent = Session(StreamLine.of_process(process))
        editor.begin(parent, FILE, {"all": True})
        children: list[Future[int]] = []
        for _ in range(count):
            request = parent.request()
            parent.respond(request)
            children.append(editor.started(partial(child, request["arguments"]["configuration"])))
        assert all(each.result(editor.DEADLINE) > 0 for each in children)
        took = time.monotonic() - began
        parent.ask("disconnect")
    return took


def child(configuration: dict[str, Any]) -> int:
    return editor.begin_child(StreamLine.of_pipe(configuration["pipe"]), FILE, configuration)


def straight(ranks: World, stops: list[dict[str, Any]]) -> float:
    """The floor: one client of the hub, a channel for each rank."""
    began = time.monotonic()
    with ranks.client() as client:

        def one(stop: dict[str, Any]) -> int:
            line = ChannelLine(client.channel(stop["worker_id"], stop["id"]))
            return editor.begin_child(line, FILE, {"id": stop["id"]})

        assert all(count > 0 for count in editor.in_threads([partial(one, stop) for stop in stops]))
        return time.monotonic() - began


@contextmanager
def pinging(ranks: World, waits: list[float]) -> Iterator[None]:
    """Asks the hub again and again, as the view does."""
    over = threading.Event()

    def ping() -> None:
        with ranks.client() as client:
            while not over.wait(PING_S):
                waits.append(seconds(lambda: client.call("ps")))

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---- one stop


def click(ranks: World, stop: dict[str, Any], runs: int) -> Row:
    """From the start of the process to the line that the editor shows."""

    def shown() -> float:
        began = time.monotonic()
        with running(ranks.devkit("dap", "--id", stop["id"])) as process:
            session = Session(StreamLine.of_process(process))
            editor.begin(session, FILE, {"id": stop["id"]})
            top = editor.stack_of(session)
            took = time.monotonic() - began
            assert top["line"] == stop["line"]
            session.ask("disconnect")
        return took

    def version() -> float:
        with running(ranks.devkit("--version")) as process:
            return seconds(process.wait)

    found = in_turn({"ours": shown, "version": version}, max(runs, 5))
    return Row(
        "a click: from the start of dap --id to the stopped line",
        f"{median(found['ours']) * 1e3:.0f} ms",
        "< 1.5 s with the editor's part",
        f"devkit --version: {median(found['version']) * 1e3:.0f} ms",
    )


# ---- common


def seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


@contextmanager
def running(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is ended in any case."""
    with process:
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    raise SystemExit(main())
