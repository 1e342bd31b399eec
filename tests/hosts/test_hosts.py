"""The virtual hosts do what their names say, and leave nothing, whatever happens to the test."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hosts import hosts
from tests.hosts.hosts import Lan
from tests.hosts.launching import eventually

LISTEN = """
import socket, threading
def hear():
    while True:
        with open("/tmp/heard", "ab") as file:
            file.write(datagrams.recv(100) + b" ")
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("", 4000))
threading.Thread(target=hear, daemon=True).start()
server = socket.create_server(("", 4000))
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"x" * int(connection.makefile().readline()))
"""
SEND = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 4000))"
FETCH = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], 4000), float(sys.argv[3])) as connection:
    connection.sendall(sys.argv[2].encode() + b"\\n")
    got = 0
    while piece := connection.recv(65536):
        got += len(piece)
print(got, time.monotonic() - began)
"""


@pytest.fixture
def lan() -> Iterator[Lan]:
    """Three hosts; a server on each."""
    with hosts.up(3) as made, ExitStack() as stack:
        for host in made:
            server = stack.enter_context(host.popen(sys.executable, "-c", LISTEN, stdout=subprocess.PIPE))
            stack.callback(server.kill)
            assert server.stdout is not None and server.stdout.readline() == "listening\n"
        yield made


def reaches(lan: Lan, one: int, other: int) -> bool:
    return fetch(lan, one, other) is not None


def cut(lan: Lan, one: int, other: int) -> bool:
    return fetch(lan, one, other, patience=1) is None


def fetch(lan: Lan, one: int, other: int, size: int = 1, patience: float = 20) -> float | None:
    """Seconds until `size` bytes have come from the other host; None: they did not."""
    done = lan[one].run(sys.executable, "-c", FETCH, lan[other].ip, str(size), str(patience), check=False)
    if done.returncode:
        return None
    got, seconds = done.stdout.split()
    assert int(got) == size
    return float(seconds)


def hears(lan: Lan, sender: int, host: int) -> bool:
    """Whether a datagram from there arrives, one way. One of h0's comes after it, and always does."""
    words = {number: secrets.token_hex(4) for number in (sender, 0)}
    for number, word in words.items():
        lan[number].run(sys.executable, "-W", "ignore", "-c", SEND, lan[host].ip, word)
    heard = eventually(
        lambda: [text for text in [lan[host].run("cat", "/tmp/heard").stdout] if words[0] in text], "word"
    )
    return words[sender] in heard[0]


def test_hosts_are_apart_and_share_what_they_are_told(tmp_path: Path) -> None:
    with hosts.up(2, share=[tmp_path]) as lan:
        assert [host.run("hostname").stdout for host in lan] == ["h0\n", "h1\n"]
        lan[0].run(
            "sh", "-c", f"echo 1 > /tmp/own; echo 2 > /etc/own; echo 3 > /dev/shm/own; echo 4 > {tmp_path}/shared"
        )
        assert (
            lan[1].run("sh", "-c", f"cat /tmp/own /etc/own /dev/shm/own {tmp_path}/shared", check=False).stdout == "4\n"
        )
        assert not any(Path(place, "own").exists() for place in ("/tmp", "/etc", "/dev/shm"))
        assert lan[0].processes() == {}
        assert lan[1].run("getent", "hosts", "h0").stdout.split() == ["10.77.0.1", "h0"]


def test_two_networks_with_the_same_addresses_do_not_meet(lan: Lan) -> None:
    with hosts.up(2) as others:
        assert others[1].ip == lan[1].ip
        assert reaches(lan, 0, 1) and cut(others, 0, 1)


def test_a_command_has_the_environment_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the test's own")
    with hosts.up(1) as lan:
        said = lan[0].run("env", env={"RAY_AUTH_MODE": "token"}).stdout.splitlines()
        assert "RAY_AUTH_MODE=token" in said and not any("RAY_AUTH_TOKEN" in line for line in said)
        with pytest.raises(AssertionError, match=r"h0: .*false.* gave 1"):
            lan[0].run("false")


def test_a_command_that_is_given_up_ends_there_too() -> None:
    with hosts.up(1) as lan:
        with pytest.raises(subprocess.TimeoutExpired):
            lan[0].run("sleep", "1000", timeout=0.5)
        assert "sleep 1000" not in lan[0].processes().values()


def test_link(lan: Lan) -> None:
    lan.link(1, up=False)
    assert cut(lan, 0, 1) and reaches(lan, 0, 2)
    lan.link(1, up=True)
    assert reaches(lan, 0, 1)


def test_partition_is_between_two(lan: Lan) -> None:
    lan.partition(1, 2)
    assert cut(lan, 1, 2) and not hears(lan, 1, 2) and not hears(lan, 2, 1)
    assert reaches(lan, 0, 1) and reaches(lan, 2, 0)
    lan.partition(1, 0)
    lan.heal(1, 2)
    assert reaches(lan, 1, 2) and hears(lan, 1, 2) and cut(lan, 0, 1)
    lan.heal(1, 0)
    assert hears(lan, 2, 1)


def test_loss(lan: Lan) -> None:
    lan.loss(2, 100)
    assert cut(lan, 0, 2) and reaches(lan, 0, 1)
    lan.partition(0, 2)
    lan.loss(2, 0)
    assert cut(lan, 0, 2) and reaches(lan, 1, 2), "the one fault has not ended the other"
    lan.heal(0, 2)
    lan.loss(2, 20)
    assert fetch(lan, 2, 0, 20_000), "TCP bears a loss of a fifth"


def test_rate(lan: Lan) -> None:
    lan.rate(1, 1)
    seconds = fetch(lan, 0, 1, 250_000)
    assert seconds and seconds > 1, "2 Mbit over 1 Mbit/s, less a burst of half a Mbit"
    lan.rate(1, 0)
    assert reaches(lan, 0, 1)


def test_poweroff_takes_every_process(lan: Lan) -> None:
    daemon = lan[1].run("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!").stdout.strip()
    assert lan[1].processes()[int(daemon)] == "sleep 1000"
    lan.poweroff(1)
    assert not Path(f"/proc/{lan[1].pid}").exists()
    assert cut(lan, 0, 1) and reaches(lan, 0, 2)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_test_that_ends_in_its_midst(end: signal.Signals) -> None:
    program = (
        "import sys; from tests.hosts import hosts\n"
        "with hosts.up(2) as lan:\n"
        "    lan[0].run('sh', '-c', 'setsid sleep 1000 >/dev/null 2>&1 &')\n"
        "    print(lan.switch, *(host.pid for host in lan), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=hosts.REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as test:
        assert test.stdout is not None
        pids = [int(word) for word in test.stdout.readline().split()]
        assert len(pids) == 3
        inits = [os.pidfd_open(pid) for pid in pids]
        test.send_signal(end)
        for init in inits:
            assert select.select([init], [], [], hosts.DEADLINE)[0], "it lives on"
            os.close(init)
