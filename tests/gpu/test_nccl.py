"""NCCL under devkit: the doctor's all-reduce, and ranks that wait for each other on the GPU and not in Python."""

from __future__ import annotations

import os
import secrets
import shutil
import site
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.debug.conftest import PROGRAMS, Cluster, Job, eventually, launch, mark, start

__all__ = ["launch"]  # a fixture of the debugger's tests
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices"),
    pytest.mark.timeout(300),
]

PROGRAM = PROGRAMS / "nccl_ranks.py"
Launch = Callable[..., Job]
Document = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two simulated nodes, each with one of the GPUs."""
    folder = Path("/tmp") / f"dk{secrets.token_hex(3)}"  # Ray's sockets need a short path
    folder.mkdir(mode=0o700)
    found = start(folder)
    yield found
    found.devkit("debug-cluster", "stop")
    shutil.rmtree(folder, ignore_errors=True)


def hang(cluster: Cluster, launch: Launch, folder: Path, what: str) -> tuple[Document, Job]:
    """What `devkit hang` finds once rank 1 is about to do this."""
    job = launch("--", sys.executable, str(PROGRAM), str(folder), what)
    eventually((folder / "done").exists, f"rank 1 {what}", 120)
    status = 0 if what in ("steps", "rests") else 1
    found: Document = cluster.json("hang", "--job", job.id, "--after", "3", check=status)
    print(found["sentence"])
    return found, job


def test_the_doctor_reduces_over_nccl(cluster: Cluster) -> None:
    found = cluster.json("doctor", check=None)
    by_backend = {each["backend"]: each for each in found["collectives"]}
    nccl = by_backend["nccl"]
    print(by_backend, [each["what"] for each in found["findings"]])
    assert (nccl["status"], nccl["ranks"]) == ("done", 2) and nccl["mb_per_s"] > 0 and nccl["transport"], nccl


def test_ranks_that_move_are_no_hang(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    found, _ = hang(cluster, launch, tmp_path, "steps")
    assert not found["hang"], found


def test_a_rank_that_does_not_come_is_named(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    found, _ = hang(cluster, launch, tmp_path, "sleeps")
    who = found["culprit"]
    assert found["hang"] and (who["rank"], who["line"]) == (1, mark("nccl_ranks.py", "sleeps")), found


def test_transfers_that_are_through_hold_nobody(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    found, _ = hang(cluster, launch, tmp_path, "rests")
    assert found["kind"] == "idle", found


def test_a_stage_that_keeps_its_output_is_named(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    found, _ = hang(cluster, launch, tmp_path, "keeps")
    who = found["culprit"]
    assert (found["kind"], who["rank"], who["line"]) == ("missing", 1, mark("nccl_ranks.py", "keeps")), found
    assert "of group pairs" in found["sentence"], found


def test_collectives_of_two_groups_are_told(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Two that differ in one group are no such test: NCCL lets a broadcast meet an all-reduce and goes on."""
    found, _ = hang(cluster, launch, tmp_path, "crosses")
    assert found["hang"] and found["kind"] in ("missing", "mismatch"), found
    who = found["culprit"]
    lines = [mark("nccl_ranks.py", each) for each in ("crosses", "crossed")]  # torch 2.11 waits in the call itself
    if found["kind"] == "mismatch" and who is None:  # of two ranks in two groups neither is alone
        assert any(f":{line} in Trainer" in found["sentence"] for line in lines), found
    else:
        assert who["rank"] == 1 and who["line"] in lines, found


def test_a_rank_that_raised_is_told_before_those_that_wait(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    found, _ = hang(cluster, launch, tmp_path, "raises")
    who = found["culprit"]
    assert found["hang"] and (who["rank"], who["line"]) == (1, mark("nccl_ranks.py", "raises")), found


@pytest.fixture
def without_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The same of a Python that has all packages, and py-spy neither beside it nor on PATH."""
    venv.create(tmp_path / "bare")
    [packages] = (tmp_path / "bare/lib").glob("python*/site-packages")
    (packages / "base.pth").write_text("".join(f"import site; site.addsitedir({each!r})\n" for each in here()))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    path = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(each for each in path if not (Path(each) / "py-spy").exists()))
    folder = Path("/tmp") / f"dk{secrets.token_hex(3)}"  # Ray's sockets need a short path
    folder.mkdir(mode=0o700)
    found = start(folder)
    yield found
    found.devkit("debug-cluster", "stop")
    shutil.rmtree(folder, ignore_errors=True)


def here() -> list[str]:
    """Where this Python has its packages."""
    return [each for each in site.getsitepackages() if Path(each).is_dir()]


@pytest.mark.parametrize(("what", "lines"), [("blocks", ("all_reduce", "exchange")), ("sleeps", ("item",))])
def test_who_waits_in_nccl_shows_its_line_without_py_spy(
    without_py_spy: Cluster, tmp_path: Path, what: str, lines: tuple[str, ...]
) -> None:
    """In the call itself, or for what the GPU is to give: in both a thread beside it answers, and it is not idle.

    Of the calls, it is the first that waits in Python: torch 2.11 leaves the wait for an all-reduce to the GPU.
    """
    places = [f"nccl_ranks.py:{mark('nccl_ranks.py', line)}" for line in lines]
    job = Job(without_py_spy, "--", sys.executable, str(PROGRAM), str(tmp_path), what)

    def is_there(block: str) -> bool:
        return block.startswith("Trainer rank 0") and any(place in block for place in places)

    def waits() -> str:
        return next(filter(is_there, without_py_spy.devkit("stacks", "--job", job.id).split("\n\n")), "")

    try:
        eventually((tmp_path / "done").exists, f"rank 1 {what}", 120)
        block: str = eventually(waits, lambda: without_py_spy.devkit("stacks", "--job", job.id))
        print(block)
        assert "idle: " not in block and "Trainer.train" in block, block
    finally:
        job.kill()
