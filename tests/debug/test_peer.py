"""Whose the other end of a connection is, in each state that a connection can be in."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from devkit.debug.inworker import peer

pytestmark = pytest.mark.skipif(not peer.TABLES[0].exists(), reason="no table of the kernel's to read")

V4, V6 = "127.0.0.1", "::1"
RESET = struct.pack("ii", 1, 0)


@contextmanager
def connection(family: socket.AddressFamily = socket.AF_INET, to: str = V4) -> Iterator[tuple[socket.socket, ...]]:
    """What was accepted, and who connected; the listener listens on IPv6 where `to` is such an address."""
    listens = socket.AF_INET6 if to == V6 else socket.AF_INET
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server((to if listens == family else V4, 0), family=listens))
        client = stack.enter_context(socket.socket(family))
        client.connect((to, server.getsockname()[1]))
        accepted = stack.enter_context(server.accept()[0])
        yield accepted, client, server


def heard(accepted: socket.socket, words: bytes) -> None:
    """Everything has arrived, and the end of it too if there is one."""
    accepted.settimeout(10)
    assert accepted.recv(100) == words


@pytest.mark.parametrize(
    ("family", "to"),
    [(socket.AF_INET, V4), (socket.AF_INET6, V6), (socket.AF_INET6, f"::ffff:{V4}")],
    ids=["v4", "v6", "v4 by a socket of v6"],
)
def test_a_process_of_this_user_is_known_by_either_protocol(family: socket.AddressFamily, to: str) -> None:
    with connection(family, to) as (accepted, _, _):
        assert peer.may_be_ours(accepted) and peer.owner(accepted) == "ours"


def test_who_is_gone_when_its_words_are_read_is_nobody() -> None:
    with connection() as (accepted, client, _):
        client.sendall(b"words")
        client.close()
        heard(accepted, b"words")
        assert accepted.recv(1) == b"" and peer.owner(accepted) == "other"


def test_who_says_nothing_more_is_nobody() -> None:
    with connection() as (accepted, client, _):
        client.sendall(b"words")
        client.shutdown(socket.SHUT_WR)
        heard(accepted, b"words")
        assert accepted.recv(1) == b"" and peer.owner(accepted) == "other"


def test_who_resets_the_connection_is_nobody_though_another_one_comes_from_the_same_port() -> None:
    with connection() as (accepted, client, server), socket.socket() as innocent:
        client.sendall(b"words")
        port = client.getsockname()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        innocent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        innocent.bind(port)
        innocent.connect(server.getsockname())
        heard(accepted, b"words")
        assert peer._find(dict(peer._established(peer.TABLES[0])), *map(peer._forms, (port, server.getsockname())))
        assert peer.owner(accepted) == "other"
        with server.accept()[0] as second:
            assert peer.owner(second) == "ours"


def test_who_goes_while_it_is_looked_for_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    look = peer._is_open_in_ours
    with connection() as (accepted, client, _):

        def look_and_lose(inode: int) -> bool:
            found = look(inode)
            client.close()
            return found

        monkeypatch.setattr(peer, "_is_open_in_ours", look_and_lose)
        assert peer.owner(accepted) == "other"
