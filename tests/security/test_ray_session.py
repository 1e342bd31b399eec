"""A Ray whose session's folders anybody may write to, as Ray makes them, and another user who has done so."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from devkit.debug import bundle
from tests.debug.conftest import Cluster, Job
from tests.security.users import MALLORY, PROGRAMS, needs_users

pytestmark = needs_users

PROGRAM = PROGRAMS / "loaded.py"
LINE = next(number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# @here" in line)


def plant(session: Path, mark: Path) -> None:
    """Her code, where a worker might look for the debugger of this version."""
    assert session.stat().st_mode & stat.S_IWOTH, "Ray lets her"
    package = session / "devkit" / bundle.digest(bundle.files()) / "devkit_inworker"
    package.mkdir(parents=True)
    for name in ("__init__.py", "boot.py", "private.py"):
        (package / name).write_text(f"open({str(mark)!r}, 'w')\n")
    (package.parent / ".complete").touch()
    for path in (session / "devkit", *(session / "devkit").rglob("*")):
        os.chown(path, MALLORY, MALLORY)


def test_code_that_she_put_into_the_session_is_not_loaded(cluster: Cluster) -> None:
    mark = Path(cluster.environ["RAY_TMPDIR"]) / "ran"
    for logs in cluster.logs:
        plant(logs.parent, mark)
    job = Job(cluster, "--break", f"{PROGRAM}:{LINE}", "--", sys.executable, str(PROGRAM))
    try:
        [stop] = job.stops()
        assert stop["line"] == LINE
        job.resume()
        assert job.end() == 0, job.out
    finally:
        job.kill()
    assert not mark.exists()
    assert f"loaded from {cluster.environ['DEVKIT_HOME']}/bundles/" in job.out
