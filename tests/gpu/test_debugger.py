"""The debugger beside CUDA: tensors of a device are looked at, and a device that hangs holds nobody up."""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.debug.conftest import PROGRAMS, Cluster, Job, eventually, launch, mark, start

__all__ = ["launch"]  # a fixture of the debugger's tests
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(300),
]

PROGRAM = PROGRAMS / "device_ranks.py"
Launch = Callable[..., Job]
LOOK_SECONDS = 8.0  # what an eval may take beside a device that is busy for longer


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path("/tmp") / f"dk{secrets.token_hex(3)}"  # Ray's sockets need a short path
    folder.mkdir(mode=0o700)
    found = start(folder)
    yield found
    found.devkit("debug-cluster", "stop")
    shutil.rmtree(folder, ignore_errors=True)


def at(name: str, condition: str = "") -> str:
    return f"{PROGRAM}:{mark('device_ranks.py', name)} {condition}".strip()


def crash_of(cluster: Cluster, job: Job) -> dict[str, Any]:
    def look() -> list[dict[str, Any]]:
        return [each for each in cluster.json("crashes")["crashes"] if each["job_id"] == job.id and not each["root"]]

    [found] = eventually(look, "a crash")
    shown: dict[str, Any] = cluster.json("crashes", "show", found["id"])
    return shown


def test_a_condition_on_a_tensor_stops_the_rank_whose_loss_is_nan(launch: Launch, cluster: Cluster) -> None:
    job = launch("--break", at("loss", "if torch.isnan(loss)"), "--", sys.executable, str(PROGRAM), "steps")
    [stop] = job.stops(1)
    assert stop["rank"] == 1
    [loss] = cluster.json("eval", "loss", "--target", stop["id"])["results"]
    assert "cuda:0" in loss["value"] and "nan=1" in loss["value"], loss
    [weights] = cluster.json("eval", "self.weights", "--target", stop["id"])["results"]
    for fact in ("float32[2, 3]", "cuda:0", "min=0", "max=5", "mean=2.5"):
        assert fact in weights["value"], weights
    job.resume()
    assert job.end() == 0 and "steps 3" in job.out, job.out


def test_a_device_that_is_busy_is_not_waited_for(launch: Launch, cluster: Cluster) -> None:
    job = launch("--break", at("busy"), "--", sys.executable, str(PROGRAM), "wait_for_the_device")
    [stop] = job.stops(1)
    began = time.monotonic()
    [batch] = cluster.json("eval", "batch", "--target", stop["id"])["results"]
    assert "the device is busy" in batch["value"] and "float32[2, 3]" in batch["value"], batch
    assert time.monotonic() - began < LOOK_SECONDS
    assert cluster.json("stacks", "--job", job.id)["ranks"]
    job.resume()
    assert job.end(120) == 0, job.out


def test_a_snapshot_holds_what_was_on_the_device(launch: Launch, cluster: Cluster) -> None:
    job = launch("--", sys.executable, str(PROGRAM), "fail")
    assert job.end() == 0, job.out
    crash = crash_of(cluster, job)
    frame = crash["frames"][crash["at"]]
    logits = frame["locals"]["logits"]["tensor"]
    assert (frame["line"], logits["device"], logits["dtype"], logits["nan"]) == (
        mark("device_ranks.py", "fails"), "cuda:0", "bfloat16", 1,
    )  # fmt: skip


def test_memory_that_ran_out_on_the_device_leaves_a_snapshot(launch: Launch, cluster: Cluster) -> None:
    job = launch("--", sys.executable, str(PROGRAM), "grow")
    assert job.end(120) == 0, job.out
    crash = crash_of(cluster, job)
    assert crash["exception"]["type"] == "OutOfMemoryError" and crash["line"] == mark("device_ranks.py", "grows")
