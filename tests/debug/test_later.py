"""A child of a worker loads the debugger when it has lived for a while, or when there is something to tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.debug import bundle
from devkit.debug.inworker import agent, boot, later
from devkit.debug.inworker.settings import Settings
from tests.pace import stretched

LOADED = "'devkit_inworker.boot' in sys.modules"


def child(code: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """A Python as a worker starts one."""
    settings = json.dumps(boot.settings_to_json(Settings()))
    known = {"PYTHONPATH": str(bundle.folder() / "site"), "TMPDIR": str(folder), later.SETTINGS: settings}
    known |= {later.CHILD_OF: "1:ab", **environ}
    command = [sys.executable, "-c", f"import sys, time\n{code}"]
    # What tests before it have left says other things than a worker's: that there are breakpoints, for one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEVKIT_")} | known
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=stretched(30.0))


def test_a_short_one_never_loads_it(tmp_path: Path) -> None:
    lived = f"time.monotonic() - {time.monotonic()}"  # a machine that is busy may have had it wait
    done = child(f"print(not ({LOADED}) or {lived} > {later.SECONDS})", tmp_path)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_one_that_may_come_to_a_breakpoint_loads_it_at_once(tmp_path: Path) -> None:
    assert child(f"print({LOADED})", tmp_path, **{later.ARMED: "1"}).stdout == "True\n"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({later.ARMED: "1"}, False),
        ({later.SETTINGS: '{"breakpoints": [{}], "leave_to_ray": false}'}, False),
        ({later.SETTINGS: '{"breakpoints": [], "leave_to_ray": true}'}, False),
        ({later.SETTINGS: "/home/a/.cache/devkit/runs/1.settings"}, False),
        ({later.CHILD_OF: ""}, False),
        ({later.CHILD_OF: f"{os.getpid()}:ab"}, False),  # the worker itself
    ],
)
def test_who_can_wait_for_it(changed: dict[str, str], expected: bool) -> None:
    child = {later.CHILD_OF: "1:ab", later.SETTINGS: '{"breakpoints": [], "leave_to_ray": false}'}
    assert later.is_enough(child | changed) is expected


def test_one_that_lives_on_has_it(tmp_path: Path) -> None:
    done = child(f"while not ({LOADED}): time.sleep(0.01)\nprint('there')", tmp_path)
    assert done.stdout == "there\n", done.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import threading\nt = threading.Thread(target=lambda: 1 // 0)\nt.start()\nt.join()", "ZeroDivisionError"),
        ("import os\nos._exit(3)", "SystemExit"),
    ],
)
def test_what_fails_before_is_kept(tmp_path: Path, code: str, said: str) -> None:
    done = child(code, tmp_path)
    kept = [json.loads(each.read_text()) for each in tmp_path.glob("devkit-*/crashes-*/*.json")]
    assert [each["exception"]["type"] for each in kept] == [said], done.stderr
    assert done.returncode == (3 if said == "SystemExit" else 0)


def test_an_exit_with_success_is_no_reason_to_load_it(tmp_path: Path) -> None:
    assert child("import os\nos._exit(0)", tmp_path).returncode == 0
    assert not list(tmp_path.glob("devkit-*/crashes-*/*.json"))


class Starting:
    """A debugger of this process that another thread is about to start, until it may go `on`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.on = threading.Event(), threading.Event()
        self.told: list[str] = []
        patch.setattr(agent, "current", lambda: SimpleNamespace(pause_here=lambda _: self.told.append("stop")))
        for place, name in ((threading, "excepthook"), (os, "_exit")):
            patch.setattr(place, name, lambda *_: self.told.append("nobody"))
        patch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
        patch.setenv("PYTHONBREAKPOINT", "0")
        patch.setattr(later, "SECONDS", 0.0)
        later.Later(self._start)
        assert self.begun.wait(stretched(30.0))

    def _start(self) -> None:
        self.begun.set()
        assert self.on.wait(stretched(30.0))
        threading.excepthook = lambda _: self.told.append("crash")
        os._exit = lambda _: self.told.append("exit")  # type: ignore[assignment, return-value]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: sys.breakpointhook(), "stop"),
        (lambda: threading.excepthook(SimpleNamespace()), "crash"),  # type: ignore[arg-type]
        (lambda: os._exit(1), "exit"),
    ],
)
def test_what_comes_while_it_is_being_started_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, call: Any, told: str
) -> None:
    """A breakpoint of a child half a second old was Ray's, which does not work there."""
    starting = Starting(monkeypatch)
    caller = threading.Thread(target=call)
    caller.start()
    assert starting.told == []
    starting.on.set()
    caller.join(stretched(30.0))
    assert starting.told == [told]
