"""A real process that is ended by SIGBUS, and what is said of the file that it had mapped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from devkit.debug.inworker import mapped, told
from devkit.debug.inworker.lastwords import last_words
from devkit.debug.inworker.vanished import vanished
from tests.debug.test_snapshot import WHO

PROGRAM = """
import faulthandler, json, mmap, os, sys
from devkit.debug.inworker import mapped
faulthandler.enable()
with open(sys.argv[1], "r+b") as file:
    rows = mmap.mmap(file.fileno(), 0)
print(json.dumps([each["size"] for each in mapped.noted() if each["file"] == sys.argv[1]]), flush=True)
os.truncate(sys.argv[1], 100)
rows[3 * mmap.PAGESIZE]
"""


def test_a_mapped_file_that_got_shorter_is_why_a_process_ended_by_sigbus(tmp_path: Path) -> None:
    rows, log = tmp_path / "rows.bin", tmp_path / "worker.err"
    rows.write_bytes(bytes(4 * 4096 * 16))
    size = rows.stat().st_size
    with open(log, "w") as errors:
        command = [sys.executable, "-c", PROGRAM, str(rows)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
    assert done.returncode == -signal.SIGBUS and done.stdout.strip() == f"[{size}]"
    seen = {"time": 1.0, "frames": [], "maps": [{"file": str(rows), "size": size}]}
    document = vanished(WHO, last_words(log), "the process died", seen=seen, died=2.0)
    said = f"Bus error; {rows} has 100 bytes, and it had mapped {size} of it"
    assert document["exception"] == {"type": "SIGBUS", "message": said}
    assert told.problem({"type": "doing", **seen}) is None
    assert told.problem({"type": "doing", **seen, "maps": [{"file": 3, "size": "x"}]}) is not None
    assert told.problem({"type": "doing", **seen, "recursion": "deep"}) is not None


def test_a_file_that_is_as_long_as_its_mapping_or_is_gone_explains_nothing(tmp_path: Path) -> None:
    rows = tmp_path / "rows.bin"
    rows.write_bytes(bytes(100))
    assert mapped.sentence([{"file": str(rows), "size": 4096}]) == "", "the rest of its last page"
    assert mapped.sentence([{"file": str(tmp_path / "none"), "size": 4096}]) == ""
    assert mapped.of_table("10-20 r--s 0 08:01 7   /data/x (deleted)\nno line\n") == []
