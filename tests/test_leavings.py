"""What a run of tests has started ends with it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pace import stretched

ROOT = Path(__file__).parent.parent
# It detaches a process, as Ray does its daemons, and then waits.
PROGRAM = """
import os, subprocess, sys, time
CODE = "import signal; IGNORE; print('up', flush=True); signal.pause()"
def test_it():
    daemon = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, start_new_session=True)
    daemon.stdout.readline()
    print(daemon.pid, file=sys.__stdout__, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_detached_process_ends_with_the_run(tmp_path: Path, number: signal.Signals) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if number == signal.SIGKILL else "0"
    (tmp_path / "test_it.py").write_text(PROGRAM.replace("IGNORE", ignore))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "DEVKIT_TESTS_GRACE": "1"}
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "tests.plugins.leavings", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        daemon = int(next(line for line in run.stdout if line.strip().isdigit()))
        gone = os.pidfd_open(daemon)
        run.send_signal(number)
        run.wait(stretched(60))
    assert _ended(gone, 60)


def _ended(pidfd: int, seconds: float) -> bool:
    ready, _, _ = select.select([pidfd], [], [], seconds)
    return bool(ready)
