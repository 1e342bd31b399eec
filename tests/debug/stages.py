"""For tests on a real Ray: programs that do what they are told, and clients of the Debug Adapter Protocol."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from devkit.debug.dap_stdio import read_frames
from devkit.debug.inworker.gate import frame, messages
from tests.pace import stretched

SECONDS = stretched(60.0)

Document = dict[str, Any]


class Stage:
    """A program of `programs/` that ends in `stage.serve`."""

    def __init__(self, job: Any, path: Path) -> None:
        self.job = job
        self._path = path
        job.joined()
        end = time.monotonic() + SECONDS
        while not path.exists():
            assert job.process.poll() is None and time.monotonic() < end, job.out
            time.sleep(0.01)

    def do(self, source: str, seconds: float = SECONDS) -> Any:
        """Runs this in the driver; what its last expression gives, as JSON has it."""
        with socket.socket(socket.AF_UNIX) as there:
            there.settimeout(seconds)
            there.connect(str(self._path))
            there.sendall(source.encode())
            there.shutdown(socket.SHUT_WR)
            answer = json.loads(there.makefile().read())
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def is_done(self, name: str) -> bool:
        """Whether a result is there."""
        return bool(self.do(f"len(ray.wait([{name}], timeout=0)[0])"))

    def finish(self) -> int:
        """Lets the program end; its exit code."""
        with socket.socket(socket.AF_UNIX) as there:
            there.settimeout(SECONDS)
            there.connect(str(self._path))
            there.shutdown(socket.SHUT_WR)
            there.recv(1)
        return int(self.job.end())


class Wire(Protocol):
    """What `client.Channel` and `Socket` have in common."""

    def send(self, message: Document) -> None: ...
    def receive(self, timeout: float) -> Document | None: ...
    def close(self) -> None: ...


class Socket:
    """A connection to the port that Ray's own extension connects to."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=SECONDS)
        self._messages = messages(self.socket)

    def send(self, message: Document) -> None:
        self.socket.sendall(frame(message))

    def receive(self, timeout: float) -> Document | None:
        self.socket.settimeout(timeout)
        return next(self._messages, None)

    def close(self) -> None:
        self.socket.close()


class Pipe:
    """A debug adapter that is a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin, self._messages = process.stdin, read_frames(process.stdout.raw)  # type: ignore[attr-defined]

    def send(self, message: Document) -> None:
        self._stdin.write(frame(message))
        self._stdin.flush()

    def receive(self, timeout: float) -> Document | None:
        return next(self._messages, None)

    def close(self) -> None:
        self._stdin.close()


class Debugger:
    """One client. Asks, waits for the answer, and keeps the events that came meanwhile."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.events: list[Document] = []
        self._answers: dict[int, Document] = {}
        self._numbers = itertools.count(1)

    def attach(self, **arguments: Any) -> None:
        """Up to the first `stopped` events."""
        self.ask("initialize", adapterID="python", clientID="test", pathFormat="path", linesStartAt1=True)
        number = self.send("attach", **arguments)
        self.event("initialized")
        self.ask("setExceptionBreakpoints", filters=["uncaught"])
        self.ask("configurationDone")
        self.answer(number)

    def send(self, command: str, **arguments: Any) -> int:
        number = next(self._numbers)
        self.wire.send({"seq": number, "type": "request", "command": command, "arguments": arguments})
        return number

    def ask(self, command: str, **arguments: Any) -> Document:
        return self.answer(self.send(command, **arguments))

    def answer(self, number: int) -> Document:
        self._until(lambda: number in self._answers, f"answer {number}")
        answer = self._answers.pop(number)
        assert answer["success"], answer
        return answer.get("body") or {}

    def event(self, name: str) -> Document:
        """The body of the oldest event of this name that was not taken before."""
        self._until(lambda: any(event["event"] == name for event in self.events), f"event {name}")
        found = next(event for event in self.events if event["event"] == name)
        self.events.remove(found)
        return found.get("body") or {}

    def top(self, thread: int) -> Document:
        frame: Document = self.ask("stackTrace", threadId=thread)["stackFrames"][0]
        return frame

    def evaluate(self, expression: str, frame: int) -> str:
        return str(self.ask("evaluate", expression=expression, frameId=frame, context="repl")["result"])

    def set(self, frame: int, name: str, value: str) -> None:
        [scope, *_] = self.ask("scopes", frameId=frame)["scopes"]
        self.ask("setVariable", variablesReference=scope["variablesReference"], name=name, value=value)

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + SECONDS
        while not is_so():
            message = self.wire.receive(max(end - time.monotonic(), 0.01))
            assert message is not None, f"the other side went away; no {what}"
            if message["type"] == "response":
                self._answers[message["request_seq"]] = message
            else:
                self.events.append(message)
