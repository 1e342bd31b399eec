"""`devkit debug-cluster` with real Rays: two nodes with a token, and beside them one of the older kind without.

The tests of a class go from top to bottom: a Ray takes seconds to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from devkit.debug import cluster, processes, ray_start, state
from devkit.debug.address import resolve
from devkit.debug.cluster_records import DebugCluster
from devkit.debug.cluster_view import start_main, status_main, stop_main
from devkit.debug.dashboard import Dashboard
from devkit.debug.gcs import GcsAddress, ask
from devkit.debug.ray_start import ClusterOptions
from devkit.debug.tokens import Token, find_token, token_file
from devkit.errors import DeadlineError, DevkitError, UnreachableError, UsageError
from tests import documents
from tests.pace import stretched

pytestmark = pytest.mark.ray

WAIT = 60.0
LEFTOVERS = {"RAY_DEBUG": "0", "RAY_DEBUG_POST_MORTEM": "0", "PYTHONBREAKPOINT": "0"}
SHOW_ENVIRONMENT = """
import json, os, ray
ray.init(log_to_driver=False, logging_level="ERROR")
wanted = ("RAY_DEBUG", "RAY_DEBUG_POST_MORTEM", "RAY_AUTH_MODE", "PYTHONBREAKPOINT")
show = ray.remote(num_cpus=0)(lambda: {name: os.environ.get(name) for name in wanted})
where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
tasks = [show.options(scheduling_strategy=where(node["NodeID"], soft=False)).remote() for node in ray.nodes()]
print("ENVIRONMENT", json.dumps(ray.get(tasks)))
"""


@pytest.fixture(scope="module")
def own_world() -> Iterator[Path]:
    """A home, a memory and a Ray folder of the module's own, with everything in the environment that a user forgot."""
    folder = Path(tempfile.mkdtemp(prefix="dk-", dir="/tmp"))  # short: Ray's sockets live far below it
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
            patch.delenv(name, raising=False)
        for name, value in {**LEFTOVERS, "HOME": folder, "DEVKIT_HOME": folder / "dk", "RAY_TMPDIR": folder}.items():
            patch.setenv(name, str(value))
        yield folder
        cluster.stop()
    shutil.rmtree(folder, ignore_errors=True)


def leaders() -> dict[str, list[int]]:
    return {found.name: [process.pid for process in found.living] for found in state.clusters()}


def rays_below(folder: Path) -> list[Any]:
    """Ray's processes that have their files there."""
    psutil = processes.load_psutil()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()) and process.name() in ("raylet", "gcs_server"):
                found.append(process)
    return found


def environment_of_workers(dashboard: Dashboard) -> list[dict[str, str]]:
    """What the tasks of a submitted job see, one on each node."""
    script = SHOW_ENVIRONMENT.replace('"', '\\"').replace("\n", "\\n")
    job = dashboard.submit_job(f"""{sys.executable} -c 'exec("{script}")'""")
    with dashboard.job_logs_stream(job, silence=WAIT) as pieces:
        log = b"".join(pieces).decode()
    found = [line.partition(" ")[2] for line in log.splitlines() if line.startswith("ENVIRONMENT ")]
    assert found, log
    parsed: list[dict[str, str]] = json.loads(found[0])
    return parsed


@dataclass(frozen=True)
class Rays:
    first: DebugCluster  # two nodes, with a token
    second: DebugCluster  # the older debugger, without a token
    said: list[str]  # while the first one started


@pytest.fixture(scope="module")
def rays(own_world: Path) -> Rays:
    said: list[str] = []
    two_nodes = ClusterOptions(nodes=2, num_cpus=1, timeout=WAIT, port=0, dashboard_port=0)
    first = cluster.start(two_nodes, said.append)
    legacy = ClusterOptions(legacy=True, auth="disabled", num_cpus=1, timeout=WAIT, port=0, dashboard_port=0)
    return Rays(first, cluster.start(legacy, lambda line: None), said)


