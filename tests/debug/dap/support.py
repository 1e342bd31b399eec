"""What the tests of `devkit dap` share: an editor at the other end of two pipes, and workers that really stop."""

from __future__ import annotations

import io
import itertools
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from devkit.debug import dap
from devkit.debug.dap import Options
from devkit.debug.dap_stdio import read_frames
from devkit.debug.inworker import wire
from devkit.debug.inworker.adapter import Adapter
from devkit.debug.inworker.gate import frame
from devkit.debug.inworker.records import Breakpoint, Identity, StopRecord
from devkit.debug.inworker.stops import Stops
from devkit.debug.inworker.values import evaluate_summary
from devkit.errors import DevkitError, UnreachableError
from tests.debug.hubs import KEY, RunningHub
from tests.pace import stretched

SECONDS = stretched(20.0)  # the deadline of every wait
Document = dict[str, Any]


class Client:
    """An editor: requests with answers, and events in their order."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self.events: list[Document] = []  # all, in order
        self.asked: queue.Queue[Document] = queue.Queue()  # requests of the adapter
        self.numbers: list[int] = []  # `seq` of what came
        self._reader, self._writer = reader, writer
        self._own = itertools.count(1)
        self._answers: dict[int, queue.Queue[Document]] = {}
        self._news = threading.Condition()
        self._ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            for message in read_frames(self._reader):
                self.numbers.append(message["seq"])
                if message["type"] == "response":
                    self._answers[message["request_seq"]].put(message)
                elif message["type"] == "request":
                    self.asked.put(message)
                with self._news:
                    if message["type"] == "event":
                        self.events.append(message)
                    self._news.notify_all()
        self._reader.close()
        self._ended.set()

    def send(self, command: str, /, **arguments: Any) -> queue.Queue[Document]:
        number = next(self._own)
        answers = self._answers[number] = queue.Queue()
        self._write({"seq": number, "type": "request", "command": command, "arguments": arguments})
        return answers

    def request(self, command: str, /, **arguments: Any) -> Document:
        """The whole response."""
        return self.send(command, **arguments).get(timeout=SECONDS)

    def ask(self, command: str, /, **arguments: Any) -> Document:
        """The body of a response that is a success."""
        response = self.request(command, **arguments)
        assert response["success"], response
        return response["body"]

    def respond(self, request: Document, **more: Any) -> None:
        head = {"type": "response", "request_seq": request["seq"], "command": request["command"]}
        self._write({**head, "seq": next(self._own), "success": True, **more})

    def _write(self, message: Document) -> None:
        self._writer.write(frame(message))
        self._writer.flush()

    def event(self, name: str, after: int = 0, where: Callable[[Document], bool] = lambda body: True) -> Document:
        """The body of the first such event after the first `after` ones of all."""

        def found() -> Document | None:
            bodies = (each["body"] for each in self.events[after:] if each["event"] == name)
            return next((body for body in bodies if where(body)), None)

        deadline = time.monotonic() + SECONDS
        with self._news:
            while (body := found()) is None:
                left = deadline - time.monotonic()
                assert left > 0, f"no {name} event came; there were {self.events[after:]}"
                self._news.wait(left)
        return body

    def output(self, text: str, after: int = 0) -> Document:
        return self.event("output", after, lambda body: text in body["output"])

    def attach(self, *, capabilities: Document | None = None, **arguments: Any) -> Document:
        """From `initialize` to `configurationDone`; the answer to `attach`."""
        self.ask("initialize", adapterID="devkit", **(capabilities or {}))
        attached = self.send("attach", **arguments)
        self.event("initialized")
        self.ask("configurationDone")
        answer = attached.get(timeout=SECONDS)
        assert answer["success"], answer
        return answer

    def leave(self) -> None:
        self.ask("disconnect")

    def close(self) -> None:
        """As if the editor had died."""
        self._writer.close()

    def wait_for_end(self) -> None:
        assert self._ended.wait(SECONDS), "the adapter did not close its end"


class Stdin(io.FileIO):
    """Knows when somebody has read it to its end."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "rb")
        self.ended = threading.Event()

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        if not data:
            self.ended.set()
        return data


