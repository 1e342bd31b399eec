"""Which cluster a command means; with a real one: test_ray_cluster.py. And what devkit remembers between commands."""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devkit.debug import address as address_module
from devkit.debug import gcs, processes, runs, state
from devkit.debug.address import of_run, resolve
from devkit.debug.gcs import GcsAddress, GcsFacts
from devkit.debug.hub_file import HubPlace
from devkit.debug.inworker import PROTOCOL
from devkit.debug.state import ClusterState, Started
from devkit.debug.tokens import Token, auth_mode, ensure_token, find_token, token_file
from devkit.errors import DevkitError, UnreachableError, UsageError
from tests.pace import stretched


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cluster, no memory and no token of anybody else; other Rays of this machine are out of sight."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path / "devkit"))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "ray"))


@pytest.fixture
def listening() -> Iterator[str]:
    """HOST:PORT of something that takes connections and closes them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    server.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        stop.set()
        thread.join()


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def cluster(name: str, gcs_address: str, **changes: object) -> ClusterState:
    """One whose head is this process."""
    me = Started("head", os.getpid(), processes.started(os.getpid()) or "", "log")
    made = ClusterState(
        name=name,
        gcs_address=gcs_address,
        dashboard_url="http://127.0.0.1:8265",
        mode="distributed",
        auth="token",
        processes=(me,),
        created=1.0,
        machine=processes.machine(),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


class TestResolve:
    def test_nothing_there(self) -> None:
        with pytest.raises(UnreachableError, match=r"no Ray cluster found$") as caught:
            resolve()
        assert caught.value.hint.startswith("start one with devkit debug-cluster")

    def test_a_url_is_believed(self) -> None:
        found = resolve("http://head:8265/#/jobs")
        assert (found.dashboard_url, found.gcs_address, found.token) == ("http://head:8265", None, None)

    @pytest.mark.parametrize(
        ("address", "problem", "hint"),
        [
            ("ray://head:10001", "Ray Client", "--address http://head:8265"),
            ("anyscale://x", "does not support", "dashboard URL"),
            ("local", "is not a running cluster", "devkit debug-cluster"),
            ("head", "not an address", "HOST:6379"),
            ("head:port", "not an address", "HOST:6379"),
            ("head:0", "not an address", "HOST:6379"),
            ("head:70000", "not an address", "HOST:6379"),
            ("::1:6379", "not an address", "HOST:6379"),
        ],
    )
    @pytest.mark.parametrize("source", ["--address", "RAY_ADDRESS"])
    def test_what_cannot_be(
        self, address: str, problem: str, hint: str, source: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if source == "RAY_ADDRESS":
            monkeypatch.setenv(source, address)
        with pytest.raises(UsageError, match=problem) as caught:
            resolve(address if source == "--address" else None)
        assert caught.value.message.startswith(f"{source} is ") and hint in caught.value.hint

    def test_ray_address_is_the_default_and_auto_means_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", "http://one:1")
        assert resolve().dashboard_url == resolve("auto").dashboard_url == "http://one:1"
        assert resolve("http://two:2").dashboard_url == "http://two:2"
        assert resolve().source == "RAY_ADDRESS"
        monkeypatch.setenv("RAY_ADDRESS", "auto")
        with pytest.raises(UnreachableError, match="no Ray cluster found"):
            resolve()

    def test_a_dead_address(self) -> None:
        with pytest.raises(UnreachableError, match=r"no Ray answers at 127.*refused") as caught:
            resolve(closed_port())
        assert "devkit debug-cluster" in caught.value.hint

    def test_a_dead_address_of_the_environment_is_said_to_be_from_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", closed_port())
        with pytest.raises(UnreachableError, match=r"no Ray answers at 127.*refused") as caught:
            resolve()
        assert caught.value.hint.startswith("RAY_ADDRESS names it") and caught.value.hint.endswith("unset RAY_ADDRESS")

    def test_an_unknown_host(self) -> None:
        with pytest.raises(UnreachableError, match="unknown host"):
            resolve("no-such-host.invalid:6379")

    def test_a_port_that_is_no_gcs(self, listening: str) -> None:
        """Ray's own client would try for more than half a minute."""
        with pytest.raises(UnreachableError, match="not a Ray GCS"):
            resolve(listening, timeout=2.0)

    def test_what_devkit_started_comes_first_and_the_newest_of_it(self) -> None:
        state.save(cluster("old", "10.0.0.5:1", created=1.0, dashboard_url="http://127.0.0.1:1"))
        state.save(cluster("new", "10.0.0.5:2", created=2.0, dashboard_url="http://127.0.0.1:2"))
        assert resolve().gcs_address == "10.0.0.5:2"
        assert resolve("10.0.0.5:1").dashboard_url == "http://127.0.0.1:1"
        assert resolve("localhost:1").gcs_address == "10.0.0.5:1"
        assert resolve("http://127.0.0.1:1").gcs_address == "10.0.0.5:1"

    def test_a_file_that_names_a_dead_cluster_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "ray" / "ray" / "ray_current_cluster"
        file.parent.mkdir(parents=True)
        dead = closed_port()
        file.write_text(dead)
        with pytest.raises(UnreachableError, match=f"no Ray cluster found: .*{dead}, where nothing answers"):
            resolve()
        file.write_bytes(b"\xff\xfe rubbish")
        with pytest.raises(UnreachableError, match=r"no Ray cluster found$"):
            resolve()

    def test_several_rays_here(self, listening: str, monkeypatch: pytest.MonkeyPatch) -> None:
        port = listening.rpartition(":")[2]
        here = frozenset({f"127.0.0.1:{port}", f"127.0.0.2:{port}", closed_port()})
        monkeypatch.setattr(processes, "gcs_addresses", lambda below, owners: here)
        monkeypatch.setattr(gcs, "is_up", lambda address, timeout=1.0: address.port == int(port))
        with pytest.raises(UsageError, match="2 Ray clusters run here") as caught:
            resolve()
        assert "--address" in caught.value.hint