@pytest.mark.ray
class TestRealRays:
    def test_the_record_is_as_promised(self, rays: Rays) -> None:
        record = json.loads(json.dumps(rays.first.to_json()))
        assert {"gcs_address", "dashboard_url", "nodes", "debug", "join_command"} <= set(record)
        assert [set(node) >= {"node_id", "ip", "alive", "cpus", "gpus"} for node in record["nodes"]] == [True, True]
        assert [(node["alive"], node["cpus"], node["head"]) for node in record["nodes"]] == [
            (True, 1, True),
            (True, 1, False),
        ]
        assert record["debug"] == {"mode": "distributed", "post_mortem": True}
        assert record["join_command"] == f"devkit debug-cluster --join {record['gcs_address']} --auth token"
        assert rays.second.debug.mode == "legacy"
        assert rays.second.join_command.endswith(" --auth disabled --legacy")

    def test_what_it_removed_was_said(self, rays: Rays) -> None:
        assert rays.first.removed == tuple(f"{name}=0" for name in ray_start.DEBUG_VARIABLES)
        for leftover in rays.first.removed:
            assert any(leftover in line for line in rays.said)

    def test_workers_have_the_debugger_on(self, rays: Rays) -> None:
        with resolve(rays.first.gcs_address).dashboard() as dashboard:
            found = environment_of_workers(dashboard)
        wanted = {"RAY_DEBUG": "1", "RAY_DEBUG_POST_MORTEM": "1", "RAY_AUTH_MODE": "token"}
        assert [{name: seen[name] for name in wanted} for seen in found] == [wanted, wanted]
        assert all(seen["PYTHONBREAKPOINT"] != "0" for seen in found)

    def test_workers_of_the_older_kind(self, rays: Rays) -> None:
        """They inherit the environment of their raylet."""
        psutil = processes.load_psutil()
        members = [psutil.Process(pid) for pid in processes.family(leaders()[rays.second.name])]
        (raylet,) = [member for member in members if member.name() == "raylet"]
        found = raylet.environ()
        assert (found["RAY_DEBUG"], found["RAY_AUTH_MODE"]) == ("legacy", "disabled")
        assert found["RAY_DEBUG_POST_MORTEM"] == "0"  # as the user had it: beside the older debugger it is theirs
        assert any("--ray-debugger-external" in word for word in raylet.cmdline())

    def test_a_token_was_made_and_is_nowhere_but_in_rays_own_file(self, rays: Rays, own_world: Path) -> None:
        token = find_token()
        assert token and token.source == str(token_file())
        assert stat.S_IMODE(token_file().stat().st_mode) == 0o600
        assert token.value not in repr(rays.first) + "".join(rays.said)
        holders = [
            path
            for path in own_world.rglob("*")
            if path.is_file() and not path.is_symlink() and token.value.encode() in path.read_bytes()
        ]
        assert holders == [token_file()]
        psutil = processes.load_psutil()
        for pid in processes.family([pid for pids in leaders().values() for pid in pids]):
            assert token.value not in " ".join(psutil.Process(pid).cmdline())

    def test_the_token_is_asked_for(self, rays: Rays) -> None:
        with Dashboard(rays.first.dashboard_url, None) as dashboard:
            assert dashboard.authentication_mode() == "token"
            with pytest.raises(UnreachableError, match="asks for a token"):
                dashboard.nodes()
        with (
            Dashboard(rays.first.dashboard_url, Token("wrong", "RAY_AUTH_TOKEN")) as dashboard,
            pytest.raises(UnreachableError, match="refuses the token of RAY_AUTH_TOKEN"),
        ):
            dashboard.nodes()
        with Dashboard(rays.second.dashboard_url, None) as dashboard:
            assert dashboard.authentication_mode() == "disabled" and len(dashboard.nodes()) == 1

    def test_the_dashboard_answers(self, rays: Rays) -> None:
        with Dashboard(rays.first.dashboard_url, find_token()) as dashboard:
            node = next(node for node in dashboard.nodes() if node.is_head_node)
            names = [name for kind in dashboard.list_logs(node.node_id, "raylet*").values() for name in kind]
            assert "raylet.out" in names
            whole = dashboard.log_file(node.node_id, "raylet.out")
            with dashboard.stream_log(node.node_id, "raylet.out", 0.05, silence=WAIT) as stream:
                assert whole.startswith(next(stream)[: len(whole)])
            with pytest.raises(DevkitError, match="no log file"):
                dashboard.log_file(node.node_id, "../../../etc/passwd")
            (job,) = [row for row in dashboard.jobs() if row.submission_id]
            assert job.status == "SUCCEEDED" and dashboard.job(job.submission_id) == job
            assert dashboard.stop_job(job.submission_id) is False
            assert dashboard.put_package("dk_test.zip", b"PK") == "gcs://dk_test.zip"
            assert dashboard.has_package("dk_test.zip") and not dashboard.has_package("dk_none.zip")

    def test_addresses(self, rays: Rays, own_world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """By default the newest; by GCS or dashboard address; and from a machine that did not start it."""
        assert resolve().gcs_address == rays.second.gcs_address
        assert resolve(rays.first.dashboard_url).gcs_address == rays.first.gcs_address
        monkeypatch.setenv("DEVKIT_HOME", str(own_world / "other"))
        assert resolve(rays.first.gcs_address).dashboard_url == rays.first.dashboard_url
        assert state.seen(rays.first.gcs_address) is not None
        assert resolve(rays.first.gcs_address).dashboard_url == rays.first.dashboard_url
        assert resolve(rays.second.gcs_address).dashboard_url == rays.second.dashboard_url  # with a token it needn't
        assert resolve(rays.first.dashboard_url.removeprefix("http://")).dashboard_url == rays.first.dashboard_url
        assert resolve().source == str(own_world / "ray" / "ray_current_cluster")
        monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
        with pytest.raises(UnreachableError, match="refuses the token of RAY_AUTH_TOKEN"):
            resolve(GcsAddress("127.0.0.1", GcsAddress.parse(rays.first.gcs_address).port).__str__())

    def test_a_node_joins(self, rays: Rays, own_world: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def join(**more: Any) -> ClusterOptions:
            return ClusterOptions(join=rays.first.gcs_address, num_cpus=2, timeout=WAIT, json=True, **more)

        assert start_main(join()) == 0
        joined = json.loads(capsys.readouterr().out)
        assert joined["gcs_address"] == rays.first.gcs_address and joined["name"].startswith("joined-")
        assert [(node["cpus"], node["alive"], node["head"]) for node in joined["nodes"]] == [(2, True, False)]
        assert len(ask(GcsAddress.parse(rays.first.gcs_address), find_token()).nodes) == 3
        with pytest.raises(UsageError, match=r"--auth is 'disabled', but the head .* has 'token'"):
            cluster.start(join(auth="disabled"), rays.said.append)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(own_world / "nobody"))
            with pytest.raises(UnreachableError, match="asks for a token"):
                cluster.start(join(), rays.said.append)

    def test_status(self, rays: Rays, capsys: pytest.CaptureFixture[str]) -> None:
        assert status_main(json=True) == 0
        told = json.loads(capsys.readouterr().out)
        documents.check_output(["debug-cluster", "status"], told)
        found = {each["name"]: each for each in told["clusters"]}
        assert len(found) == 3 and len(found[rays.first.name]["nodes"]) == 3
        assert [each["problem"] for each in found.values()] == ["", "", ""]
        assert status_main(json=False) == 0
        assert rays.first.gcs_address in capsys.readouterr().out

    def test_a_taken_port(self, rays: Rays) -> None:
        port = GcsAddress.parse(rays.first.gcs_address).port
        with pytest.raises(UsageError, match=f"--port {port}: that port is in use"):
            cluster.start(ClusterOptions(port=port), rays.said.append)

    def test_stopping_one_leaves_the_others(self, rays: Rays, capsys: pytest.CaptureFixture[str]) -> None:
        before = leaders()
        ended, kept = (
            processes.family(
                [pid for name, pids in before.items() for pid in pids if (name == rays.second.name) is one]
            )
            for one in (True, False)
        )
        assert len(ended) > 5 and len(kept) > 10
        [own] = [Path(found.own_folder) for found in state.clusters() if found.name == rays.second.name]
        assert stat.S_IMODE(own.stat().st_mode) == 0o700 and list(own.glob("r/session_*/logs"))
        assert stop_main(rays.second.gcs_address, json=True) == 0
        told = json.loads(capsys.readouterr().out)
        documents.check_output(["debug-cluster", "stop"], told)
        (stopped,) = told["stopped"]
        assert not own.exists() and stopped["logs"] == ""
        assert stopped["name"] == rays.second.name and stopped["processes"] >= len(ended)
        assert processes.living(ended) == {} and set(leaders()) == set(before) - {rays.second.name}
        with Dashboard(rays.first.dashboard_url, find_token()) as dashboard:
            assert [node.alive for node in dashboard.nodes()] == [True] * 3
        assert len(processes.living(kept)) > 10  # all but idle workers that Ray itself has ended meanwhile

    def test_a_node_that_died_is_a_problem(self, rays: Rays, capsys: pytest.CaptureFixture[str]) -> None:
        found = next(found for found in state.clusters() if found.name == rays.first.name)
        worker = next(process for process in found.living if process.role == "worker")
        os.kill(worker.pid, signal.SIGKILL)
        deadline = time.monotonic() + WAIT
        while worker.alive and time.monotonic() < deadline:
            time.sleep(0.02)  # it is not waited for by anybody who could say
        assert status_main(json=True) == 1
        problems = [each["problem"] for each in json.loads(capsys.readouterr().out)["clusters"]]
        assert "1 of its 2 nodes here have exited" in problems

    def test_stop_ends_all_and_nothing_else(
        self, rays: Rays, own_world: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        everything = processes.family([pid for pids in leaders().values() for pid in pids])
        bystander = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
        try:
            assert stop_main(json=False) == 0
            assert (
                f"Ray's logs are kept in {own_world}/ray" in (said := capsys.readouterr().out)
                and rays.first.name in said
            )
            assert processes.living(everything) == {} and bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()
        assert state.clusters() == ()
        assert not (own_world / "ray" / "ray_current_cluster").exists()
        assert stop_main(json=False) == 0
        assert "nothing to stop" in capsys.readouterr().err
        with pytest.raises(UnreachableError, match="no cluster started by devkit"):
            status_main(json=False)
        with pytest.raises(UnreachableError):
            resolve(rays.first.gcs_address)


def of_this_world(folder: Path) -> list[str]:
    """Processes that a command started here, by what they have inherited."""
    psutil = processes.load_psutil()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("DEVKIT_HOME", "").startswith(str(folder)):
                found.append(" ".join(process.cmdline()))
    return found


@pytest.mark.parametrize("keep", [True, False])
def test_the_logs_are_kept_for_who_asks(keep: bool, own_world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = own_world / "ray-dk000000"
    own.mkdir()
    (own / "log").write_text("words")
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True) as process:
        begun = state.Started("head", process.pid, processes.started(process.pid) or "", "")
        here = processes.machine()
        state.save(
            state.ClusterState(
                "x",
                "127.0.0.1:1",
                "",
                "distributed",
                "token",
                (begun,),
                1.0,
                f"{own}/r",
                own_folder=str(own),
                machine=here,
            )
        )
        assert stop_main("x", json=False, keep_logs=keep) == 0
    assert own.exists() is keep
    assert (f"Ray's logs are kept in {own}/r" in capsys.readouterr().out) is keep
    shutil.rmtree(own, ignore_errors=True)


@pytest.mark.ray
class TestStartsThatFail:
    """Whatever goes wrong, nothing stays behind."""

    @pytest.fixture(autouse=True)
    def disabled(self, own_world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")

    def test_ray_refuses(self) -> None:
        said: list[str] = []
        with pytest.raises(DevkitError, match=r"`ray start` failed: .*--nonsense") as caught:
            cluster.start(ClusterOptions(port=0, dashboard_port=0, ray_arguments=("--nonsense",)), said.append)
        assert "ray-start-0.log" in caught.value.hint
        assert said[-1] == "stopping what was started" and state.clusters() == ()

    def test_the_deadline(self) -> None:
        pids: list[dict[int, str]] = []

        def note(line: str) -> None:
            if line == "stopping what was started":
                pids.append(processes.family([pid for found in leaders().values() for pid in found]))

        with pytest.raises(DeadlineError, match=r"not up after 0\.5 s; missing: an answer") as caught:
            cluster.start(ClusterOptions(port=0, dashboard_port=0, timeout=0.5), note)
        assert caught.value.exit_code == 4 and "--timeout" in caught.value.hint
        assert pids and processes.living(pids[0]) == {} and state.clusters() == ()

    def test_a_raylet_that_dies_is_told_at_once_with_its_last_words(self, own_world: Path) -> None:
        """`ray start` waits for it for half a minute, or as long as the machine is slow."""

        def kill() -> None:
            while not done.is_set():
                for raylet in (each for each in rays_below(own_world) if each.name() == "raylet"):
                    log = next(own_world.glob("ray/session_2*/logs/raylet.err"), None)
                    if log is not None and raylet.status() != "zombie" and len(raylet.cmdline()) > 1:
                        time.sleep(0.5)  # until it has its handler of signals
                        raylet.send_signal(signal.SIGABRT)
                        return
                time.sleep(0.05)

        done = threading.Event()
        killer = threading.Thread(target=kill)
        killer.start()
        began = time.monotonic()
        try:
            with pytest.raises(DevkitError, match=r"raylet exited during startup: .*SIGABRT received") as caught:
                cluster.start(
                    ClusterOptions(port=0, dashboard_port=0, num_cpus=1, timeout=stretched(100)), lambda line: None
                )
        finally:
            done.set()
            killer.join(WAIT)
        assert time.monotonic() - began < 100
        [named] = [word for word in caught.value.hint.split() if word.endswith("raylet.err")]
        assert "SIGABRT" in Path(named).read_text()
        assert state.clusters() == () and not rays_below(own_world)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_an_interruption_at_the_first_moment(self, number: signal.Signals, own_world: Path) -> None:
        """Given a command that has just started `ray start`; when it is interrupted, nothing outlives it."""
        command = [sys.executable, "-m", "devkit", "debug-cluster", "--port", "0", "--dashboard-port", "0"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            while not children.read_text().strip():
                assert process.poll() is None
            process.send_signal(number)
            said = process.communicate(timeout=WAIT)[1]
        assert process.returncode == 130 and "error: interrupted" in said
        assert of_this_world(own_world) == []

    def test_no_head_to_join(self) -> None:
        with pytest.raises(UnreachableError, match="no Ray answers at"):
            cluster.start(ClusterOptions(join="127.0.0.1:1"), lambda line: None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"nodes": 0}, "--nodes is 0"),
        ({"nodes": 1_000_000}, "--nodes is 1000000: each takes 350 MB, but this machine has memory for "),
        ({"temp_dir": Path("/dev/full")}, "--temp-dir /dev/full cannot be written"),
        ({"timeout": 0.0}, "--timeout is 0"),
        ({"port": 70_000}, "--port is 70000"),
        ({"dashboard_port": -1}, "--dashboard-port is -1"),
        ({"node_ip": "127.0.0.1"}, "--node-ip is 127.0.0.1"),
        ({"join": "head"}, "'head' is not an address"),
        ({"join": "head:1", "port": 6379}, "--port is an option of the head"),
        ({"join": "head:1", "dashboard_port": 1}, "--dashboard-port is an option of the head"),
        ({"auth": "none"}, "--auth is 'none'"),
        ({"ray_arguments": ("--port=1",)}, "--port is not for `ray start` here"),
        ({"ray_arguments": ("--block",)}, "--block is not for `ray start` here"),
    ],
)
def test_wrong_options(options: Mapping[str, Any], problem: str, own_world: Path) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        cluster.start(ClusterOptions(**options), lambda line: None)
    assert caught.value.hint and state.clusters() == ()


class TestEnvironment:
    def test_leftovers_go_and_are_named(self) -> None:
        kept, removed = ray_start.environment(
            ClusterOptions(ray_arguments=("--ray-debugger-external",)),
            "token",
            {**LEFTOVERS, "RAY_ADDRESS": "h:1", "PATH": "p"},
            {},
        )
        assert removed == ("RAY_DEBUG=0", "RAY_DEBUG_POST_MORTEM=0", "PYTHONBREAKPOINT=0", "--ray-debugger-external")
        assert (kept["RAY_DEBUG"], kept["RAY_DEBUG_POST_MORTEM"]) == ("1", "1")
        assert kept["PATH"] == f"{Path(sys.executable).parent}:p"  # a job's python is that of its nodes
        assert "RAY_ADDRESS" not in kept and "PYTHONBREAKPOINT" not in kept

    @pytest.mark.parametrize(("legacy", "value"), [(False, "1"), (True, "legacy")])
    def test_what_is_right_already_is_no_leftover(self, legacy: bool, value: str) -> None:
        given = {"RAY_DEBUG": value, "RAY_DEBUG_POST_MORTEM": "1"}
        kept, removed = ray_start.environment(ClusterOptions(legacy=legacy), "token", given, {})
        assert removed == () and kept["RAY_DEBUG"] == value

    def test_post_mortem_is_the_newer_debuggers_unless_the_user_says_so(self) -> None:
        assert "RAY_DEBUG_POST_MORTEM" not in ray_start.environment(ClusterOptions(legacy=True), "token", {}, {})[0]

    def test_a_cluster_without_tokens_gets_none(self) -> None:
        given = {"RAY_AUTH_TOKEN": "secret", "RAY_AUTH_MODE": "token"}
        kept, _ = ray_start.environment(ClusterOptions(), "disabled", given, {})
        assert "RAY_AUTH_TOKEN" not in kept and kept["RAY_AUTH_MODE"] == "disabled"

    def test_what_is_put_into_the_workers_comes_first(self) -> None:
        extra = {"PYTHONPATH": "/ours", "DEVKIT_X": "1"}
        kept, _ = ray_start.environment(ClusterOptions(), "token", {"PYTHONPATH": "/theirs"}, extra)
        assert kept["PYTHONPATH"] == f"/ours{os.pathsep}/theirs" and kept["DEVKIT_X"] == "1"


class TestPlan:
    @pytest.fixture(autouse=True)
    def no_other_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "gcs_addresses", lambda: frozenset())
        monkeypatch.setattr(ray_start, "is_free", lambda host, port: True)

    def test_one_node_is_as_ray_would_do_it(self) -> None:
        plan = ray_start.plan(ClusterOptions(), {})
        (head,) = plan.commands
        assert (plan.port, plan.dashboard_port, plan.notes) == (6379, 8265, ())
        assert "--head" in head and "--block" in head
        assert not any("worker-port" in word or "object-store" in word or "external" in word for word in head)

    def test_nodes_of_one_machine_share_it(self) -> None:
        plan = ray_start.plan(ClusterOptions(nodes=2, port=7000), {"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
        assert [environment["CUDA_VISIBLE_DEVICES"] for environment in plan.environments] == ["4,6", "5,7"]
        for command in plan.commands:
            assert "--min-worker-port=0" in command and "--dashboard-agent-listen-port=0" in command
        assert "--head" not in plan.commands[1] and "127.0.0.1:7000" in plan.commands[1]
        sizes = [word for command in plan.commands for word in command if word.startswith("--object-store-memory=")]
        assert len(set(sizes)) == 1 and len(sizes) == 2

    @pytest.mark.parametrize(
        ("asked", "folders"),
        [
            (ClusterOptions(nodes=3), [[], ["/r/ray/node-1"], ["/r/ray/node-2"]]),
            (ClusterOptions(nodes=2, temp_dir=Path("/t")), [["/t"], ["/t/node-1"]]),
            (ClusterOptions(nodes=1, join="127.0.0.1:1"), [["/r/ray/node-*-0"]]),  # the head's neighbour
            (ClusterOptions(nodes=1, join="192.0.2.7:1"), [[]]),  # alone on its machine
            (ClusterOptions(nodes=2, join="192.0.2.7:1"), [[], ["/r/ray/node-*-1"]]),
            (ClusterOptions(nodes=1, join="127.0.0.1:1", temp_dir=Path("/t")), [["/t"]]),
        ],
    )
    def test_nodes_of_one_machine_have_folders_of_their_own(
        self, asked: ClusterOptions, folders: list[list[str]]
    ) -> None:
        commands = ray_start.plan(asked, {"RAY_TMPDIR": "/r"}).commands
        found = [[word.partition("=")[2] for word in each if word.startswith("--temp-dir=")] for each in commands]
        assert [len(each) for each in found] == [len(each) for each in folders]
        pairs = zip(chain(*found), chain(*folders), strict=True)
        assert all(fnmatch(one, pattern) for one, pattern in pairs), found

    def test_fewer_devices_than_nodes_go_to_the_first(self) -> None:
        plan = ray_start.plan(ClusterOptions(nodes=2, port=7000), {"CUDA_VISIBLE_DEVICES": "3"})
        assert [environment["CUDA_VISIBLE_DEVICES"] for environment in plan.environments] == ["3", ""]

    def test_more_devices_than_there_are_cannot_be_given(self) -> None:
        with pytest.raises(UsageError, match="1 are visible here"):
            ray_start.plan(ClusterOptions(nodes=2, port=7000, num_gpus=1), {"CUDA_VISIBLE_DEVICES": "3"})

    def test_the_older_debugger_listens_for_other_machines(self) -> None:
        commands = ray_start.plan(ClusterOptions(nodes=2, legacy=True), {}).commands
        assert [command.count("--ray-debugger-external") for command in commands] == [1, 1]
        asked = ClusterOptions(ray_arguments=("--ray-debugger-external", "--resources={}"))
        (command,) = ray_start.plan(asked, {}).commands
        assert "--ray-debugger-external" not in command and "--resources={}" in command

    def test_a_taken_default_port_is_replaced_and_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_start, "is_free", lambda host, port: port not in (6379, 10001))
        plan = ray_start.plan(ClusterOptions(), {})
        assert plan.port not in (0, 6379) and plan.dashboard_port == 8265
        assert plan.notes == (f"port 6379 is in use: --port is {plan.port}",)
        assert any(word.startswith("--ray-client-server-port=") for word in plan.commands[0])

    def test_joining_starts_no_head(self) -> None:
        plan = ray_start.plan(ClusterOptions(join="head:6379", nodes=2), {})
        assert len(plan.commands) == 2 and not any("--head" in command for command in plan.commands)
        assert all("head:6379" in command for command in plan.commands)