class Running:
    """`devkit dap` in a thread of its own, and its editor."""

    def __init__(self, options: Options, connect: Callable[[], Any]) -> None:
        (self._in, client_out), (client_in, self._out) = os.pipe(), os.pipe()
        self.client = Client(os.fdopen(client_in, "rb", buffering=0), os.fdopen(client_out, "wb"))
        self.result: queue.Queue[int | BaseException] = queue.Queue()
        self._reader, self._writer = Stdin(self._in), os.fdopen(self._out, "wb")
        self.thread = threading.Thread(target=self._run, args=(options, connect), daemon=True)
        self.thread.start()

    def _run(self, options: Options, connect: Callable[[], Any]) -> None:
        try:
            self.result.put(dap.serve(options, cast(BinaryIO, self._reader), self._writer, connect))
        except DevkitError as error:
            self.result.put(error)
        finally:
            self._writer.close()

    def close(self) -> None:
        """Once nobody reads any more; the editor has closed its end before."""
        assert self._reader.ended.wait(SECONDS), "nobody has read stdin to its end"
        self._reader.close()
        self.client.wait_for_end()

    def code(self) -> int | BaseException:
        """What it returned or raised."""
        result = self.result.get(timeout=SECONDS)
        self.client.wait_for_end()
        return result


@contextmanager
def running(options: Options, connect: Callable[[], Any]) -> Iterator[Running]:
    session = Running(options, connect)
    try:
        yield session
    finally:
        with suppress(OSError):
            session.client.close()
        session.thread.join(SECONDS)
        assert not session.thread.is_alive(), "devkit dap still runs after its editor has gone"
        session.close()


