"""How the smoke test is interrupted: its deadline is told as such, whatever code it interrupts.

In a process of its own: it needs SIGALRM.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from devkit.smoke import run as smoke
from devkit.smoke.options import SmokeOptions
from tests.pace import stretched

PROGRAM = """
import time
from types import SimpleNamespace
from devkit.errors import DeadlineError
from devkit.smoke.run import _deadline

began = time.monotonic()

def turns_it_into_another_error():
    try:
        while True: pass
    except Exception as error:
        raise ImportError("a module could not be imported") from error

def fails_because_of_it():
    try:
        while True: pass
    finally:
        raise ImportError("a module could not be imported")

class Slow:
    def __del__(self):
        while time.monotonic() < began + 0.4: pass

def where_nothing_can_be_raised():
    Slow()
    while True: pass

def fails_before_it():
    raise ImportError("not there")

try:
    with _deadline(0.2, SimpleNamespace(phase="start")):
        {code}()
except (DeadlineError, ImportError) as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("turns_it_into_another_error", "DeadlineError the smoke test took longer than 0.2 s; it was in start"),
        ("fails_because_of_it", "DeadlineError the smoke test took longer than 0.2 s; it was in start"),
        (
            "where_nothing_can_be_raised",
            "DeadlineError the smoke test took longer than 0.2 s; it was in start",
        ),
        ("fails_before_it", "ImportError not there"),
    ],
)
def test_the_deadline_is_told_whatever_it_interrupts(code: str, told: str) -> None:
    program = PROGRAM.replace("{code}", code)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=stretched(60), check=True
    )
    assert done.stdout.strip() == told, done.stderr
    assert done.stderr == ""


IMPORT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from devkit.errors import DeadlineError
from devkit.smoke.run import _deadline

sys.path.insert(0, sys.argv[1])
try:
    with _deadline(0.2, SimpleNamespace(phase="start")):
        import slow
        while True: pass
except DeadlineError as error:
    print(sys.modules["slow"].IS_WHOLE, error)
"""


def test_an_import_is_finished_first(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\nend = time.monotonic() + 0.6\nwhile time.monotonic() < end: pass\nIS_WHOLE = True\n"
    )
    command = [sys.executable, "-c", IMPORT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), check=True)
    assert done.stdout.strip() == "True the smoke test took longer than 0.2 s; it was in start", done.stderr


@pytest.mark.parametrize("keep", [True, False])
def test_a_run_that_is_interrupted_says_what_it_has_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, keep: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(smoke, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smoke.main(SmokeOptions(overrides=(), keep=keep))
    folders = [str(each) for each in tmp_path.glob("devkit-smoke-*")]
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith(f"kept: {tmp_path}")] == [
        f"kept: {folder}" for folder in folders
    ]
    assert len(folders) == keep


def interrupted(*_arguments: object) -> None:
    raise KeyboardInterrupt
