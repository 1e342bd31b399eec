"""Who has a port that the program wanted."""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys

import pytest

from devkit.debug.crash_page import clues_of
from devkit.debug.inworker import ports

SERVES = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""


def test_who_has_the_port_is_found_and_told() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        port = int(other.stdout.readline())
        with pytest.raises(OSError, match="in use") as caught:
            socket.create_server(("127.0.0.1", port))
        assert ports.is_wanted_twice(caught.value)
        [found] = ports.holders([caught.value])
        assert (found["port"], found["pid"]) == (port, other.pid) and found["command"].startswith(sys.executable)
        [clue] = clues_of({"ports": [found]})
        assert clue.startswith(f"port {port} is in use by pid {other.pid}: ")
        other.stdin.close()


def test_a_port_that_only_variables_name_and_a_child_that_has_inherited_it() -> None:
    """As a server that is started again, beside a helper that was forked while it listened."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    os.set_inheritable(server.fileno(), True)
    wait = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    ) as child:
        assert child.stdout is not None and child.stdout.readline()
        server.close()
        with pytest.raises(OSError, match="in use") as caught:
            socketserver.TCPServer(("127.0.0.1", port), socketserver.BaseRequestHandler)
        assert str(port) not in str(caught.value), "its text does not name it"
        [found] = ports.holders([caught.value])
        assert (found["port"], found["pid"], found["inherited"]) == (port, child.pid, True)
        [clue] = clues_of({"ports": [found]})
        assert clue.endswith(", which this process has started, and which has inherited its socket")
        child.communicate()


def test_its_command_is_told_without_its_secrets() -> None:
    """By option, and with the end of the value cut off."""
    secret = "correct-horse-" + "7" * 80
    words = ["sh", "-c", "echo; read x", "login", "--password", secret]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        # A program that has just begun has no command line yet, to the kernel.
        assert other.stdout is not None and other.stdout.readline() == b"\n"
        assert ports.command(other.pid) == "sh -c echo; read x login --password <redacted>"
        other.communicate()


def test_nothing_is_told_of_a_port_that_nobody_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert ports.holders([OSError(98, f"Address already in use: ('127.0.0.1', {port})")]) == []
    assert ports.holders([OSError(98, "Address already in use")]) == []
    assert not ports.is_wanted_twice(ValueError("no such address"))