HUB: dict[str, Any] = {"hub_id": "aa", "host": "10.0.0.1", "port": 4567, "node_id": "bb"}


class TestOfARun:
    """The cluster of a `devkit run` on this machine; the real thing is in tests/walks."""

    @staticmethod
    def announce(**more: object) -> runs.Run:
        announced = {"gcs_address": "10.0.0.1:6379", "job_id": "01", "auth": "token", "hub": HUB, **more}
        return runs.remember(announced, str(more.get("dashboard", "")))

    def test_without_a_dashboard_its_hub_is_known(self) -> None:
        run = self.announce()
        found = resolve()
        assert (found.source, found.dashboard_url, found.hub) == ("devkit run", "", HubPlace(**HUB))
        assert found == of_run(run)

    @pytest.mark.parametrize("named", [None, "http://10.0.0.1:8265"])
    def test_a_token_that_the_program_made_up_is_its_clusters(self, named: str | None) -> None:
        self.announce(token="its own", dashboard="http://10.0.0.1:8265")
        found = resolve(named)
        assert found.token and found.token.value == "its own" and "its own" not in repr(found)

    def test_another_cluster_keeps_the_users_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
        self.announce(token="its own", dashboard="http://10.0.0.1:8265")
        found = resolve("http://elsewhere:8265")
        assert found.token and found.token.value == "mine"

    def test_its_file_is_the_owners_alone_and_goes_with_it(self) -> None:
        self.announce(token="its own")
        [file] = (state.home() / "runs").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        runs.forget()
        assert not list((state.home() / "runs").iterdir())


