"""What `host_boot.py` does on a host once it is known to have the same devkit.

Orders, and their answers beside `{"note": TEXT}`:

    {"do": "start", "options": {...}, "environ": {...}}   {"up": DebugCluster}, and later {"ended": NAME} if not left
    {"do": "leave"}                                       {"left": NAME}: what was started stays
    {"do": "status", "name": NAME, "environ": {...}}      {"status": DebugCluster or null}
    {"do": "stop", "name": NAME, "keep_logs": BOOLEAN}    {"stopped": Stopped or null}
    {"do": "run", "words": [...], "stdin": TEXT, "timeout": SECONDS}   {"code": N, "out": TEXT, "err": TEXT}

A failure is `{"failed": {"error", "hint", "exit_code"}}`; the first one counts. What was started and not left is ended
when stdin ends.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from devkit.debug import cluster, state
from devkit.debug.ray_start import ClusterOptions
from devkit.errors import DevkitError, describe

Answer = Callable[[dict[str, Any]], None]
LEAVE_S = 60.0  # the others have to be up as well before this one is left alone
SLOW_LOOKUP_S = 1.0


def obey(order: dict[str, Any], say: Answer) -> None:
    """Does one thing and answers."""
    os.environ.update(order.get("environ", {}))
    try:
        match order["do"]:
            case "start":
                _start(ClusterOptions(**_options(order["options"])), say)
            case "status":
                found = [each for each in cluster.status() if each.name == order["name"]]
                say({"status": found[0].to_json() if found else None})
            case "stop":
                known = any(each.name == order["name"] for each in state.clusters())
                keep = bool(order.get("keep_logs"))
                say({"stopped": cluster.stop(order["name"], keep_logs=keep)[0].to_json() if known else None})
            case "run":
                say(_run(order["words"], order["stdin"], order["timeout"]))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the entry point of this process: it is told there
        say(_failed(error))
    if order["do"] == "start":
        os._exit(0)  # with a thread that reads stdin an ordinary end could wait for its lock


def _failed(error: BaseException) -> dict[str, Any]:
    return {"failed": describe(error).to_json()}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    folder = given.get("temp_dir")
    return {
        **{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()},
        "temp_dir": Path(folder) if folder else None,
    }


def _start(options: ClusterOptions, say: Answer) -> None:
    orders = _Orders()
    lookup = Lookup(options.join.rpartition(":")[0] if options.join else options.node_ip or "")
    started = cluster.start(options, lambda note: say({"note": note}), on_failure=lambda error: say(_failed(error)))
    try:
        if note := lookup.note():
            say({"note": note})
        say({"up": started.to_json()})
        left = orders.next(LEAVE_S).get("do") == "leave"
    except KeyboardInterrupt:
        left = False
    if left:
        say({"left": started.name})
    else:
        cluster.stop(started.name)
        say({"ended": started.name})


class _Orders:
    """Reads on while something is started. At the end of stdin it interrupts that: it ends what it had begun."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def next(self, seconds: float) -> dict[str, Any]:
        with suppress(queue.Empty):
            return self._queue.get(timeout=seconds)
        return {}

    def _read(self) -> None:
        for line in sys.stdin:
            self._queue.put(json.loads(line))
            return  # the one that ends a start; what follows is read by whoever called
        os.kill(os.getpid(), signal.SIGINT)


class Lookup:
    """How long this host takes to find no name for an address. torch.distributed looks each peer's up as it connects:
    with a name server that does not answer that costs every rank ten seconds."""

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self._began = time.monotonic()
        self._ended: float | None = None
        threading.Thread(target=self._look, daemon=True).start()

    def note(self) -> str:
        """What to tell of it; empty when it was quick."""
        seconds = (self._ended or time.monotonic()) - self._began
        if seconds < SLOW_LOOKUP_S:
            return ""
        took = "takes" if self._ended else "has taken more than"
        return (
            f"reverse DNS: looking up the name of {self._ip} {took} {seconds:.0f} s here, and every rank waits when "
            "it joins a process group: fix `nameserver` in /etc/resolv.conf"
        )

    def _look(self) -> None:
        with suppress(OSError):
            socket.getnameinfo((f"::ffff:{self._ip}", 9), 0)  # as c10d asks: /etc/hosts has no such form
        self._ended = time.monotonic()


def _run(words: list[str], stdin: str, timeout: float) -> dict[str, Any]:
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout)
    except subprocess.TimeoutExpired:
        raise DevkitError(f"{words[0]} has not ended after {timeout:g} s", hint="use a longer --timeout") from None
    except OSError as error:
        return {"code": 127, "out": "", "err": f"{words[0]}: {error.strerror}"}
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}
