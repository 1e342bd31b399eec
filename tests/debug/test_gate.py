"""The door for Ray's extension: who may pass, and that nobody else can do harm."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.debug.inworker import gate
from devkit.debug.inworker.records import Identity
from devkit.debug.inworker.stops import Stops
from tests.pace import stretched

ASK = {"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "python"}}


def doors(mode: str) -> gate.Gate:
    who = Identity("01", "w" * 8, "n", "127.0.0.1", "h", os.getpid(), "Worker")
    agent = SimpleNamespace(
        settings=SimpleNamespace(ray_extension=mode), stops=Stops(lambda: who, lambda: None), arming=None
    )
    return gate.Gate(agent, "127.0.0.1")


@pytest.fixture
def door() -> Iterator[gate.Gate]:
    made = doors("local")
    yield made
    made.close()


def call(port: int, data: bytes) -> bytes:
    """What comes back until the other side closes or has sent one message."""
    with socket.create_connection(("127.0.0.1", port), timeout=stretched(10)) as there:
        there.sendall(data)
        for message in gate.messages(there):
            return json.dumps(message).encode()
        return b""


def test_the_same_user_is_answered(door: gate.Gate) -> None:
    answer = json.loads(call(door.port, gate.frame(ASK)))
    assert answer["command"] == "initialize" and answer["success"]


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01" + b"\x00" * 300,
        b"Content-Length: x\r\n\r\n{}",
        b"A" * 100_000,
    ],
    ids=["http", "tls", "no-length", "long"],
)
def test_strangers_words_are_closed_and_the_next_client_is_served(door: gate.Gate, words: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # closed while there was still something to read
        assert call(door.port, words) == b""
    assert call(door.port, gate.frame(ASK))


def framed(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


BROKEN = {
    "no JSON": framed(b"xxxxx"),
    "no text": framed(b'{"a": "\xff\xfe"}'),
    "deep": framed(b"[" * 60_000),
    "deep objects": framed(b'{"a":' * 10_000),
    "an array": framed(b"[]"),
    "a number": framed(b"1e999999"),
    "a surrogate": framed(b'"\\ud800"'),
    "a long number": framed(b"9" * 10_000),
    "a length of many digits": b"Content-Length: " + b"9" * 200 + b"\r\n\r\n",
    "a length of more digits than Python reads": b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n",
    "a length that is too much": b"Content-Length: 99999999\r\n\r\n",
    "a length below nothing": b"Content-Length: -5\r\n\r\n",
    "a superscript": "Content-Length: \u00b2\r\n\r\n".encode(),
}


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a thread raised and nobody caught: it would be a crash of the user's program."""
    seen: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    return seen


@pytest.mark.parametrize("words", BROKEN.values(), ids=BROKEN)
def test_broken_messages_are_closed_without_a_word(
    door: gate.Gate, words: bytes, failed: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(ConnectionError):
        assert call(door.port, words) == b""
    with contextlib.suppress(ConnectionError):  # by a client that is known already
        assert call(door.port, gate.frame({"type": "event"}) + words) == b""
    assert call(door.port, gate.frame(ASK))
    assert failed == [] and capfd.readouterr().err == ""


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=50)
def test_no_bytes_at_all_raise_anything(words: bytes, is_framed: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(framed(words) if is_framed else words)
        ours.shutdown(socket.SHUT_WR)
        assert all(isinstance(message, dict) for message in gate.messages(theirs))


def test_who_says_its_first_word_too_slowly_is_closed(door: gate.Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "HEADER_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", door.port)) as there, contextlib.suppress(ConnectionError):
        there.settimeout(0.02)
        for byte in gate.frame(ASK):
            there.sendall(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                assert there.recv(1) == b""
                return
        pytest.fail("all of it was listened to")


def test_a_port_scan_does_not_wedge_it(door: gate.Gate) -> None:
    for _ in range(gate.MAX_CLIENTS - 4):
        socket.create_connection(("127.0.0.1", door.port), timeout=stretched(10)).close()
    assert call(door.port, gate.frame(ASK))


OTHER_USER = """
import os, socket, sys
socket.getaddrinfo("127.0.0.1", 1)  # loads what it needs: the other user may not read it
os.setuid(65534)
there = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
there.sendall(sys.stdin.buffer.read())
print(len(there.recv(1000)))
"""


@pytest.mark.needs_root
@pytest.mark.parametrize(("mode", "is_served"), [("local", False), ("open", True)])
def test_another_user_of_the_host_only_passes_where_the_door_is_open(mode: str, is_served: bool) -> None:
    door = doors(mode)
    try:
        command = [sys.executable, "-c", OTHER_USER, str(door.port)]
        done = subprocess.run(command, input=gate.frame(ASK), capture_output=True, timeout=stretched(30))
    finally:
        door.close()
    received = int(done.stdout or 0)  # a reset connection prints nothing
    assert (received > 0) == is_served, done.stderr


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text()), max_size=5), st.integers(1, 50))
def test_messages_come_out_as_they_went_in_however_they_are_cut(sent: list[dict[str, Any]], size: int) -> None:
    ours, theirs = socket.socketpair()
    data = b"".join(gate.frame(message) for message in sent)

    def send() -> None:
        for start in range(0, len(data), size):
            ours.sendall(data[start : start + size])
        ours.shutdown(socket.SHUT_WR)

    with ours, theirs:
        sender = threading.Thread(target=send)
        sender.start()
        assert list(gate.messages(theirs)) == sent
        sender.join(stretched(10))


def test_nothing_of_it_is_imported_before_a_stop() -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(gate.__file__).parents[3])!r})
import devkit.debug.inworker.agent
names = {{name.removeprefix("devkit.debug.inworker.") for name in sys.modules}}
print(sorted(names & {{"adapter", "gate", "hub", "asyncio", "torch", "ray"}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
