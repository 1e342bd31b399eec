"""Nobody without the cluster's token can stop, read or run anything; and the token is written nowhere."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.debug.conftest import DEADLINE, PROGRAMS, Cluster, Job, mark

pytestmark = pytest.mark.ray

PROGRAM = PROGRAMS / "reach_secrets.py"
NOBODY = 65534
INITIALIZE = b'{"seq":1,"type":"request","command":"initialize","arguments":{"adapterID":"python"}}'
WORDS = {
    "random bytes": secrets.token_bytes(512),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n",
    "a debugger": b"Content-Length: %d\r\n\r\n%s" % (len(INITIALIZE), INITIALIZE),
    "nothing": b"",
}
# Reads "host port hex" lines, prints what each is answered. Its arguments: how long it waits for a first answer, and a
# user to become. What goes on after a first answer comes at once.
CALLER = """
import encodings.idna, os, socket, sys
if sys.argv[2:]: os.setuid(int(sys.argv[2]))
for line in sys.stdin:
    host, port, words = line.split(" ")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=5) as there:
        there.settimeout(float(sys.argv[1]))
        there.sendall(bytes.fromhex(words))
        try:
            while data := there.recv(65536):
                answer += data
                there.settimeout(0.3)
        except OSError: pass
    print(answer.hex(), flush=True)
"""

Document = dict[str, Any]


@dataclass(frozen=True)
class Stopped:
    cluster: Cluster
    job: Job
    stop: Document


def hub_place(cluster: Cluster) -> Document:
    place: Document = json.loads(cluster.find_log("devkit/hub.json").read_text())
    return place


@pytest.fixture(scope="module")
def stopped(cluster: Cluster) -> Iterator[Stopped]:
    """The tests go from top to bottom: the last ones let it go on and look at what is left."""
    job = Job(cluster, "--", sys.executable, str(PROGRAM))
    try:
        [stop] = job.stops()
        yield Stopped(cluster, job, stop)
    finally:
        job.kill()


def processes(stopped: Stopped) -> list[psutil.Process]:
    """The job's workers, its driver, the hub, and the children of all these."""
    workers = [one for one in stopped.cluster.json("ps")["workers"] if one["job_id"] == stopped.job.id]
    parents = [psutil.Process(pid) for pid in {hub_place(stopped.cluster)["pid"], *(one["pid"] for one in workers)}]
    return parents + [child for parent in parents for child in parent.children(recursive=True)]


