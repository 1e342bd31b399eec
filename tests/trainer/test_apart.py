"""A display's own terminal: what else writes to stderr goes to a file, and comes back when the display is over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.terminal import seen_on_a_terminal
from trainer.apart import Apart

STRAY = b"[2026-11-24 01:02:03,004 E 1 2] network_util.cc:330: Failed to determine local IP\n"
RUN = """
import os, sys
from contextlib import closing
from trainer.config import load
from trainer.tracking import make_tracker
config = load(["trainer.default_local_dir=" + sys.argv[1]]).config
with closing(make_tracker(config, 3)) as tracker:
    tracker.phase("starting Ray")
    tracker.backends[-1].progress.refresh()
    os.write(2, b"network_util.cc: torn")
    tracker.note("a note")
    print("from a worker", file=sys.stderr)
    tracker.log(1, {"critic/score/mean": 0.25})
    tracker.log(2, {"critic/score/mean": 0.75})
    tracker.backends[-1].progress.refresh()
print("afterwards", file=sys.stderr)
"""


def test_others_write_to_the_file_until_it_is_closed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "stderr.log"
    apart = Apart(log)
    screen = apart.open()
    os.write(2, STRAY)
    screen.write("drawn\n")
    subprocess.run(["sh", "-c", "echo child >&2"], check=True)
    assert apart.close() == log
    os.write(2, b"afterwards\n")
    assert log.read_bytes() == STRAY + b"child\n"
    assert capfd.readouterr().err == "drawn\nafterwards\n"


def test_a_file_of_its_own_is_there_if_something_is_in_it() -> None:
    quiet, loud = Apart(), Apart()
    quiet.open()
    assert quiet.close() is None
    loud.open()
    os.write(2, b"x")
    log = loud.close()
    assert log is not None and log.read_bytes() == b"x"
    log.unlink()
    assert loud.close() is None


def test_nothing_tears_the_bar_of_a_run(tmp_path: Path) -> None:
    """The phases are in the bar; Python's prints come above it, what goes past Python is named at the end."""
    shown = seen_on_a_terminal([sys.executable, "-c", RUN, str(tmp_path)])
    assert "torn" not in shown
    assert "starting Ray" in shown and "from a worker" in shown and "note: a note" in shown
    assert "score 0.75 ▁█" in shown
    (line,) = [line for line in shown.splitlines() if "stderr of Ray and other libraries" in line]
    log = Path(line.rpartition(" ")[2].strip().removesuffix("\x1b[0m"))
    assert log.read_text() == "network_util.cc: torn"
    log.unlink()
    assert shown.rstrip().endswith("afterwards")
