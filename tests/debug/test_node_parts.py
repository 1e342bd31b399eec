"""The processes that a node needs, on its way up: which of them is lost, and where its last words are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from devkit.debug.node_parts import Parts


def begin(folder: Path, name: str, script: str, *words: str) -> subprocess.Popen[bytes]:
    """A process of that name."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return subprocess.Popen([path, *words], stdin=subprocess.PIPE)


def test_one_that_died_before_it_was_seen_is_lost(tmp_path: Path) -> None:
    """Given a look that comes late; whoever started it has not asked for its exit code yet, as `ray start` does not."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "raylet.err").write_text("[2026-11-27 03:00:00,000 C 7 7] main.cc:1: no room for the object store\n")
    parts = Parts(os.getpid())
    words = f"--log_dir={logs}"
    with begin(tmp_path, "gcs_server", "read line", words), begin(tmp_path, "raylet", "exit 1", words) as raylet:
        os.waitid(os.P_PID, raylet.pid, os.WEXITED | os.WNOWAIT)
        found = parts.lost()
    assert found is not None and (found.name, found.pid) == ("raylet", raylet.pid)
    assert found.log == logs / "raylet.err"


def test_of_two_that_died_it_is_the_one_that_says_why(tmp_path: Path) -> None:
    """Given a raylet that has died, for which `ray start` has ended the GCS server; both between two looks."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "raylet.err").write_text("*** SIGABRT received at time=1795750000 on cpu 1 ***\n")
    (logs / "gcs_server.out").write_text("[2026-11-27 03:00:00,000 I 6 6] gcs_server.cc:1: listening\n")
    parts, words = Parts(os.getpid()), f"--log_dir={logs}"
    with begin(tmp_path, "gcs_server", "read line", words) as server, begin(tmp_path, "raylet", "read line", words):
        assert parts.lost() is None
        server.kill()
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        with begin(tmp_path, "raylet", "exit 1", words) as raylet:
            os.waitid(os.P_PID, raylet.pid, os.WEXITED | os.WNOWAIT)
            found = next(each for each in iter(parts.lost, 0) if each is not None)
    assert (found.name, found.pid) == ("raylet", raylet.pid)


def test_nothing_is_lost_while_all_live(tmp_path: Path) -> None:
    parts = Parts(os.getpid())
    with begin(tmp_path, "raylet", "read line") as raylet:
        assert parts.lost() is None
        raylet.stdin.close()  # type: ignore[union-attr]
