"""A debug cluster on a machine where Ray's dashboard can't run: told at once, and had without it."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from tests.pace import stretched
from tests.walks.terminals import Terminal
from tests.walks.test_second_terminal import JOB, finish, look_around

pytestmark = [pytest.mark.walks, pytest.mark.timeout(600)]
CLIENT = Path(ray.__file__).parent / "dashboard/client/build"


def test_a_dashboard_that_fails_is_told_at_once_and_can_be_left_out(terminal: Terminal) -> None:
    terminal.run(f"mkdir /tmp/empty && mount --bind /tmp/empty {CLIENT}")
    done = terminal.try_("devkit debug-cluster --timeout 10000", timeout=stretched(300))
    *_, error, hint = done.stderr.splitlines()
    assert done.returncode == 1 and error.startswith("error: Ray's dashboard has failed: ") and str(CLIENT) in error
    assert hint.startswith("hint: --no-dashboard starts without one; ")

    page = terminal.run("devkit debug-cluster --no-dashboard")
    assert "dashboard  none" in page and "In VS Code" not in page
    with terminal.running(f"devkit run --break '{JOB} @Worker[1]' -- python programs/job.py") as program:
        terminal.stops(program)
        look_around(terminal, JOB)
        assert "runs without a dashboard" in terminal.try_("devkit jobs").stderr
        assert "alive" in terminal.run("devkit debug-cluster status")
        assert "cluster 10.77.0.1:" in terminal.run("devkit doctor")
        finish(terminal, program)
    terminal.run("devkit debug-cluster stop")