class TestDashboardOfAGcs:
    """What the GCS says is given; the real thing is in test_ray_cluster.py."""

    @pytest.fixture
    def facts(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        said = {"dashboard": "127.0.0.1:8265", "session": "s", "hub": ""}
        monkeypatch.setattr(gcs, "ask", lambda *_: GcsFacts(said["dashboard"], said["session"], (), said["hub"]))
        return said

    def test_none(self, facts: dict[str, str], listening: str) -> None:
        facts["dashboard"] = ""
        found = resolve(listening)
        assert (found.dashboard_url, found.gcs_address, found.hub) == ("", listening, None)
        with pytest.raises(UnreachableError, match="without a dashboard") as caught:
            found.dashboard()
        assert "ray[default]" in caught.value.hint
        with found.dashboard_if_any() as dashboard:
            assert dashboard is None

    def test_one_that_listens_on_its_own_machine_only(
        self, facts: dict[str, str], listening: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert resolve(listening).dashboard_url == "http://127.0.0.1:8265"
        monkeypatch.setattr(GcsAddress, "is_local", False)
        facts["hub"] = json.dumps({**HUB, "protocol": PROTOCOL, "pid": 7})
        found = resolve(listening)
        assert found.hub == HubPlace(**HUB)
        with pytest.raises(UnreachableError, match="its own machine only") as caught:
            found.dashboard()
        assert "ssh -L" in caught.value.hint and "--dashboard-host" in caught.value.hint

    def test_what_was_seen_is_asked_again_unless_it_is_the_same_session(
        self, facts: dict[str, str], listening: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolve(listening)
        facts["dashboard"] = "127.0.0.1:9999"
        monkeypatch.setattr(address_module, "_is_still", lambda known, token: known.session == "s")
        assert resolve(listening).dashboard_url == "http://127.0.0.1:8265"
        monkeypatch.setattr(address_module, "_is_still", lambda known, token: False)
        assert resolve(listening).dashboard_url == "http://127.0.0.1:9999"


def test_is_local() -> None:
    assert GcsAddress("127.0.0.1", 1).is_local and GcsAddress("localhost", 1).is_local
    assert not GcsAddress("192.0.2.200", 1).is_local  # TEST-NET-1


class TestToken:
    def test_the_order_is_rays(self, tmp_path: Path) -> None:
        token_file().parent.mkdir(parents=True)
        token_file().write_text("of-file\n")
        named = tmp_path / "named"
        named.write_text(" of-path ")
        assert find_token({}) == Token("of-file", str(token_file()))
        assert find_token({"RAY_AUTH_TOKEN_PATH": str(named)}) == Token("of-path", str(named))
        assert find_token({"RAY_AUTH_TOKEN": "x", "RAY_AUTH_TOKEN_PATH": str(named)}) == Token("x", "RAY_AUTH_TOKEN")
        assert find_token({"RAY_AUTH_TOKEN": ""}) == Token("of-file", str(token_file()))

    @pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff"])
    def test_a_named_file_has_to_hold_one(self, content: bytes | None, tmp_path: Path) -> None:
        named = tmp_path / "named"
        if content is not None:
            named.write_bytes(content)
        with pytest.raises(UnreachableError, match="RAY_AUTH_TOKEN_PATH names") as caught:
            find_token({"RAY_AUTH_TOKEN_PATH": str(named)})
        assert caught.value.hint

    def test_a_new_one_is_for_its_owner_alone_and_stays(self) -> None:
        made, is_new = ensure_token({})
        assert is_new and len(made.value) >= 32 and made.value not in repr(made)
        assert stat.S_IMODE(token_file().stat().st_mode) == 0o600
        assert ensure_token({}) == (made, False)

    def test_an_empty_file_is_filled(self) -> None:
        token_file().parent.mkdir(parents=True)
        token_file().write_text("")
        assert ensure_token({})[1]
        assert find_token({}) is not None

    def test_a_home_that_cannot_be_written(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
        with pytest.raises(DevkitError, match="cannot write") as caught:
            ensure_token({})
        assert "RAY_AUTH_TOKEN" in caught.value.hint

    def test_mode(self) -> None:
        assert auth_mode(None, {}) == "token"
        assert auth_mode(None, {"RAY_AUTH_MODE": "Disabled"}) == "disabled"
        with pytest.raises(UsageError, match="RAY_AUTH_MODE is 'off'"):
            auth_mode(None, {"RAY_AUTH_MODE": "off"})
        with pytest.raises(UsageError, match="--auth is 'off'"):
            auth_mode("off", {})

    def test_what_ray_left_readable_is_made_private(self) -> None:
        path = token_file()
        path.parent.mkdir(parents=True)
        path.write_text("secret")
        path.chmod(0o644)
        assert ensure_token()[0].value == "secret" and stat.S_IMODE(path.stat().st_mode) == 0o600


class TestState:
    def test_it_is_private_and_survives(self) -> None:
        made = cluster("a", "10.0.0.5:1", node_ids=("n1", "n2"))
        state.save(made)
        assert state.clusters() == (made,)
        file = state.home() / "clusters" / "a.json"
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (state.home(), file.parent)}
        assert modes == {0o700} and stat.S_IMODE(file.stat().st_mode) == 0o600

    def test_a_dead_one_is_forgotten_also_if_its_pid_lives_on_as_another(self) -> None:
        another = replace(cluster("a", "h:1").processes[0], start="1")
        state.save(cluster("a", "h:1", processes=(another,)))
        assert state.clusters() == ()
        assert not (state.home() / "clusters" / "a.json").exists()

    def test_a_process_that_has_ended_but_was_not_reaped_is_dead(self) -> None:
        with subprocess.Popen([sys.executable, "-c", ""]) as child:
            start = processes.started(child.pid)
            assert start is not None
            deadline = time.monotonic() + 10
            while processes.started(child.pid) is not None and time.monotonic() < deadline:
                time.sleep(0.01)  # a zombie sends no event but to its parent's wait, which would reap it
            assert processes.started(child.pid) is None

    def test_another_machines_is_left_alone(self) -> None:
        """The home folder may be on a network drive."""
        state.save(cluster("a", "h:1", machine="elsewhere"))
        assert state.clusters() == ()
        assert (state.home() / "clusters" / "a.json").exists()
        assert state.free_name("a") == "a-2"

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"processes": 3}', json.dumps({"processes": [{}]})])
    def test_what_cannot_be_read_is_left_alone(self, content: str) -> None:
        state.save(cluster("good", "h:1"))
        (state.home() / "clusters" / "bad.json").write_text(content)
        (state.home() / "seen.json").write_text(content)
        assert [found.name for found in state.clusters()] == ["good"]
        assert state.seen("h:1") is None

    def test_a_later_version_may_add_fields(self) -> None:
        state.save(cluster("a", "h:1"))
        file = state.home() / "clusters" / "a.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "new": 1}))
        assert len(state.clusters()) == 1

    def test_a_folder_that_cannot_be_written(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("DEVKIT_HOME", str(tmp_path / "file"))
        with pytest.raises(DevkitError, match="cannot create the folder") as caught:
            state.save(cluster("a", "h:1"))
        assert "DEVKIT_HOME" in caught.value.hint
        state.see("h:1", state.Seen("http://h:2", "s"))  # is not worth an error

    def test_what_was_seen_is_bounded(self) -> None:
        for number in range(state.SEEN_LIMIT + 5):
            state.see(f"h:{number}", state.Seen("u", "s"))
        assert state.seen("h:0") is None and state.seen(f"h:{state.SEEN_LIMIT + 4}") == state.Seen("u", "s")


STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; print(flush=True); signal.pause()"],
                         start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""


BUSY = """
import os, signal, time
print("begun", flush=True)
for _ in range(300):
    if os.fork() == 0:
        os.setsid()
        signal.alarm(20)
        signal.pause()
    time.sleep(0.002)
signal.pause()
"""


class TestEnd:
    def test_a_stubborn_one_is_killed_with_what_left_its_session_and_nobody_else(self) -> None:
        """Given a leader deaf to SIGTERM, a child in a session of its own, and a bystander; when it is ended..."""
        pause = "import signal; signal.pause()"
        bystander = subprocess.Popen([sys.executable, "-c", pause], start_new_session=True)
        leader = subprocess.Popen([sys.executable, "-c", STUBBORN], start_new_session=True, stdout=subprocess.PIPE)
        try:
            assert leader.stdout is not None
            child = int(leader.stdout.readline())
            assert set(processes.family([leader.pid])) == {leader.pid, child}
            assert processes.end([leader.pid], deadline=time.monotonic() + 0.2) == (2, 2)
            assert leader.wait(stretched(10)) == -9
            deadline = time.monotonic() + 10
            while processes.started(child) and time.monotonic() < deadline:
                time.sleep(0.01)  # init reaps it
            assert processes.started(child) is None
            assert bystander.poll() is None
        finally:
            for process in (leader, bystander):
                process.kill()
                process.wait()
            if leader.stdout:
                leader.stdout.close()

    def test_what_it_starts_while_it_is_looked_at_is_ended_too(self) -> None:
        """Given a leader that starts one child after another, each in a session of its own; when it is ended..."""
        leader = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True, stdout=subprocess.PIPE)
        read = leader.stdout
        assert read is not None
        with leader:
            assert read.readline() == b"begun\n"
            processes.end([leader.pid], deadline=time.monotonic() + 0.2)
            # Each of them has the pipe; it ends with the last one.
            assert select.select([read], [], [], 10)[0] and read.read() == b""

    def test_one_that_listens_is_not_killed(self) -> None:
        leader = subprocess.Popen(
            [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"],
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        with leader:
            assert leader.stdout is not None
            leader.stdout.readline()
            assert processes.end([leader.pid], deadline=time.monotonic() + 10) == (1, 0)
            assert leader.wait(stretched(10)) == -15
