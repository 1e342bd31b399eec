"""What `devkit debug-cluster` prints when it is up, without a Ray."""

from __future__ import annotations

import shlex

import pytest

from devkit.debug.cluster_records import AuthRecord, DebugCluster, DebugMode, NodeRecord
from devkit.debug.cluster_view import show_started
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