@contextmanager
def child(configuration: Document) -> Iterator[Client]:
    """The editor of a child session, over the pipe that its configuration names."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(SECONDS)
    connection.connect(configuration["pipe"])
    connection.settimeout(None)
    with connection:
        client = Client(cast(BinaryIO, connection.makefile("rb", buffering=0)), connection.makefile("wb"))
        try:
            yield client
        finally:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                client.close()
            client.wait_for_end()


class Arms:
    """Takes breakpoints as an `Arming` does, and keeps them for the test to see."""

    def __init__(self) -> None:
        self.points: dict[str, Breakpoint] = {}
        self.places = 1  # in how many functions each is armed

    def add(self, point: Breakpoint) -> None:
        self.points[point.id] = point

    def remove(self, name: str) -> None:
        self.points.pop(name, None)

    def state(self, name: str) -> Any:
        note = "" if self.places else "module not loaded yet"
        return type("State", (), {"places": self.places, "note": note, "line": 0})()


class Worker:
    """A process's agent in a thread: joins a hub, reports real stops, and serves the real adapter."""

    def __init__(self, rank: int, arming: Any = None, role: str = "Worker", job_id: str = "01") -> None:
        self.identity = Identity(
            job_id, f"{rank}worker" + "0" * 8, "node1", "10.0.0.1", "h", 100 + rank, role, rank=rank, python="3.11.7"
        )
        self.rank = rank
        self.who = self.identity.to_json()
        self.results: list[Any] = []
        self.ended: list[Document] = []
        self.stops = Stops(lambda: self.identity, self._report)
        self.stops.on_end = self._end
        self.arming = arming or Arms()
        self.given: list[Document] = []  # breakpoints that its job was started with
        self.thread: threading.Thread | None = None
        self._connection: wire.Connection | None = None
        self._adapters: dict[int, Adapter] = {}
        self._lock = threading.Lock()

    # ---- the program

    def start(self, program: Callable[[Worker], None]) -> None:
        self.thread = threading.Thread(target=program, args=(self,), name=f"program-{self.rank}", daemon=True)
        self.thread.start()

    def pause(self) -> None:
        """A breakpoint in the caller's line."""
        self.stops.park(sys._getframe(1), "breakpoint")

    def hit(self, name: str, frame: Any) -> None:
        self.stops.park(frame, "breakpoint", breakpoints=(name,))

    # ---- the agent

    def join(self, hub: RunningHub) -> None:
        self._connection = connection = wire.Connection(("127.0.0.1", hub.port), KEY, "agent")
        hub.agents.append(self)  # type: ignore[arg-type]  # all that the hub does with it is `close`
        welcomed = threading.Event()
        for each in self.given:
            self.arming.add(Breakpoint.from_json(each))
        self._send({"type": "hello", "identity": self.identity.to_json(), "breakpoints": self.given})
        threading.Thread(target=self._run, args=(connection, welcomed), daemon=True).start()
        assert welcomed.wait(SECONDS)
        self._report()

    def _run(self, connection: wire.Connection, welcomed: threading.Event) -> None:
        with suppress(OSError):
            for document in connection:
                if document["type"] == "welcome":
                    for each in document["breakpoints"]:
                        self.arming.add(Breakpoint.from_json(each))
                    welcomed.set()
                elif document["type"] == "request":
                    threading.Thread(target=self._answer, args=(document,), daemon=True).start()
                elif document["type"] == "channel":
                    self._on_channel(document)
        for adapter in self._adapters.values():
            adapter.close()
        self._adapters.clear()

    def _answer(self, document: Document) -> None:
        stop = self.stops.get(document.get("stop", ""))
        reply: Document = {}
        if document["op"] == "eval" and stop is not None:
            reply = evaluate_summary(stop, document["expression"], stop.frames()[0], 5.0)
        elif document["op"] == "continue" and stop is not None:
            self.stops.resume(stop.id)
        elif document["op"] == "step" and stop is not None:
            self.stops.resume(stop.id, document["how"])
        elif document["op"] == "break":
            self.arming.add(Breakpoint.from_json(document["breakpoint"]))
            reply = {"report": self._what_there_is()}
        elif document["op"] == "clear":
            self.arming.remove(document["breakpoint"])
            self._report()
        self._send({"type": "reply", "id": document["id"], **reply})

    def _on_channel(self, document: Document) -> None:
        number = document["channel"]
        if document.get("open"):
            send = lambda message: self._send({"type": "channel", "channel": number, "message": message})  # noqa: E731
            self._adapters[number] = Adapter(self.stops, self.arming, send, document.get("only"))
        elif document.get("closed"):
            adapter = self._adapters.pop(number, None)
            if adapter is not None:
                adapter.close()
        else:
            self._adapters[number].handle(document["message"])

    @property
    def clients(self) -> int:
        return len(self._adapters)

    def _send(self, document: Document) -> None:
        with self._lock, suppress(OSError):
            if self._connection is not None:
                self._connection.send(document)

    def _report(self) -> None:
        self._send({"type": "report", **self._what_there_is()})

    def _what_there_is(self) -> Document:
        stops = [stop.to_json() for stop in self.stops.records()]
        states = {name: self.arming.state(name) for name in list(self.arming.points)}
        armed = {name: {"places": state.places, "note": state.note, "hits": 0} for name, state in states.items()}
        return {"identity": self.identity.to_json(), "stops": stops, "armed": armed, "ended": self.ended}

    def _end(self, record: StopRecord, why: str) -> None:
        self.ended.append({"id": record.id, "why": why})

    def close(self) -> None:
        """The connection breaks."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def finish(self) -> None:
        """Lets the program run to its end."""
        deadline = time.monotonic() + SECONDS
        while self.thread is not None and self.thread.is_alive() and time.monotonic() < deadline:
            for record in self.stops.records():
                self.stops.resume(record.id)
            self.thread.join(0.02)
        self._send({"type": "bye", "reason": "it exited"})
        self.close()


def end(hub: RunningHub) -> None:
    """The hub dies; it was told that its workers are gone, or its own end would wait for them."""
    hub.surroundings.fates.update({each.who["worker_id"]: {"reason": "", "crashed": False} for each in hub.agents})
    hub.stop()


def connect(hubs: list[RunningHub]) -> Any:
    """A client of the newest of these hubs, as the command line would have it."""
    try:
        return hubs[-1].client()
    except OSError as error:
        raise UnreachableError(str(error), hint="is it there?") from None


def until(is_so: Callable[[], Any], what: str = "it did not come to pass") -> Any:
    deadline = time.monotonic() + SECONDS
    while not (answer := is_so()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return answer
