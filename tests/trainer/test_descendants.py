"""What a process has started is ended with all that those start meanwhile."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.trainer.runs import running, wait_until_gone

# Each child starts others as long as it lives, and those stay.
PROGRAM = """
import subprocess, sys, time
from trainer.descendants import descendants, end_descendants
kept = subprocess.Popen(["sleep", "60"])
before = descendants()
starts = "subprocess.Popen(['sleep', '60'], start_new_session=True)"
busy = f"import subprocess, time\\nwhile True: {starts}; time.sleep(0.001)"
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", busy])
while len(descendants()) < 30:
    time.sleep(0.01)
end_descendants(before)
assert kept.poll() is None, "it was there before"
kept.kill()
kept.wait()
"""


def test_nothing_is_left_of_what_starts_others(tmp_path: Path) -> None:
    with running([sys.executable, "-c", PROGRAM], tmp_path) as run:
        assert run.wait() == 0
        assert wait_until_gone(run.mark) == []
