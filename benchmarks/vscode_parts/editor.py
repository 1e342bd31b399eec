"""An editor as the debug adapter sees VS Code: the same requests in the same order, for one session or for many."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, BinaryIO, Protocol

from devkit.debug.client import Channel
from devkit.debug.dap_stdio import read_frames
from devkit.debug.inworker.gate import frame

DEADLINE = 60.0
CAPABILITIES = {
    "clientID": "vscode", "adapterID": "devkit", "pathFormat": "path", "linesStartAt1": True, "columnsStartAt1": True,
    "supportsVariableType": True, "supportsRunInTerminalRequest": True, "supportsStartDebuggingRequest": True,
}  # fmt: skip

Message = dict[str, Any]


class Line(Protocol):
    """A way to an adapter."""

    def send(self, message: Message) -> None: ...

    def __iter__(self) -> Iterator[Message]: ...


class StreamLine:
    """Over the frames of the debug adapter protocol: a socket, or a process's stdin and stdout."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader, self._writer = reader, writer
        self._lock = threading.Lock()

    @classmethod
    def of_pipe(cls, path: str) -> StreamLine:
        there = socket.socket(socket.AF_UNIX)
        there.connect(path)
        return cls(there.makefile("rb", buffering=0), there.makefile("wb"))  # type: ignore[arg-type]

    @classmethod
    def of_process(cls, process: subprocess.Popen[bytes]) -> StreamLine:
        """Of one that was started without buffers: what is there is read at once."""
        assert process.stdin is not None and process.stdout is not None
        return cls(process.stdout, process.stdin)  # type: ignore[arg-type]

    def send(self, message: Message) -> None:
        with self._lock:
            self._writer.write(frame(message))
            self._writer.flush()

    def __iter__(self) -> Iterator[Message]:
        yield from read_frames(self._reader)

    def close(self) -> None:
        self._writer.close()


class ChannelLine:
    """Straight to a worker through the hub, without an adapter's process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def __iter__(self) -> Iterator[Message]:
        while (message := self._channel.receive(DEADLINE)) is not None:
            yield message


class Session:
    """Requests in one session; what comes meanwhile is kept."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._messages = iter(line)
        self._numbers = itertools.count(1)
        self._came: list[Message] = []

    def ask(self, command: str, **arguments: Any) -> Message:
        """The body of the answer."""
        return self.answer(self.send(command, **arguments))

    def send(self, command: str, **arguments: Any) -> int:
        number = next(self._numbers)
        self._line.send({"seq": number, "type": "request", "command": command, "arguments": arguments})
        return number

    def answer(self, number: int) -> Message:
        message = self._until(lambda each: each.get("request_seq") == number)
        if not message["success"]:
            raise RuntimeError(message["message"])
        body: Message = message.get("body") or {}
        return body

    def event(self, name: str) -> Message:
        """The body of the first such event that nobody has taken."""
        body: Message = self._until(lambda each: each.get("event") == name).get("body") or {}
        return body

    def request(self) -> Message:
        """The next request of the adapter's."""
        return self._until(lambda each: each["type"] == "request")

    def respond(self, request: Message) -> None:
        head = {"type": "response", "request_seq": request["seq"], "command": request["command"]}
        self._line.send({**head, "seq": next(self._numbers), "success": True})

    def _until(self, is_it: Any) -> Message:
        for index, message in enumerate(self._came):
            if is_it(message):
                return self._came.pop(index)
        for message in self._messages:
            if is_it(message):
                return message
            self._came.append(message)
        raise EOFError("the adapter has ended")


def begin(session: Session, file: str, configuration: Message) -> None:
    """From `initialize` to `configurationDone`, with one breakpoint in the gutter."""
    session.ask("initialize", **CAPABILITIES)
    attached = session.send("attach", **configuration)
    session.event("initialized")
    session.ask("setBreakpoints", source={"path": file}, breakpoints=[{"line": 1}], lines=[1])
    session.ask("setExceptionBreakpoints", filters=[])
    session.ask("configurationDone")
    session.answer(attached)


def stack_of(session: Session) -> Message:
    """What VS Code asks at a stop until it can show the line; the top frame."""
    thread = session.event("stopped")["threadId"]
    session.ask("threads")
    top: Message = session.ask("stackTrace", threadId=thread, startFrame=0, levels=1)["stackFrames"][0]
    return top


def look(session: Session) -> list[Message]:
    """The stack, and the variables of its top frame."""
    top = stack_of(session)
    scopes = session.ask("scopes", frameId=top["id"])["scopes"]
    variables: list[Message] = session.ask("variables", variablesReference=scopes[0]["variablesReference"])["variables"]
    return variables


def begin_child(line: Line, file: str, configuration: Message) -> int:
    """A whole child session up to its variables; how many there are."""
    session = Session(line)
    begin(session, file, configuration)
    return len(look(session))


def in_threads(calls: list[Any]) -> list[Any]:
    """The results of calls that wait for others, all at once."""
    futures: list[Future[Any]] = []
    for call in calls:
        futures.append(started(call))
    return [future.result(DEADLINE) for future in futures]


def started(call: Any) -> Future[Any]:
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[tuple[float, Message]]:
    """The documents that a command prints, each with the time at which it came."""
    assert process.stdout is not None
    for line in process.stdout:
        yield time.monotonic(), json.loads(line)
