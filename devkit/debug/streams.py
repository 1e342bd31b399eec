"""Answers of a dashboard that arrive piece by piece: a file that grows, the log of a job (a WebSocket)."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from devkit.debug.rest import PIECE, Answer, QueryValue, Rest, set_deadline
from devkit.errors import DeadlineError

_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_CLOSE, _PING, _PONG = 0x8, 0x9, 0xA  # section 5.2; what is below is data


@dataclass(frozen=True)
class _Opened:
    """An answer whose body is still to come. http.client may have let go of the socket already; its reader has it."""

    rest: Rest
    connection: http.client.HTTPConnection
    socket: socket.socket
    response: http.client.HTTPResponse

    def close(self) -> None:
        self.response.close()
        self.connection.close()


class Stream(Iterator[bytes]):
    """Pieces as they come, until the server ends them or `close`, which another thread may call to end a wait.

    Raises DeadlineError when nothing came for `silence` seconds, and is over then; None waits for ever.
    """

    def __init__(self, opened: _Opened, silence: float | None) -> None:
        self._opened = opened
        self._silence = silence
        self._closed = False
        self._reading = threading.Lock()
        opened.socket.settimeout(silence)

    def __next__(self) -> bytes:
        while not self._closed:
            try:
                with self._reading:
                    piece = self._piece()
            except TimeoutError:
                raise DeadlineError(
                    f"no data from {self._opened.rest.url} for {self._silence:g} s",
                    hint="are the job and its node still alive?",
                ) from None
            except (OSError, ValueError, http.client.HTTPException):
                break  # the connection broke, or `close` ended it: either way no more will come
            if piece is None:
                break
            if piece:
                return piece
        self.close()
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._opened.socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a piece
        with self._reading:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _piece(self) -> bytes | None:
        """None at the end, empty for what is not for the reader."""
        raise NotImplementedError


class FileStream(Stream):
    """The body of one answer."""

    def _piece(self) -> bytes | None:
        return self._opened.response.read1(PIECE) or None


class SocketStream(Stream):
    """The messages of a WebSocket."""

    def _piece(self) -> bytes | None:
        first, second = self._exactly(2)
        length = second & 0x7F
        if length > 125:
            length = int.from_bytes(self._exactly(2 if length == 126 else 8))
        payload = self._exactly(length)
        code = first & 0x0F
        if code == _CLOSE:
            with suppress(OSError):
                self._opened.socket.sendall(frame(_CLOSE, payload[:2]))
            return None
        if code == _PING:
            self._opened.socket.sendall(frame(_PONG, payload))
        # Text, bytes, and more of either are the reader's; a pong is nobody's.
        return payload if code < _CLOSE else b""

    def _exactly(self, size: int) -> bytes:
        # What http.client has read beyond the headers stands in the buffer of its `fp`.
        data = self._opened.response.fp.read(size)
        if len(data) < size:
            raise ConnectionResetError
        return data


def frame(code: int, payload: bytes) -> bytes:
    """One short frame from a client, which has to be masked.

    >>> frame(0x9, b"hi")[:2].hex()
    '8982'
    """
    mask = os.urandom(4)
    body = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload[:125]))
    return bytes((0x80 | code, 0x80 | len(body))) + mask + body


def open_file(
    rest: Rest, path: str, query: Mapping[str, QueryValue], *, silence: float | None, opening: float
) -> FileStream | Answer:
    """The stream, or the answer that says why there is none.

    `opening` is how long the first byte may take: Ray sends no header before the file has one.
    """
    opened = _open(rest, path, query, {}, opening)
    return FileStream(opened, silence) if opened.response.status == 200 else _refusal(opened)


def open_websocket(rest: Rest, path: str, *, silence: float | None) -> SocketStream | Answer:
    """The stream, or the answer that says why there is none."""
    key = base64.b64encode(os.urandom(16))
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key.decode(),
    }
    opened = _open(rest, path, {}, upgrade, rest.timeout)
    if opened.response.status != 101:
        return _refusal(opened)
    expected = base64.b64encode(hashlib.sha1(key + _ACCEPT).digest()).decode()
    if opened.response.headers.get("Sec-WebSocket-Accept") != expected:
        opened.close()
        raise rest.not_ray()
    return SocketStream(opened, silence)


def _open(
    rest: Rest, path: str, query: Mapping[str, QueryValue], headers: Mapping[str, str], timeout: float
) -> _Opened:
    deadline = time.monotonic() + timeout
    connection: http.client.HTTPConnection | None = None
    try:
        connection = rest.connect(deadline)
        reader: socket.socket = connection.sock
        set_deadline(reader, deadline)
        connection.request("GET", rest.target(path, query), headers={**rest.headers(), **headers})
        return _Opened(rest, connection, reader, connection.getresponse())
    except (OSError, http.client.HTTPException) as error:
        if connection is not None:
            connection.close()
        rest.fail(error, timeout)


def _refusal(opened: _Opened) -> Answer:
    response = opened.response
    try:
        return Answer(response.status, response.headers.get_content_type(), response.read(PIECE))
    except (OSError, http.client.HTTPException) as error:
        opened.rest.fail(error, opened.rest.timeout)
    finally:
        opened.close()