def listening(stopped: Stopped) -> list[tuple[str, int]]:
    found = {
        (str(each.laddr.ip), int(each.laddr.port))
        for process in processes(stopped)
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    # One that listens everywhere is also called at the node's own address.
    return sorted((stopped.stop["node_ip"] if host in ("0.0.0.0", "::") else host, port) for host, port in found)


def call(places: list[tuple[str, int]], words: bytes, user: int | None = None, patience: float = 0.3) -> list[bytes]:
    done = subprocess.run(
        [sys.executable, "-c", CALLER, str(patience), *([] if user is None else [str(user)])],
        input="".join(f"{host} {port} {words.hex()}\n" for host, port in places),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    return [bytes.fromhex(line) for line in done.stdout.splitlines()]


@pytest.mark.needs_root
def test_a_stranger_is_told_nothing_and_harms_nothing(stopped: Stopped) -> None:
    places = listening(stopped)
    ours = (hub_place(stopped.cluster)["host"], hub_place(stopped.cluster)["port"])
    assert ours in places and len(places) > 2
    for what, words in WORDS.items():
        for place, answer in zip(places, call(places, words, NOBODY), strict=True):
            assert b"Content-Length" not in answer and b"success" not in answer, (what, place, answer)
            if place == ours:  # the hub shows a random number, and that it is a hub
                assert set(json.loads(answer)) == {"devkit", "nonce"}
    [stop] = stopped.cluster.ps(stopped.job.id)["stops"]
    assert stop["id"] == stopped.stop["id"]
    [result] = stopped.cluster.json("eval", "self.rank + 1", "--target", stop["id"])["results"]
    assert result["value"] == "2"


def test_the_door_for_rays_extension_is_for_this_user_only(stopped: Stopped) -> None:
    """The only port of a worker that speaks a debugger's language, and it is not debugpy's."""
    url = f"{stopped.cluster.dashboard_url}/api/v0/workers?detail=1&limit=10000"
    request = urllib.request.Request(url, headers=authorization(stopped.cluster))
    rows = json.load(urllib.request.urlopen(request, timeout=DEADLINE))["data"]["result"]["result"]
    [row] = [row for row in rows if row["worker_id"] == stopped.stop["worker_id"]]
    place = (row["ip"], row["debugger_port"])
    assert row["num_paused_threads"] == 1 and place in listening(stopped)
    if os.getuid() == 0:
        assert call([place], WORDS["a debugger"], NOBODY) == [b""]
    [mine] = call([place], WORDS["a debugger"], patience=10.0)
    assert b"supportsConfigurationDoneRequest" in mine


def test_debugpy_is_nowhere(stopped: Stopped) -> None:
    check = "'debugpy' in __import__('sys').modules"
    [result] = stopped.cluster.json("eval", check, "--target", stopped.stop["id"])["results"]
    assert result["value"] == "False"
    folder = stopped.cluster.environ["RAY_TMPDIR"]
    for process in psutil.process_iter():
        try:
            if process.environ().get("RAY_TMPDIR") == folder:
                assert "debugpy" not in " ".join(process.cmdline())
        except psutil.Error:
            continue


def test_it_goes_on_after_all_that(stopped: Stopped) -> None:
    stopped.cluster.devkit("continue", stopped.stop["id"])
    assert stopped.job.end() == 0 and "ended" in stopped.job.out


def authorization(cluster: Cluster) -> dict[str, str]:
    return {"Authorization": f"Bearer {cluster.environ['RAY_AUTH_TOKEN']}"}


def test_the_token_is_in_no_snapshot(stopped: Stopped) -> None:
    crashes = stopped.cluster.json("crashes")["crashes"]
    found = [crash for crash in crashes if crash["job_id"] == stopped.job.id]
    assert len(found) == 1, crashes
    [crash] = found
    document = stopped.cluster.json("crashes", "show", crash["id"])
    frame = document["frames"][document["at"]]
    assert frame["line"] == mark(PROGRAM.name, "fail")
    assert set(frame["locals"]) >= {"plain", "environ", "client", "pair", "sentence", "pieces", "edge"}
    assert frame["locals"]["sentence"] == "the token is <redacted>, keep it"
    assert stopped.cluster.environ["RAY_AUTH_TOKEN"][:12] not in json.dumps(document)  # nor the beginning of it


def test_the_token_is_in_none_of_rays_tables(stopped: Stopped) -> None:
    token = stopped.cluster.environ["RAY_AUTH_TOKEN"]
    tables = [f"/api/v0/{name}?detail=1&limit=1000" for name in ("jobs", "actors", "runtime_envs", "tasks", "workers")]
    for path in [*tables, "/api/jobs/"]:
        request = urllib.request.Request(stopped.cluster.dashboard_url + path, headers=authorization(stopped.cluster))
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            text = answer.read().decode()
        assert token not in text, path
        if "actors" in path:
            assert "devkit-hub" in text and "Keeper" in text


def files_with(token: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]


def test_the_token_is_in_no_log_and_in_no_file_of_ours(stopped: Stopped) -> None:
    token = stopped.cluster.environ["RAY_AUTH_TOKEN"]
    for logs in stopped.cluster.logs:
        assert len(list(logs.iterdir())) > 10
        assert files_with(token, logs) == []
        assert files_with(token, logs.with_name("runtime_resources")) == []
    assert files_with(token, Path(stopped.cluster.environ["DEVKIT_HOME"])) == []


@pytest.mark.needs_root
@pytest.mark.parametrize("where", ["home", "logs"])
def test_another_user_can_read_no_file_of_ours(stopped: Stopped, where: str) -> None:
    cluster = stopped.cluster
    home = Path(cluster.environ["DEVKIT_HOME"])
    folders = [home] if where == "home" else [logs / "devkit" for logs in cluster.logs]
    files = [str(path) for folder in folders for path in folder.rglob("*") if path.is_file()]
    script = f"import os, sys; os.setuid({NOBODY}); print([p for p in sys.argv[1:] if os.access(p, os.R_OK)])"
    done = subprocess.run(
        [sys.executable, "-c", script, *files], capture_output=True, text=True, check=True, timeout=DEADLINE
    )
    assert files and done.stdout.strip() == "[]"
