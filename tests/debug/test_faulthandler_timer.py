"""A real process that is ended by a timer of faulthandler's, which nobody has cancelled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from devkit.debug.inworker.lastwords import last_words
from devkit.debug.inworker.vanished import vanished
from tests.debug.test_snapshot import WHO

PROGRAM = """
import faulthandler, sys, threading
faulthandler.dump_traceback_later(0.2, exit=sys.argv[1] == "ends")
waiting = threading.Event()
threading.Thread(target=waiting.wait, daemon=True).start()
def export():
    waiting.wait(60 if sys.argv[1] == "ends" else 1)
export()
print("it went on", file=sys.stderr)
"""


@pytest.mark.parametrize("how", ["ends", "goes on"])
def test_a_timer_that_was_not_cancelled_is_why_a_process_ended(tmp_path: Path, how: str) -> None:
    log = tmp_path / "worker.err"
    with log.open("w") as errors:
        done = subprocess.run([sys.executable, "-c", PROGRAM, how], stderr=errors, check=False)
    words = last_words(log)
    assert "Timeout (0:00:00.200" in log.read_text() and done.returncode == (1 if how == "ends" else 0)
    if how == "goes on":
        assert words is None
        return
    document = vanished(WHO, words, "the process died", died=2.0)
    assert (
        "ends with the dump of faulthandler.dump_traceback_later, called 0:00:00.200"
        in document["exception"]["message"]
    )
    assert any(frame["function"] == "export" for frame in document["frames"])
