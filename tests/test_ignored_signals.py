"""Started with Ctrl-C ignored, as by `nohup` and `&`: devkit goes on, and the tests mean what they mean."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.pace import stretched

ROOT = Path(__file__).resolve().parent.parent
IGNORING = ["sh", "-c", 'trap "" INT QUIT; exec "$@"', "sh", sys.executable]
TELLS = "import signal; print(signal.getsignal(signal.SIGINT) == signal.default_int_handler)"
PROGRAM = "import sys; print('begun', flush=True); sys.stdin.read(1); sys.exit(3)"


def test_what_a_test_starts_can_be_interrupted() -> None:
    code = f"import subprocess, sys, tests.conftest; {TELLS}; subprocess.run([sys.executable, '-c', {TELLS!r}])"
    done = subprocess.run([*IGNORING, "-uc", code], cwd=ROOT, capture_output=True, text=True, timeout=stretched(60))
    assert done.stdout == "True\nTrue\n", done.stderr
    unmended = subprocess.run([*IGNORING, "-c", TELLS], capture_output=True, text=True, timeout=stretched(60))
    assert unmended.stdout == "False\n"


def test_devkit_run_goes_on_and_tells_how_the_program_ended(tmp_path: Path) -> None:
    command = [*IGNORING, "-m", "devkit", "run", "--", sys.executable, "-c", PROGRAM]
    environ = {**os.environ, "DEVKIT_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        process.stdin.write(b".")
        process.stdin.close()
        assert process.wait(stretched(60)) == 3, "the program's failure, and not 130"
