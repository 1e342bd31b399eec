"""Real ranks that wait for a real rank: the class of the hang, the rank and the line, in the order of the faults.

All use one job: a wait is ended by a signal, and the group goes on.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.debug.conftest import Cluster, eventually, mark, staged
from tests.debug.stages import Stage

PROGRAM = "hang_ranks.py"
Document = dict[str, Any]
pytestmark = pytest.mark.xdist_group("hang")


@dataclass(frozen=True)
class Ranks:
    stage: Stage
    folder: Path
    pids: list[int]

    @property
    def cluster(self) -> Cluster:
        found: Cluster = self.stage.job.cluster
        return found

    def begin(self, how: str) -> None:
        """One step, in which rank 1 does this; once it does."""
        odd = self.folder / "odd"
        odd.unlink(missing_ok=True)
        self.stage.do(f"work = step({how!r})")
        eventually(lambda: odd.exists() and odd.read_text(), f"rank 1 {how}")

    def hang(self, code: int = 1, after: str = "3") -> Document:
        found: Document = self.cluster.json("hang", "--job", self.stage.job.id, "--after", after, check=code)
        return found

    def release(self, number: int = signal.SIGUSR1) -> None:
        os.kill(self.pids[1], number)
        self.stage.do("ray.get(work)")

    def is_at(self, found: Document, name: str, rank: int = 1) -> bool:
        who = found["culprit"]
        assert (who["role"], who["rank"], who["pid"]) == ("Rank", rank, self.pids[rank]), found
        assert (Path(who["file"]).name, who["line"]) == (PROGRAM, mark(PROGRAM, name)), found
        return True


@pytest.fixture(scope="module")
def ranks(cluster: Cluster) -> Iterator[Ranks]:
    folder = Path(tempfile.mkdtemp(prefix="dk-hang-"))
    with staged(cluster, PROGRAM, arguments=[str(folder)]) as stage:
        yield Ranks(stage, folder, stage.do("pids"))
        os.kill(stage.do("pids")[1], signal.SIGCONT)
    shutil.rmtree(folder)


def test_a_healthy_run_is_no_hang(ranks: Ranks) -> None:
    end = ranks.folder / secrets.token_hex(4)
    ranks.stage.do(f"work = [each.healthy.remote({str(end)!r}) for each in ranks]")
    eventually(lambda: any(each["doing"] == "collective" for each in ranks.hang(code=0)["ranks"]))
    found = ranks.hang(code=0)
    assert (found["hang"], found["kind"]) == (False, "moves"), found
    assert any(each["step"] and each["moved"] for each in found["ranks"] if each["role"] == "Rank")
    end.touch()
    ranks.stage.do("ray.get(work)")


def test_a_rank_that_sleeps_is_missing(ranks: Ranks) -> None:
    ranks.begin("sleeps")
    found = ranks.hang()
    assert found["kind"] == "missing" and ranks.is_at(found, "sleeps")
    assert "ranks 0,2 wait for it in all_reduce #" in found["sentence"]
    assert found["waited"] >= 3
    assert {each["rank"]: each["doing"] for each in found["ranks"] if each["role"] == "Rank"} == {
        0: "collective",
        1: "sleep",
        2: "collective",
    }
    assert found["stacks"]["odd"] == [1]
    page = ranks.cluster.devkit("hang", "--job", ranks.stage.job.id, "--after", "3", check=1)
    assert page.splitlines()[0].startswith("rank 1 has not reached all_reduce #")
    ranks.release()


def test_a_read_that_never_ends(ranks: Ranks) -> None:
    ranks.begin("reads")
    found = ranks.hang()
    assert found["kind"] == "io" and ranks.is_at(found, "reads")
    assert "waits for data from a pipe" in found["sentence"]
    ranks.release()


def test_two_threads_and_two_locks(ranks: Ranks) -> None:
    ranks.begin("locks")
    found = ranks.hang()
    assert found["kind"] == "deadlock"
    lines = {f"{PROGRAM}:{mark(PROGRAM, name)}" for name in ("load_holds", "load_waits", "main_holds", "main_waits")}
    assert all(line in found["sentence"] for line in lines), found["sentence"]
    assert found["culprit"]["rank"] == 1
    ranks.release()


def test_a_frozen_process(ranks: Ranks) -> None:
    ranks.begin("freezes")
    found = ranks.hang()
    assert found["kind"] == "frozen" and found["culprit"]["pid"] == ranks.pids[1]
    assert "rank 1 is frozen" in found["sentence"] and f"kill -CONT {ranks.pids[1]}" in found["sentence"]
    ranks.release(signal.SIGCONT)


def test_a_rank_at_work_is_no_hang(ranks: Ranks) -> None:
    ranks.begin("computes")
    found = ranks.hang(code=0)
    assert (found["hang"], found["kind"]) == (False, "moves"), found
    assert "rank 1 is working" in found["sentence"]
    ranks.release()


def test_a_rank_that_raised(ranks: Ranks) -> None:
    ranks.begin("raises")
    found = ranks.hang()
    assert found["kind"] == "raised" and ranks.is_at(found, "raises")
    assert "rank 1 raised ValueError: bad batch" in found["sentence"]
    ranks.stage.do("ray.get(ranks[1].reduce.remote()); ray.wait(work, num_returns=3)[1] == []")


def test_a_placement_group_that_never_comes(ranks: Ranks) -> None:
    ranks.stage.do("group = ray.util.placement_group([{'CPU': 1}, {'GPU': 2}])")
    found = ranks.hang()
    assert found["kind"] == "resource", found
    assert "it requests (1 CPU) and (2 GPU), and no node has any GPU" in found["sentence"]
    ranks.stage.do("ray.util.remove_placement_group(group)")


def test_groups_in_different_orders(ranks: Ranks) -> None:
    """The last test of this job: the others come to the second group when the first is through, which it never is."""
    ranks.begin("crosses")
    found = ranks.hang()
    assert found["kind"] == "mismatch" and ranks.is_at(found, "crosses")
    assert "of group pairs" in found["sentence"] and "different orders" in found["sentence"]


@pytest.fixture
def fresh(cluster: Cluster) -> Iterator[Ranks]:
    """Ranks that no other test has to use after this one."""
    folder = Path(tempfile.mkdtemp(prefix="dk-hang-"))
    with staged(cluster, PROGRAM, "--hang-timeout", "4", arguments=[str(folder)]) as stage:
        yield Ranks(stage, folder, stage.do("pids"))
    shutil.rmtree(folder)


def test_different_collectives_and_the_watchdog_tells_once(fresh: Ranks) -> None:
    # given a run that was healthy for longer than its time-out
    end = fresh.folder / "end"
    fresh.stage.do(f"work = [each.healthy.remote({str(end)!r}) for each in ranks]")
    assert fresh.hang(code=0, after="10")["kind"] == "moves"
    assert fresh.hang(code=0, after="10")["kind"] == "moves"
    assert "no progress" not in fresh.stage.job.out
    end.touch()
    fresh.stage.do("ray.get(work)")
    # when one rank is in a different collective
    fresh.begin("differs")
    found = fresh.hang()
    assert found["kind"] == "mismatch" and fresh.is_at(found, "differs")
    assert "rank 1 is in broadcast [8, 4]" in found["sentence"] and "in all_reduce [8, 4]" in found["sentence"]
    # then the watchdog says the same, and says it once
    eventually(lambda: "evidence: " in fresh.stage.job.out, "the alarm")
    said = fresh.stage.job.out
    assert "devkit: no progress for 4 s: mismatched collectives: " in said
    path = Path(said.split("evidence: ")[1].split(";")[0])
    assert path.read_text().startswith("mismatched collectives: ")
    fresh.hang()
    fresh.hang()
    assert fresh.stage.job.out.count("no progress for") == 1
