"""Every port and socket of a cluster with a stopped worker: each has an owner, and ours say nothing to strangers."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.debug.conftest import Cluster, Job, short_folder, start
from tests.debug.test_ray_extension import Extension
from tests.security.probes import PROBES, said_to
from tests.security.users import MALLORY, needs_users

PROGRAM = "reach_secrets.py"
HUB, DOOR = "the hub", "a stopped worker's debug port"
OURS = (HUB, DOOR)
# What listens in the processes of a Ray, by a part of their command line; how many ports each may have at most.
RAYS = {
    "gcs_server": ("Ray's GCS, and its metrics", 2),
    "ray.util.client.server": ("Ray's client server", 2),
    "dashboard/dashboard.py": ("Ray's dashboard, and its metrics", 2),
    "multiprocessing.forkserver": ("a module of Ray's dashboard", 1),
    "ray.dashboard": ("a module of Ray's dashboard", 1),
    "raylet/raylet": ("Ray's raylet with its object manager, and metrics", 4),
    "ray::DashboardAgent": ("Ray's agent of a node: gRPC, HTTP, metrics", 4),
    "ray::RuntimeEnvAgent": ("Ray's agent for environments", 1),
    "monitor.py": ("Ray's autoscaler: its metrics", 1),
    "ray::": ("a Ray worker: gRPC", 1),
    # Before they give themselves their names.
    "dashboard/agent.py": ("Ray's agent of a node: gRPC, HTTP, metrics", 4),
    "runtime_env/agent/main.py": ("Ray's agent for environments", 1),
    "workers/default_worker.py": ("a Ray worker: gRPC", 1),
    PROGRAM: ("the driver: gRPC", 1),
}
RAYS_SOCKETS = (
    *("*/session_*/sockets/raylet", "*/session_*/sockets/plasma_store", "*/session_*/sockets/dash_*"),
    "/tmp/pymp-*/listener-*",  # multiprocessing's, between the modules of the dashboard; in a folder 0700
)

Place = tuple[str, int]
pytestmark = [pytest.mark.ray, needs_users]


@dataclass(frozen=True)
class Scene:
    cluster: Cluster
    job: Job
    stop: dict[str, Any]
    hub: Place
    door: Place

    def processes(self) -> list[psutil.Process]:
        """Everything that was started in this cluster's environment, and its children: some write over theirs."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("RAY_TMPDIR") == self.cluster.environ["RAY_TMPDIR"]:
                    found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        return list(found.values())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Of its own: programs of other tests have ports, too."""
    with short_folder() as folder:
        made = start(folder)
        try:
            yield made
        finally:
            made.devkit("debug-cluster", "stop")


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    job = Job(cluster, "--", sys.executable, str(Path(__file__).parents[1] / "debug" / "programs" / PROGRAM))
    try:
        [stop] = job.stops()
        place = json.loads(cluster.find_log("devkit/hub.json").read_text())
        rows = Extension(cluster).get("/api/v0/workers?detail=1&limit=10000")["data"]["result"]["result"]
        [row] = [row for row in rows if row["worker_id"] == stop["worker_id"]]
        yield Scene(cluster, job, stop, (place["host"], place["port"]), (row["ip"], row["debugger_port"]))
    finally:
        job.kill()


def owner(scene: Scene, command: str, place: Place) -> str:
    if place in (scene.hub, scene.door):
        return HUB if place == scene.hub else DOOR
    return next((name for part, (name, _) in RAYS.items() if part in command), f"nobody: {command[:200]}")


def test_every_port_has_an_owner(scene: Scene) -> None:
    """An unknown one is a port that nobody has thought of: put it into the table, and into docs/security.md."""
    known: dict[str, list[tuple[int, Place]]] = {}
    moments = set()  # ports of datagrams: who asks for an address has one for as long
    for process in scene.processes():
        try:
            command, connections = " ".join(process.cmdline()), process.net_connections("inet")
        except psutil.NoSuchProcess:  # Ray ends idle workers when it likes
            continue
        for each in connections:
            if each.status == psutil.CONN_LISTEN or each.type.name == "SOCK_DGRAM":
                place = (str(each.laddr.ip), int(each.laddr.port))
                if each.type.name == "SOCK_DGRAM":
                    moments.add(place[1])
                known.setdefault(owner(scene, command, place), []).append((process.pid, place))
    for name, places in sorted(known.items()):
        print(f"{name}: {places}")
    assert [name for name in known if name.startswith("nobody")] == []
    assert len(known[HUB]) == len(known[DOOR]) == 1
    most = dict(RAYS.values())
    for name, places in known.items():
        counts = [len({port for pid, (_, port) in places if pid == each} - moments) for each, _ in places]
        assert name in OURS or max(counts) <= most[name], (name, places)


def test_every_unix_socket_has_an_owner(scene: Scene) -> None:
    found = set()
    for process in scene.processes():
        with suppress(psutil.NoSuchProcess):
            found |= {str(each.laddr) for each in process.net_connections("unix") if each.laddr}
    strange = [path for path in found if not any(fnmatch(path, pattern) for pattern in RAYS_SOCKETS)]
    assert strange == [] and found


@pytest.mark.parametrize("what", PROBES)
def test_strangers_get_no_word_beyond_the_greeting(scene: Scene, what: str) -> None:
    hub, door = said_to([("tcp", *scene.hub), ("tcp", *scene.door)], PROBES[what], MALLORY)
    assert not hub or set(json.loads(hub)) == {"devkit", "nonce"}  # a reset may overtake it
    assert door == b""


@pytest.mark.parametrize("what", [what for what in PROBES if what != "a debugger"])
def test_nor_does_the_same_user_who_says_something_else(scene: Scene, what: str) -> None:
    [door] = said_to([("tcp", *scene.door)], PROBES[what], os.getuid())
    assert door == b""


def test_nobody_was_stopped_or_crashed_and_the_worker_goes_on(scene: Scene) -> None:
    [stop] = scene.cluster.ps(scene.job.id)["stops"]
    assert (stop["id"], stop["attached"]) == (scene.stop["id"], 0)
    [result] = scene.cluster.json("eval", "self.rank + 1", "--target", stop["id"])["results"]
    assert result["value"] == "2"
    crashes = [each for each in scene.cluster.json("crashes")["crashes"] if each["job_id"] == scene.job.id]
    assert crashes == []
    scene.cluster.devkit("continue", stop["id"])
    assert scene.job.end() == 0 and "ended" in scene.job.out


OPEN_FILES = {
    "ray-start-*.log": "what `ray start` says; its folder is closed",
    "__pycache__": "Python's own, which follows the umask; its folder is closed",
    "__pycache__/*": "as above",
}


def test_no_file_of_ours_is_open_to_others(scene: Scene) -> None:
    home = Path(scene.cluster.environ["DEVKIT_HOME"])
    tops = [home, *(logs / "devkit" for logs in scene.cluster.logs if (logs / "devkit").exists())]
    paths = [path for top in tops for path in (top, *top.rglob("*"))]
    names = {path.relative_to(home).parts[0] for path in paths if path.is_relative_to(home) and path != home}
    assert names >= {"bundles", "clusters", "logs", "runs"}
    assert any(path.parent.name == "crashes" for path in paths)
    for path in paths:
        info = path.lstat()
        is_open = info.st_mode & 0o077 and not any(path.match(pattern) for pattern in OPEN_FILES)
        assert info.st_uid == os.getuid() and not is_open and not stat.S_ISLNK(info.st_mode), path
