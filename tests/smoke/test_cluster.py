"""The smoke test's own Ray on a machine that is too busy for Ray's limit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.pace import stretched

PROGRAM = """
import sys

import psutil

from devkit.errors import DevkitError
from devkit.smoke.cluster import SmokeCluster

cluster = SmokeCluster(1, 1)
import ray
from ray._private import services
real, late = services.get_node, int(sys.argv[1])

def too_late(*args):
    global late
    late -= 1
    if late >= 0:
        raise Exception("The current node timed out during startup. This could happen because ...")
    return real(*args)

services.get_node = too_late
try:
    cluster.start(None)
    cluster.connect()
    raylets = [process for process in cluster._processes() if process.name() == "raylet"]
    print("nodes", sum(node["Alive"] for node in ray.nodes()), "of", len(raylets))
except DevkitError as error:
    print(type(error).__name__, error)
finally:
    cluster.stop()
    # What has been killed is there until the kernel has put it away.
    print("left", len(psutil.wait_procs(cluster._processes(), timeout=20)[1]))
"""


@pytest.mark.parametrize(
    ("late", "said"),
    [(1, "nodes 1 of 1"), (2, "DeadlineError Ray did not start: its node had not registered after 30 s, twice")],
)
def test_a_node_that_comes_too_late_is_started_once_more(late: int, said: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(late)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=stretched(120), env=dict(os.environ), check=True
    )
    assert done.stdout.splitlines() == [said, "left 0"], done.stderr
