"""A cluster of virtual hosts with the debugger in it, and jobs on it that go wrong when they are told."""

from __future__ import annotations

import secrets
import shutil
import site
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.hosts import hosts
from tests.hosts.hosts import Host, Lan
from tests.hosts.launching import PYTHON, UP_S, document, eventually, on_all
from tests.pace import stretched

PROGRAMS = Path(__file__).with_name("programs")
UP = (PYTHON, "-m", "devkit", "debug-cluster", "--from-env", "--num-cpus", "2", "--json", "--timeout", f"{UP_S:g}")
HEAD = "10.77.0.1:6379"
PACKAGES = next(path for path in map(Path, site.getsitepackages()) if (path / "ray").is_dir())


@dataclass(frozen=True)
class Cluster:
    """One Ray on all hosts of a lan; `environ` is what devkit needs there to find it."""

    lan: Lan
    environ: dict[str, str]
    share: Path  # a folder that all hosts have

    @property
    def head(self) -> Host:
        found: Host = self.lan[0]
        return found


@contextmanager
def up() -> Iterator[Cluster]:
    """`devkit debug-cluster --from-env` on three hosts."""
    share = Path(tempfile.mkdtemp(prefix="dk-faults-"))
    environ = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        with hosts.up(3, share=[share]) as lan:
            on_all(lan, UP, [{**environ, **world(rank, len(lan))} for rank in range(len(lan))])
            yield Cluster(lan, environ, share)
    finally:
        shutil.rmtree(share, ignore_errors=True)


def world(rank: int, size: int) -> dict[str, str]:
    """What tells the hosts apart."""
    return {"MASTER_ADDR": "10.77.0.1", "WORLD_SIZE": str(size), "RANK": str(rank)}


def line(program: str, mark: str) -> int:
    """The line of a program that wears the mark `# @mark`."""
    lines = (PROGRAMS / program).read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# @{mark}"))


class Job:
    """`programs/train.py` under `devkit run`, once it trains."""

    def __init__(self, cluster: Cluster, *options: str, wait: bool = True) -> None:
        self.cluster = cluster
        self.folder = Path(tempfile.mkdtemp(dir=cluster.share))
        self.log = (self.folder / "log").open("w")
        command = ("-m", "devkit", "run", *options, "--", PYTHON, str(PROGRAMS / "train.py"), str(self.folder))
        self.process = cluster.head.popen(PYTHON, *command, env=cluster.environ, stdout=self.log, stderr=self.log)
        if wait:
            eventually(self._trains, "training")
            eventually(self._ranks_are_known, "ranks")

    @property
    def out(self) -> str:
        return (self.folder / "log").read_text()

    def _trains(self) -> bool:
        assert self.process.poll() is None, self.out
        return (self.folder / "trains").exists()

    def _ranks_are_known(self) -> bool:
        workers = document(self.cluster.head, "ps", env=self.cluster.environ)["workers"]
        return {each["rank"] for each in workers if each["role"] == "Trainer" and each["connected"]} == {0, 1, 2}

    def count_in(self, place: str) -> int:
        """How many ranks have come there."""
        return len(list(self.folder.glob(f"{place}[0-9]")))

    def do(self, what: str, rank: int = 1) -> int:
        """Lets a rank do this; the pid of the rank, once it is about to."""
        (self.folder / "do.new").write_text(f"{rank} {what}")
        (self.folder / "do.new").rename(self.folder / "do")
        eventually((self.folder / "done").exists, what)
        return int(eventually((self.folder / "done").read_text, what).split()[1])

    def end(self) -> None:
        """Whatever state it is in. Ray ends the ranks when their driver has gone."""
        for pid, words in self.cluster.head.processes().items():
            if str(self.folder) in words:
                self.cluster.head.run("kill", "-KILL", str(pid), check=False)
        self.process.wait(stretched(30))
        self.log.close()
        eventually(lambda: not self._left(), "end of the job")

    def _left(self) -> list[str]:
        """Ranks that still run. A frozen one, or one in a call of C, does not hear that it shall end."""
        found = []
        alive = (host for host in self.cluster.lan if Path(f"/proc/{host.pid}").exists())
        for host in alive:
            for pid, words in host.processes().items():
                if words.startswith("ray::Trainer"):
                    host.run("kill", "-KILL", str(pid), check=False)
                    found.append(words)
        return found
