"""A debug cluster of two simulated nodes with a token, shared by all xdist workers, and programs that run on it."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from devkit.debug import ps
from devkit.debug.client import HubClient, connect
from devkit.debug.inworker import finding
from devkit.errors import NoJobError
from tests import documents
from tests.debug.stages import Stage
from tests.pace import stretched

collect_ignore_glob = ["programs/*"]  # what is debugged: importing it would start it

PROGRAMS = Path(__file__).with_name("programs")
DEADLINE = stretched(60.0)  # seconds for anything that a test waits for
# A node of Ray ends if its agent, a Python program, has not come up in a time that nothing changes: a busy machine's.
RAYS_OWN_LIMIT = "Timed out waiting for file"


def mark(program: str, name: str) -> int:
    """The line of a program that wears the mark `# @name`."""
    lines = (PROGRAMS / program).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if f"# @{name}" in line)


def eventually(look: Callable[[], Any], what: str | Callable[[], str] = "it", seconds: float = DEADLINE) -> Any:
    """What `look` gives, once it is true. `what` may be asked for at the end: what was there instead."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"{what() if callable(what) else what} did not happen"
        time.sleep(0.05)  # on two cores, whoever looks more often keeps what it waits for from its work
    return found


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Ray's sockets live far below it, and their paths must be short."""
    folder = Path("/tmp") / f"dk{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Cluster:
    """A cluster that `devkit debug-cluster` started, and the environment in which devkit finds it."""

    gcs_address: str
    dashboard_url: str
    environ: dict[str, str]

    def devkit(self, *arguments: str, timeout: float = DEADLINE, check: int | None = 0) -> str:
        """What a devkit command prints on stdout."""
        command = [sys.executable, "-m", "devkit", *arguments]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=timeout)
        assert check is None or done.returncode == check, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *arguments: str, check: int | None = 0) -> Any:
        document = json.loads(self.devkit(*arguments, "--json", check=check))
        documents.check_output(arguments, document)
        return document

    @property
    def logs(self) -> list[Path]:
        """The folders of the nodes' logs, the head's first."""
        top = Path(self.environ["RAY_TMPDIR"]) / "ray"
        return [(each / "session_latest" / "logs").resolve() for each in (top, *sorted(top.glob("node-*")))]

    def find_log(self, pattern: str) -> Path:
        """The one file that this names in the nodes' logs."""
        [found] = [file for folder in self.logs for file in folder.glob(pattern)]
        return found

    def ps(self, job: str | None = None) -> dict[str, Any]:
        """Only this job's stops: other tests use the same cluster."""
        found: dict[str, Any] = self.json("ps")
        stops = [stop for stop in found["stops"] if job in (None, stop["job_id"])]
        return {**found, "stops": stops}

    def connect(self) -> HubClient:
        """A client of the hub in this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("RAY_ADDRESS", raising=False)
            for name, value in self.environ.items():
                if name.startswith(("DEVKIT_", "RAY_")):
                    patch.setenv(name, value)
            return connect(self.dashboard_url)

    def connect_to_any(self) -> HubClient:
        """The same where no job may have run under devkit yet: the first one starts the hub."""
        try:
            return self.connect()
        except NoJobError:
            job = Job(self, "--", sys.executable, "-c", "import ray, signal; ray.init(); signal.pause()")

        def hub() -> HubClient | None:
            with contextlib.suppress(NoJobError):
                return self.connect()
            return None

        try:
            found: HubClient = eventually(hub, lambda: f"a hub of {job.out}")
            return found
        finally:
            job.kill()


class Job:
    """A program under `devkit run`, and what it said so far."""

    def __init__(self, cluster: Cluster, *arguments: str) -> None:
        self.cluster = cluster
        self.out = ""
        self.id = ""
        command = [sys.executable, "-m", "devkit", "run", *arguments]
        self.process = subprocess.Popen(
            command,
            env=cluster.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # what it leaves behind is known by it
        )
        self._known = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.out += line
            if "debugging job " in line:
                self.id = line.split("debugging job ")[1].split(";")[0].strip()
                self._known.set()
        self._known.set()

    def joined(self, seconds: float = DEADLINE) -> Job:
        """Once it has called `ray.init`."""
        assert self._known.wait(seconds) and self.id, self.out
        return self

    def stops(self, count: int = 1, seconds: float = DEADLINE) -> list[dict[str, Any]]:
        """Its stops, once there are so many."""
        self.joined(seconds)
        document: list[dict[str, Any]] = []
        with self.cluster.connect() as hub:

            def look() -> list[dict[str, Any]]:
                assert self.process.poll() is None, self.out
                document[:] = [ps.record(hub.call("ps"))]
                stops: list[dict[str, Any]] = [stop for stop in document[0]["stops"] if stop["job_id"] == self.id]
                return stops if len(stops) >= count else []

            found: list[dict[str, Any]] = eventually(look, f"{count} stops of {self.id}", seconds)
        documents.check_output(("ps",), document[0])
        return found

    def resume(self, check: int | None = 0) -> None:
        ids = [stop["id"] for stop in self.cluster.ps(self.id)["stops"]]
        if ids:
            self.cluster.devkit("continue", *ids, check=check)

    def end(self, seconds: float = DEADLINE) -> int:
        """Its exit code."""
        code = self.process.wait(seconds)
        self._reader.join(DEADLINE)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(stretched(20))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        left = [] if self._is_heard_out() else self._end_the_rest()
        assert self._is_heard_out(), f"{self.out}\nsomething holds its stdout, and would let close() wait for ever"
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert not left, "\n".join([self.out, "it left behind:", *left])

    def _is_heard_out(self) -> bool:
        self._reader.join(DEADLINE)
        return not self._reader.is_alive()

    def _end_the_rest(self) -> list[str]:
        """Ends what the program left in its session; their command lines, and where they stood."""
        left = [each for each in psutil.process_iter() if _session_of(each.pid) == self.process.pid]
        words = [f"{' '.join(each.cmdline())}\n{_stacks(each.pid)}" for each in left]
        for each in left:
            each.kill()
        return words


def _stacks(pid: int) -> str:
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--pid", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE).stdout


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def environment(folder: Path, auth: str = "token") -> dict[str, str]:
    """An environment in which nothing of this machine's other Rays is seen."""
    names = ("RAY_ADDRESS", "RAY_RUNTIME_ENV_HOOK", "PYTHONBREAKPOINT", "RAY_DEBUG", "CI", "PYTHONUNBUFFERED")
    before = {name: value for name, value in os.environ.items() if name not in names}
    return {
        **before,
        "DEVKIT_HOME": str(folder / "home"),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": auth,
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "COLUMNS": "120",
    }


