"""The editor at the other end of stdin and stdout: frames of the Debug Adapter Protocol, and nothing else."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Literal

from devkit.debug.dap_loop import Loop
from devkit.debug.inworker.gate import frame
from devkit.debug.protocols import Document
from devkit.reading import json_of

MOST = 64 * 1024**2  # bytes of one message
HEADER = 4096
PIECE = 1 << 16
ERROR_ID = 1

OnAnswer = Callable[[Document], None]
Category = Literal["console", "important", "stdout", "stderr"]


def read_frames(reader: BinaryIO) -> Iterator[Document]:
    """The messages of a stream until it ends. Raises ValueError for what is no such message.

    >>> import io
    >>> list(read_frames(io.BytesIO(b'Content-Length: 9\\r\\n\\r\\n{"seq":1}')))
    [{'seq': 1}]
    """
    buffer = bytearray()
    while True:
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if len(buffer) > HEADER:
                raise ValueError("no header of a debug adapter message")
            if not _more(reader, buffer):
                return
        length = _length(bytes(buffer[:end]))
        del buffer[: end + 4]
        while len(buffer) < length:
            if not _more(reader, buffer):
                return
        message = json_of(bytes(buffer[:length]))
        del buffer[:length]
        if not isinstance(message, dict):
            raise ValueError("a message that is not an object")
        yield message


def _more(reader: BinaryIO, buffer: bytearray) -> bool:
    data = reader.read(PIECE)
    buffer += data
    return bool(data)


def _length(header: bytes) -> int:
    """
    >>> _length(b"Content-Type: x\\r\\ncontent-length: 12")
    12
    """
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit() and int(value) <= MOST:
            return int(value)
    raise ValueError(f"no length in the header {header[:60]!r}")


class Editor:
    """What the session says to the editor. What the editor says is given to `on_request`, in the loop's thread."""

    def __init__(self, loop: Loop, reader: BinaryIO, writer: BinaryIO) -> None:
        self.on_request: Callable[[Document], None] = lambda request: None
        self.on_end: Callable[[], None] = lambda: loop.stop(0)
        self._loop, self._reader, self._writer = loop, reader, writer
        self._numbers = itertools.count(1)
        self._asked: dict[int, OnAnswer] = {}

        self._thread = threading.Thread(target=self._read, name="devkit-dap-stdin", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Until nothing is read any more; the other end is closed."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def answer(self, request: Document, body: Mapping[str, Any] | None = None) -> None:
        self.respond(request, {"success": True, "body": dict(body or {})})

    def refuse(self, request: Document, message: str, hint: str = "") -> None:
        """An error, which the editor shows."""
        text = f"{message} ({hint})" if hint else message
        error = {"id": ERROR_ID, "format": text.replace("{", "(").replace("}", ")"), "showUser": True}
        self.respond(request, {"success": False, "message": text, "body": {"error": error}})

    def respond(self, request: Document, response: Mapping[str, Any]) -> None:
        """The response to a request as somebody else made it, with the numbers of this side."""
        own = {"type": "response", "request_seq": request.get("seq", 0), "command": request.get("command", "")}
        self._send({**response, **own})

    def event(self, name: str, body: Mapping[str, Any] | None = None) -> None:
        self._send({"type": "event", "event": name, "body": dict(body or {})})

    def output(self, text: str, category: Category = "console") -> None:
        self.event("output", {"category": category, "output": f"{text}\n"})

    def ask(self, command: str, arguments: Mapping[str, Any], on_answer: OnAnswer) -> None:
        """A request of ours to the editor."""
        number = self._send({"type": "request", "command": command, "arguments": dict(arguments)})
        self._asked[number] = on_answer

    def _send(self, message: Document) -> int:
        number = next(self._numbers)
        try:
            self._writer.write(frame({**message, "seq": number}))
            self._writer.flush()
        except (OSError, ValueError):  # it closed its end
            self.on_end()
        return number

    def _read(self) -> None:
        try:
            for message in read_frames(self._reader):
                self._loop.post(lambda message=message: self._take(message))  # type: ignore[misc]
        except (OSError, ValueError) as error:
            print(f"devkit dap: the editor can't be understood: {error}", file=sys.stderr)  # noqa: T201 - not stdout
        self._loop.post(lambda: self.on_end())

    def _take(self, message: Document) -> None:
        if message.get("type") == "request":
            self.on_request(message)
        elif message.get("type") == "response":
            on_answer = self._asked.pop(int(message.get("request_seq", 0)), None)
            if on_answer is not None:
                on_answer(message)


@contextmanager
def own_stdio() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """stdin and stdout for messages only: what anything else prints goes to stderr meanwhile.

    The reader has no buffer: a thread that waits in a buffered one would stop the interpreter from ending.
    """
    reader, writer = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    printed, sys.stdout = sys.stdout, sys.stderr
    os.dup2(2, 1)
    try:
        yield reader, writer
    finally:
        sys.stdout = printed
        with suppress(OSError):  # the editor is gone, and so is its pipe
            os.dup2(writer.fileno(), 1)
            writer.close()
