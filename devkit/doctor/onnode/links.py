"""Connections between nodes: a listener on each, round trips, and what one connection carries."""

from __future__ import annotations

import hmac
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import replace

from .facts import Pair
from .network import reason

CONNECT_S = 4.0  # a second and a third SYN go out after 1 and 3 s: one lost packet is no partition
ANSWER_S = 2.0
STREAM_S = 0.25
ROUND_TRIPS = 8
MOST_CONNECTIONS = 2048
KEY_S = 5.0  # for who comes to show that it knows the key
SILENCE_S = 30.0
KEY_LENGTH = 16
_ECHO, _SINK = b"e", b"s"
_CHUNK = b"\0" * (1 << 18)
_SEND_BUFFER = 4 << 20  # bytes; a long way needs it
# struct tcp_info of Linux: total_retrans, bytes_acked, segs_out, busy_time and rwnd_limited (microseconds).
_INFO_LENGTH, _RETRANSMITTED, _ACKED, _SEGMENTS, _BUSY, _WINDOW = 192, 100, 120, 136, 168, 176
_LEAST_BUSY = 0.1  # of the time; of less there is no telling


class Listener:
    """Echoes bytes, or swallows them, for whoever knows the key: on any free port, as NCCL and gloo listen."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._server = socket.create_server(("", 0), backlog=64)
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._serve, name="devkit-doctor-listener", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the one that accepts
        self._server.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                if not self._room.acquire(blocking=False):
                    connection.close()
                    continue
                threading.Thread(target=self._answer, args=(connection,), name="devkit-doctor", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                self._talk(connection)
        finally:
            self._room.release()

    def _talk(self, connection: socket.socket) -> None:
        connection.settimeout(KEY_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said = _read(connection, KEY_LENGTH + 1)
        if hmac.compare_digest(said[:KEY_LENGTH], self._key):
            connection.settimeout(SILENCE_S)
            while data := connection.recv(1 << 20):
                if said[KEY_LENGTH:] == _ECHO:
                    connection.sendall(data)


def _read(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := connection.recv(length - len(data))):
        data += more
    return data


def reach(pair: Pair, port: int, key: bytes) -> Pair:
    """Connects to the listener at `pair.address`; the pair with its latency, or with why there was no connection."""
    try:
        with _open(pair.address, port, key + _ECHO) as connection:
            trips = [_round_trip(connection) for _ in range(ROUND_TRIPS)]
    except OSError as error:
        return replace(pair, error=f"port {port}: {reason(error, CONNECT_S)}")
    return replace(pair, latency_ms=round(min(trips) * 1000, 3))


def stream(pair: Pair, port: int, key: bytes) -> Pair:
    """Sends for a moment; the pair with what was acknowledged in that time, and how much had to be sent again."""
    try:
        with _open(pair.address, port, key + _SINK) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            begun = time.monotonic()
            _send(connection, begun + STREAM_S)
            acked, segments, again, seconds = _info(connection, time.monotonic() - begun)
            # What is still in the buffer goes away with the connection.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError as error:
        return replace(pair, error=f"port {port}: {reason(error, ANSWER_S)} while sending")
    rate = round(acked / seconds / 1e6, 2) if acked else None
    return replace(pair, mb_per_s=rate, segments=segments, retransmitted=again)


def _open(address: str, port: int, hello: bytes) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT_S)
    connection.settimeout(ANSWER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(hello)
    return connection


def _round_trip(connection: socket.socket) -> float:
    begun = time.perf_counter()
    connection.sendall(b"x")
    if not connection.recv(1):
        raise ConnectionResetError(None, "the listener closed the connection")
    return time.perf_counter() - begun


def _send(connection: socket.socket, until: float) -> None:
    """Until that moment; a link that takes nothing more in time is a slow one, not a broken one."""
    while (left := until - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            connection.send(_CHUNK)
        except TimeoutError:
            return


def _info(connection: socket.socket, seconds: float) -> tuple[int, int, int, float]:
    """Bytes that were acknowledged, segments sent, segments sent again, and for how long the link was the limit.

    Neither a sender without a CPU nor a receiver that doesn't read is a slow link. Zeros where the kernel doesn't say.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256) if hasattr(socket, "TCP_INFO") else b""
    if len(info) < _INFO_LENGTH:
        return 0, 0, 0, seconds
    (again,) = struct.unpack_from("=I", info, _RETRANSMITTED)
    (acked,) = struct.unpack_from("=Q", info, _ACKED)
    (segments,) = struct.unpack_from("=I", info, _SEGMENTS)
    busy, window = struct.unpack_from("=QQ", info, _BUSY)
    return acked, segments, again, min(seconds, max((busy - window) / 1e6, _LEAST_BUSY * seconds))