def start(folder: Path, *options: str, auth: str = "token") -> Cluster:
    environ = environment(folder, auth)
    bare = Cluster("", "", environ)
    # Ports that nobody else gets: whoever finds Ray's usual ones free may come second.
    ports = ("--port", "0", "--dashboard-port", "0")
    words = ("debug-cluster", "--nodes", "2", "--num-cpus", "8", "--auth", auth, *ports, *options)
    try:
        record = bare.json(*words)
    except AssertionError as error:
        if RAYS_OWN_LIMIT not in str(error):
            raise
        record = bare.json(*words)
    return Cluster(record["gcs_address"], record["dashboard_url"], environ)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all xdist workers: the first to come starts it, the last to go stops it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    users, record = shared / "debug-cluster.users", shared / "debug-cluster.json"
    with locked(shared / "debug-cluster.lock"):
        if not record.exists():
            folder = Path("/tmp") / f"dk{secrets.token_hex(3)}"  # Ray's sockets need a short path
            folder.mkdir(mode=0o700)
            made = start(folder)
            record.write_text(json.dumps([made.gcs_address, made.dashboard_url, made.environ]))
        found = Cluster(*json.loads(record.read_text()))
        users.write_text(str(int(users.read_text()) + 1 if users.exists() else 1))
    yield found
    with locked(shared / "debug-cluster.lock"):
        left = int(users.read_text()) - 1
        users.write_text(str(left))
        if left == 0:
            found.devkit("debug-cluster", "stop")
            record.unlink()
            shutil.rmtree(found.environ["RAY_TMPDIR"], ignore_errors=True)


@pytest.fixture
def launch(cluster: Cluster) -> Iterator[Callable[..., Job]]:
    """Starts programs under `devkit run`; what still runs at the end of the test is ended."""
    jobs: list[Job] = []

    def begin(*arguments: str) -> Job:
        jobs.append(Job(cluster, *arguments))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


@pytest.fixture
def hub(cluster: Cluster) -> Iterator[HubClient]:
    with cluster.connect_to_any() as client:
        yield client


@contextlib.contextmanager
def staged(cluster: Cluster, program: str, *options: str, arguments: Sequence[str] = ()) -> Iterator[Stage]:
    """A program that does what the test tells it, under `devkit run`."""
    path = Path(cluster.environ["RAY_TMPDIR"]) / f"{secrets.token_hex(4)}.sock"
    job = Job(cluster, *options, "--", sys.executable, str(PROGRAMS / program), str(path), *arguments)
    try:
        yield Stage(job, path)
    finally:
        job.kill()


@pytest.fixture
def new_objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of the process only what the test itself makes is looked through, and collected, and not all that other tests
    have imported and left: millions of objects, at each breakpoint, and for each look at the optimizers.
    """
    with frozen(monkeypatch):
        monkeypatch.setattr(finding, "_OLD", lambda: None)  # the newest of what is taken to be older than the program
        yield


@contextlib.contextmanager
def frozen(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """What there is now the collector leaves alone, which is taken for what a program has that has frozen nothing."""
    gc.freeze()
    patch.setattr(finding, "sees_all", lambda: True)  # to count what is frozen takes as long as there is of it
    try:
        yield
    finally:
        gc.collect()  # of what came since alone: nothing of this test is there for the next one
        gc.unfreeze()
