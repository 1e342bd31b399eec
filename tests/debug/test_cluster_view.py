"""What `devkit debug-cluster` prints when it says of its clusters, without a Ray."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from devkit.debug import ray_start
from devkit.debug.cluster_launch import why_failed
from devkit.debug.cluster_records import AuthRecord, DebugCluster, DebugMode, NodeRecord, Stopped
from devkit.debug.cluster_view import show_started, status_main, stop_main
from devkit.debug.state import Mode

HEAD = NodeRecord("3ff01e3d", "10.0.0.1", alive=True, cpus=2, gpus=0, head=True)


def up(name: str, mode: Mode = "distributed") -> DebugCluster:
    where = ("10.0.0.1:6380", "http://127.0.0.1:8266", (HEAD,), DebugMode(mode, post_mortem=True))
    return DebugCluster(*where, "ray start ...", name, AuthRecord("disabled", ""), "/tmp/logs")


@pytest.mark.parametrize("joined", [False, True])
def test_the_command_that_stops_it_stops_no_other_one(joined: bool, capsys: pytest.CaptureFixture[str]) -> None:
    show_started(up("head-6380"), json=False, joined=joined)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "debug-cluster stop" in line]
    assert shlex.split(line)[-4:] == ["devkit", "debug-cluster", "stop", "head-6380"]


def test_the_status_names_its_columns_as_the_start_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devkit.debug.cluster.status", lambda: (replace(up("head-6380"), problem="1 node is dead"),))
    assert status_main(json=False) == 1
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[:5])
    assert shown["cluster"] == "head-6380" and shown["problem"] == "1 node is dead"
    assert shown["GCS"] == "10.0.0.1:6380" and shown["dashboard"] == "http://127.0.0.1:8266"
    show_started(up("head-6380"), json=False)
    started = dict(
        line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line[:3] in ("GCS", "das")
    )
    assert started.items() <= shown.items()


@pytest.mark.parametrize(("mode", "said"), [("token", True), ("disabled", False)])
def test_of_rays_own_extension_no_more_is_said_than_is_known(
    mode: str, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    auth = AuthRecord(mode, "~/.ray/auth_token")  # type: ignore[arg-type]
    show_started(replace(up("head-6380"), auth=auth), json=False)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "extension itself" in line]
    assert "not tested" in line
    assert ("--auth disabled" in line) is said


def test_what_was_stopped_is_one_figure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Stopped("head-6380", "10.0.0.1:6380", processes=26, killed=22)
    monkeypatch.setattr("devkit.debug.cluster.stop", lambda *_, **__: (stopped,))
    assert stop_main("head-6380", json=False) == 0
    assert capsys.readouterr().out == "stopped head-6380 (10.0.0.1:6380): 26 processes\n"


@pytest.mark.parametrize(
    ("address", "problem", "said"),
    [("10.0.0.1:6380", "", True), ("10.0.0.1:6379", "", False), ("10.0.0.1:6380", "h1 cannot be reached", False)],
)
def test_a_shell_that_still_names_what_was_stopped_is_told(
    address: str, problem: str, said: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Stopped("head-6380", "10.0.0.1:6380", processes=26, killed=0, problem=problem)
    monkeypatch.setattr("devkit.debug.cluster.stop", lambda *_, **__: (stopped,))
    monkeypatch.setenv("RAY_ADDRESS", address)
    stop_main("head-6380", json=False)
    assert ("unset RAY_ADDRESS RAY_AUTH_MODE" in capsys.readouterr().err) is said


RAY_START = """\
2026-11-23 02:59:52,754 INFO scripts.py:1043 -- Local node IP: 127.0.0.1
Traceback (most recent call last):
  File "ray/scripts/scripts.py", line 1065, in start
    node = ray._private.node.Node(
ConnectionError: an earlier one
During handling of the above exception, another exception occurred:
Exception: The current node timed out during startup. This could happen because some of the raylet failed to startup.

  a line below it
"""


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (RAY_START, "Exception: The current node timed out during startup. This could happen because"),
        ("Usage: ray start [OPTIONS]\n\nError: No such option: --nonsense\n", "Error: No such option: --nonsense"),
        ("bash: ray: command not found\n\n", "bash: ray: command not found"),
        ("\n", "it printed nothing"),
    ],
)
def test_a_start_that_failed_is_reported_with_rays_error(log: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(log)
    assert why_failed(tmp_path / "log").startswith(why)


@pytest.mark.parametrize(("gigabytes", "each"), [(64, 15_000_000_000), (24, 11_400_000_000), (0.06, 5_000_000_000)])
def test_nodes_of_one_machine_ask_for_no_more_than_ray_gives(
    gigabytes: float, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 10 GB it refuses more than there is shared memory, of which a container has little."""
    memory = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=100_000_000_000))
    monkeypatch.setattr(ray_start.processes, "load_psutil", lambda: memory)
    blocks = SimpleNamespace(f_bsize=1000, f_bavail=int(gigabytes * 1e6))
    monkeypatch.setattr(os, "statvfs", lambda _: blocks)
    plan = ray_start.plan(ray_start.ClusterOptions(nodes=2), {})
    assert all(f"--object-store-memory={each}" in command for command in plan.commands)
