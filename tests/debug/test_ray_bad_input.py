"""What can go wrong around a debugger: one `error:` and one `hint:` each, in time; nothing is lost that was listed."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.debug.conftest import (
    DEADLINE,
    PROGRAMS,
    Cluster,
    Job,
    environment,
    eventually,
    mark,
    short_folder,
    staged,
    start,
)
from tests.debug.look import Look

pytestmark = pytest.mark.ray

Document = dict[str, Any]
Launch = Callable[..., Job]
ANSWERED = 40.0  # seconds; every command ends by itself long before, also on a busy machine


def refused(environ: dict[str, str], *arguments: str, after_program: bool = False) -> tuple[int, str, str]:
    """Exit code, error and hint of a command that fails as it should; a program that it ran may have spoken before."""
    command = [sys.executable, "-m", "devkit", *arguments]
    done = subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWERED
    )
    assert after_program or "Traceback" not in done.stdout + done.stderr
    error, hint = done.stderr.strip().splitlines()[-2 if after_program else 0 :]
    assert error.startswith("error: ") and hint.startswith("hint: ") and len(hint) > len("hint: "), done.stderr
    return done.returncode, error, hint


class Silent(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1 << 16)
        self.request.settimeout(ANSWERED)
        self.request.recv(1 << 16)


class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>a web page</html>")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """A user who has no cluster."""
    return environment(tmp_path)


@pytest.mark.parametrize("verb", [("ps",), ("attach",), ("jobs",)])
def test_no_cluster(nowhere: dict[str, str], verb: tuple[str, ...]) -> None:
    code, error, hint = refused(nowhere, *verb)
    assert code == 3 and "no Ray cluster found" in error and "devkit debug-cluster" in hint


def test_no_cluster_for_a_driver_is_rays_own_affair(nowhere: dict[str, str]) -> None:
    code, error, _ = refused(nowhere, "submit", "--", sys.executable, "-c", "1")
    assert code == 3 and "no Ray cluster found" in error


@pytest.mark.parametrize(
    ("address", "code"),
    [("nonsense", 2), ("ftp://x:1", 2), ("ray://127.0.0.1:10001", 2), ("no-such-host.invalid:1", 3)],
)
def test_a_wrong_address(nowhere: dict[str, str], address: str, code: int) -> None:
    assert refused(nowhere, "ps", "--address", address)[0] == code


def test_an_address_where_nothing_listens(nowhere: dict[str, str]) -> None:
    port = free_port()
    for address in (f"127.0.0.1:{port}", f"http://127.0.0.1:{port}"):
        assert refused(nowhere, "ps", "--address", address)[0] == 3


@pytest.mark.parametrize(
    ("handler", "scheme"), [(Web, "http://"), (Web, ""), (Silent, "http://")], ids=["web", "no GCS", "silent"]
)
def test_an_address_of_something_else(nowhere: dict[str, str], handler: Any, scheme: str) -> None:
    with served(handler) as address:
        assert refused(nowhere, "ps", "--address", scheme + address)[0] == 3


@pytest.mark.parametrize("token", ["", "ab" * 32], ids=["none", "wrong"])
def test_a_token_that_is_not_the_clusters(cluster: Cluster, token: str, tmp_path: Path) -> None:
    environ = {**cluster.environ, "RAY_AUTH_TOKEN": token, "HOME": str(tmp_path)}
    for address in (cluster.dashboard_url, cluster.gcs_address):
        code, error, hint = refused(environ, "ps", "--address", address)
        assert code == 3 and "token" in error and "RAY_AUTH_TOKEN" in hint


def test_a_driver_whose_token_is_not_the_clusters(cluster: Cluster, tmp_path: Path) -> None:
    environ = {**cluster.environ, "RAY_AUTH_TOKEN": "ab" * 32, "HOME": str(tmp_path)}
    environ["RAY_ADDRESS"] = cluster.gcs_address
    code, error, hint = refused(
        environ, "run", "--", sys.executable, "-c", "import ray; ray.init()", after_program=True
    )
    assert code == 1, "the program's own"
    assert "refuses the token" in error and "RAY_AUTH_TOKEN" in hint


def test_a_ray_without_a_dashboard() -> None:
    with short_folder() as folder, ExitStack() as stack:
        environ, port = environment(folder), free_port()
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", f"--port={port}"]
        options = ["--include-dashboard=false", "--num-cpus=1", "--block", f"--temp-dir={folder}/ray"]
        ray = subprocess.Popen(
            [*command, *options], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        stack.callback(ray.wait, DEADLINE)
        stack.callback(ray.terminate)
        assert ray.stdout is not None
        stack.callback(ray.stdout.close)
        assert any("This command will now block" in line for line in ray.stdout)

        code, error, hint = refused(environ, "jobs", "--address", f"127.0.0.1:{port}")
        assert code == 3 and "without a dashboard" in error and "ray[default]" in hint
        code, error, _ = refused(environ, "ps", "--address", f"127.0.0.1:{port}")  # it can do without
        assert code == 3 and "no job of this cluster runs under devkit" in error


# ---- on the cluster that all tests share


@pytest.fixture(scope="module")
def standing(cluster: Cluster) -> Iterator[Job]:
    """Three ranks at their breakpoint()."""
    job = Job(cluster, "--", sys.executable, str(PROGRAMS / "crash_nodes.py"))
    try:
        job.stops(3)
        yield job
    finally:
        job.kill()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("continue", "nosuch"), 2),
        (("attach", "nosuch"), 2),
        (("eval", "1", "--target", "nosuch"), 2),
        (("eval", "1 +"), 2),
        (("crashes", "show", "nosuch"), 2),
        (("break", "--clear", "nosuch"), 2),
        (("break", "absent.py:1"), 2),
        (("dap", "--id", "nosuch"), 2),
        (("dap", "--crash", "nosuch"), 2),
        (("stacks", "--job", "99000000"), 3),
        (("logs", "99000000"), 3),
        (("stop", "99000000"), 3),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_an_id_that_is_not_known(cluster: Cluster, standing: Job, arguments: tuple[str, ...], code: int) -> None:
    assert refused(cluster.environ, *arguments)[0] == code


def test_two_users_at_one_stop(cluster: Cluster, standing: Job) -> None:
    """One looks, the other lets it go on: the first is told, and who is late gets the reason."""
    stop = standing.stops()[0]
    command = [sys.executable, "-m", "devkit", "attach", stop["id"]]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=cluster.environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as first:
        eventually(lambda: stop["id"] in [one["id"] for one in standing.stops() if one["attached"]], "the first user")
        cluster.devkit("continue", stop["id"])
        assert first.stdin is not None
        first.stdin.write("p answer\n")
        out, err = first.communicate(timeout=ANSWERED)
    assert "Traceback" not in out + err
    assert "was resumed, elsewhere" in out + err

    code, error, hint = refused(cluster.environ, "continue", stop["id"])
    assert code == 2 and stop["id"] in error and hint


# ---- on a cluster of its own, of which parts are lost; the tests go from top to bottom


@dataclass(frozen=True)
class Fragile:
    cluster: Cluster
    job: Job
    stops: dict[int, Document]  # by rank

    def gone(self, rank: int) -> str:
        """Why the stop of a rank ended."""
        ends = [end for end in self.cluster.json("ps")["gone"] if end["id"] == self.stops[rank]["id"]]
        return str(ends[0]["reason"]) if ends else ""

    def hub_pid(self) -> int:
        return int(json.loads(self.cluster.find_log("devkit/hub.json").read_text())["pid"])


@pytest.fixture(scope="module")
def fragile() -> Iterator[Fragile]:
    """Without authentication; the second node keeps its files in a folder of its own, as another machine does."""
    with short_folder() as folder, short_folder() as elsewhere, ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_health_check_period_ms", "500")  # a node that is lost is found out after five of these
            cluster = start(folder, "--nodes", "1", auth="disabled")
        stack.callback(cluster.devkit, "debug-cluster", "stop")
        cluster.devkit(
            "debug-cluster", "--join", cluster.gcs_address, "--auth", "disabled", "--temp-dir", str(elsewhere), "--json"
        )
        job = Job(cluster, "--", sys.executable, str(PROGRAMS / "crash_nodes.py"))
        stack.callback(job.kill)
        yield Fragile(cluster, job, {stop["rank"]: stop for stop in job.stops(3)})


def test_without_authentication_it_is_the_same(fragile: Fragile) -> None:
    assert sorted(fragile.stops) == [0, 1, 2]
    answer = fragile.cluster.json("eval", "answer")
    assert {one["rank"]: one["value"] for one in answer["results"]} == {0: "40", 1: "41", 2: "42"}
    assert len(fragile.cluster.json("crashes")["crashes"]) == 3


def test_a_worker_that_is_killed_while_stopped(fragile: Fragile) -> None:
    stop = fragile.stops[1]
    os.kill(stop["pid"], signal.SIGKILL)
    eventually(lambda: fragile.gone(1), "its end")
    assert "the process died" in fragile.gone(1)
    code, error, hint = refused(fragile.cluster.environ, "continue", stop["id"])
    assert code == 2 and stop["id"] in error and hint
    ranks = sorted(one["rank"] for one in fragile.cluster.ps(fragile.job.id)["stops"])
    assert ranks == [0, 2]


def test_a_node_that_is_lost_while_something_is_stopped_there(fragile: Fragile) -> None:
    workers = {worker["pid"]: worker for worker in fragile.cluster.json("ps")["workers"]}
    node = workers[fragile.stops[2]["pid"]]["node_id"]
    [raylet] = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "raylet" and f"--node_id={node}" in (process.info["cmdline"] or ())
    ]
    raylet.kill()
    eventually(lambda: fragile.gone(2), "the loss of the node")
    assert "the node was lost" in fragile.gone(2) or "the process died" in fragile.gone(2)
    assert refused(fragile.cluster.environ, "continue", fragile.stops[2]["id"])[0] == 2


def test_a_crash_outlives_its_node(fragile: Fragile) -> None:
    crashes = {crash["rank"]: crash for crash in fragile.cluster.json("crashes")["crashes"] if crash["kind"] == "actor"}
    document = fragile.cluster.json("crashes", "show", crashes[2]["id"])
    assert document["line"] == mark("crash_nodes.py", "fail")
    assert document["frames"][document["at"]]["locals"]["doubled"] == 4


def test_a_dead_hub_loses_no_stop(fragile: Fragile) -> None:
    with staged(fragile.cluster, "scenes.py") as stage, fragile.cluster.connect() as hub:
        stage.do("p = Plain.remote(); r = p.stop.remote(21)")
        look = Look(hub, stage.job.id, "scenes.py", "children.py")
        [stop] = look.stops("plain")
        pid = fragile.hub_pid()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: fragile.hub_pid() != pid, "a new hub")
        with fragile.cluster.connect() as again:
            look.hub = again
            [same] = look.stops("plain")
            assert same == stop
            client, _, frame = look.debugger(same)
            client.set(frame, "doubled", "7")
            client.ask("disconnect")
        fragile.cluster.devkit("continue", stop["id"])
        assert stage.do("ray.get(r)") == 7


def test_a_hub_that_dies_is_started_again_and_knows_what_it_knew(fragile: Fragile) -> None:
    before = [crash["id"] for crash in fragile.cluster.json("crashes")["crashes"]]
    os.kill(fragile.hub_pid(), signal.SIGKILL)

    def answered() -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-m", "devkit", "ps", "--json"],
            env=fragile.cluster.environ, capture_output=True, text=True, timeout=ANSWERED,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return [] if done.returncode else [[stop["rank"] for stop in json.loads(done.stdout)["stops"]]]

    first = eventually(answered, "an answer of the new hub")
    assert first == [[0]], "it does not answer before it knows"
    assert [crash["id"] for crash in fragile.cluster.json("crashes")["crashes"]] == before


def test_a_hub_that_says_nothing_is_not_waited_for(fragile: Fragile) -> None:
    pid = fragile.hub_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        code, error, _ = refused(fragile.cluster.environ, "ps")
        assert code == 4, error
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [stop["rank"] for stop in fragile.cluster.ps(fragile.job.id)["stops"]] == [0]


def test_what_is_left_goes_on_to_its_end(fragile: Fragile) -> None:
    fragile.cluster.devkit("continue", fragile.stops[0]["id"])
    assert fragile.job.end() == 0
    assert [line for line in fragile.job.out.splitlines() if line.startswith("rank ")] == [
        "rank 0: 40",
        "rank 1: lost",
        "rank 2: lost",
    ]
