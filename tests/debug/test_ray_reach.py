"""Every verb from a machine that reaches nothing but the dashboard; and the stacks of ranks that can't answer."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests import documents
from tests.debug.conftest import DEADLINE, PROGRAMS, Cluster, Job, eventually, mark

pytestmark = pytest.mark.ray

PROGRAM = PROGRAMS / "reach_ranks.py"
Document = dict[str, Any]


def sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE)


class Forwarder:
    """The only way out of the laptop: a port on the link's other end that leads to the dashboard."""

    def __init__(self, host: str, target: tuple[str, int]) -> None:
        self._target = target
        self._server = socket.create_server((host, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as dashboard:
            back = threading.Thread(target=self._copy, args=(dashboard, client), daemon=True)
            back.start()
            self._copy(client, dashboard)
            back.join()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@dataclass(frozen=True)
class Laptop:
    """Another machine: a network namespace with one link, an own home, and the token."""

    namespace: str
    url: str
    environ: dict[str, str]

    def run(self, *command: str, said: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", self.namespace, *command],
            env={**self.environ, **environ},
            input=said,
            stdin=subprocess.DEVNULL if said is None else None,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    def devkit(self, *arguments: str, said: str | None = None, check: int = 0) -> str:
        done = self.run(sys.executable, "-m", "devkit", *arguments, "--address", self.url, said=said)
        assert done.returncode == check, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        document = json.loads(self.devkit(*arguments, "--json"))
        documents.check_output(arguments, document)
        return document


@pytest.fixture(scope="module")
def laptop(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    name = f"dk{secrets.token_hex(3)}"
    number = int.from_bytes(secrets.token_bytes(1), "big")
    here, there, nobody = (f"10.213.{number}.{host}" for host in (1, 2, 3))
    with ExitStack() as stack:
        try:
            sh("ip", "netns", "add", name)
            stack.callback(sh, "ip", "netns", "del", name)
            sh("ip", "link", "add", name, "type", "veth", "peer", "name", "laptop", "netns", name)
            sh("ip", "address", "add", f"{here}/24", "dev", name)
            sh("ip", "link", "set", name, "up")
            for words in (
                ("address", "add", f"{there}/24", "dev", "laptop"),
                ("link", "set", "laptop", "up"),
                ("link", "set", "lo", "up"),
                ("route", "add", "default", "via", nobody),  # a firewall that says nothing: packets get lost
            ):
                sh("ip", "-n", name, *words)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        place = urlsplit(cluster.dashboard_url)
        forwarder = Forwarder(here, (str(place.hostname), int(place.port or 0)))
        stack.callback(forwarder.close)
        home = str(tmp_path_factory.mktemp("laptop"))
        environ = {**cluster.environ, "DEVKIT_HOME": home, "HOME": home, "RAY_TMPDIR": home}
        yield Laptop(name, f"http://{here}:{forwarder.port}", environ)


@dataclass(frozen=True)
class Ranks:
    """The job that all look at."""

    cluster: Cluster
    job: Job

    def stops(self) -> list[Document]:
        stops: list[Document] = self.cluster.ps(self.job.id)["stops"]
        return stops


@pytest.fixture(scope="module")
def ranks(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    end = tmp_path_factory.mktemp("ranks") / "end"
    job = Job(cluster, "--", sys.executable, str(PROGRAM), str(end))
    try:
        job.joined()

        def all_there() -> bool:
            workers = cluster.json("ps")["workers"]
            roles = [(worker["role"], worker["rank"]) for worker in workers if worker["job_id"] == job.id]
            return {("Rank", 0), ("Rank", 1), ("Rank", 2), ("Silent", None)} <= set(roles)

        eventually(all_there, "ranks of their own")
        yield Ranks(cluster, job)
        end.touch()
        assert job.end() == 0 and "ended 4" in job.out, job.out
    finally:
        job.kill()


def test_the_laptop_reaches_nothing_but_the_dashboard(laptop: Laptop, ranks: Ranks) -> None:
    place = json.loads(ranks.cluster.find_log("devkit/hub.json").read_text())
    host, port = ranks.cluster.gcs_address.rsplit(":", 1)
    for each in ((place["host"], place["port"]), (host, int(port))):
        tried = laptop.run(
            sys.executable, "-c", f"import socket; socket.create_connection({each!r}, timeout=1)", PYTHONPATH=""
        )
        assert tried.returncode == 1 and ("timed out" in tried.stderr or "unreachable" in tried.stderr), tried.stderr


def test_every_verb_works_from_there(laptop: Laptop, ranks: Ranks) -> None:
    job = ranks.job.id
    point = laptop.json("break", f"{PROGRAM}:{mark(PROGRAM.name, 'step')} @Rank[0,2]", "--job", job)["breakpoints"][0]
    eventually(lambda: len(ranks.stops()) == 2, "two stops")
    seen = [stop for stop in laptop.json("ps")["stops"] if stop["job_id"] == job]
    by_rank = {stop["rank"]: stop["id"] for stop in seen}
    assert set(by_rank) == {0, 2}

    answer = laptop.json("eval", "self.rank * 10", "--target", ",".join(by_rank.values()))
    assert {one["rank"]: one["value"] for one in answer["results"]} == {0: "0", 2: "20"}

    laptop.devkit("break", "--clear", point["id"])
    told = laptop.devkit("attach", by_rank[2], said="p self.rank + 40\nw\nc\n")
    assert "42" in told and "reach_ranks.py" in told
    eventually(lambda: [stop["rank"] for stop in ranks.stops()] == [0], "rank 2 going on")

    assert laptop.json("continue", by_rank[0])["continued"] == [by_rank[0]]
    eventually(lambda: not ranks.stops(), "rank 0 going on")

    [crash] = [crash for crash in laptop.json("crashes")["crashes"] if crash["job_id"] == job]
    document = laptop.json("crashes", "show", crash["id"])
    assert document["frames"][0]["locals"]["total"] == 3 and document["line"] == mark(PROGRAM.name, "fail")

    stacks = laptop.json("stacks", "--job", job)
    assert {one["rank"] for one in stacks["ranks"] if one["role"] == "Rank"} == {0, 1, 2}


@pytest.mark.parametrize(
    ("verb", "token"),
    [(("ps",), ""), (("stacks",), ""), (("eval", "1"), "ab" * 32), (("crashes",), "ab" * 32), (("attach",), "ab" * 32)],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "wrong" if each else "none",
)
def test_without_the_token_no_verb_works(laptop: Laptop, ranks: Ranks, verb: tuple[str, ...], token: str) -> None:
    done = laptop.run(
        sys.executable, "-m", "devkit", *verb, "--address", laptop.url, RAY_AUTH_TOKEN=token, RAY_AUTH_MODE="token"
    )
    assert done.returncode == 3, done.stdout + done.stderr
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and "token" in error and hint.startswith("hint: ") and not done.stdout


def lines_of(document: Document, role: str) -> dict[int | None, set[int]]:
    """Where the threads of each rank are in the program."""
    return {
        one["rank"]: {
            frame["line"] for thread in one["threads"] for frame in thread["frames"] if frame["file"] == str(PROGRAM)
        }
        for one in document["ranks"]
        if one["role"] == role
    }


def test_the_odd_rank_is_named_and_the_silent_one_is_shown(ranks: Ranks) -> None:
    document = ranks.cluster.json("stacks", "--job", ranks.job.id)
    where = lines_of(document, "Rank")
    assert mark(PROGRAM.name, "late") in where[2] and mark(PROGRAM.name, "on_time") in where[0]
    assert document["odd"] == [2], document["groups"]
    # It holds Python's lock, so its agent can't answer: py-spy saw it, from a neighbour.
    assert mark(PROGRAM.name, "hold") in lines_of(document, "Silent")[None], document["ranks"]
    page = ranks.cluster.devkit("stacks", "--job", ranks.job.id)
    assert page.splitlines()[-1].startswith("differs from the rest: ") and "rank 2" in page.splitlines()[-1], page


def test_native_frames_on_demand(ranks: Ranks) -> None:
    document = ranks.cluster.json("stacks", "--job", ranks.job.id, "--native")
    functions = {
        frame["function"] for one in document["ranks"] for thread in one["threads"] for frame in thread["frames"]
    }
    assert any("core_worker" in name or "RunTaskExecutionLoop" in name or "usleep" in name for name in functions)
    assert mark(PROGRAM.name, "hold") in lines_of(document, "Silent")[None]
