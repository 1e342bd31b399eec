"""`devkit submit`, `jobs`, `logs` and `stop` on a real Ray, whose driver then runs from a folder that Ray unpacked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug import bundle
from tests import documents
from tests.debug.conftest import DEADLINE, Cluster, eventually

pytestmark = pytest.mark.ray

JOB = """\
import sys
import time

import ray

from parts import work

if __name__ == "__main__":
    ray.init(logging_level="ERROR", log_to_driver=False)
    print("got", ray.get([work.remote(number) for number in range(2)]), flush=True)
    if sys.argv[1:] == ["forever"]:
        time.sleep(600)
    sys.exit(len(sys.argv) - 1)
"""
PARTS = """\
import ray


@ray.remote(num_cpus=0)
def work(number):
    doubled = number * 2
    return doubled + 1
"""
LINE = 7  # of `return`

Document = dict[str, Any]
Submit = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "job.py").write_text(JOB)
    (folder / "parts.py").write_text(PARTS)
    return folder


@pytest.fixture
def submit(cluster: Cluster, folder: Path) -> Iterator[Submit]:
    """Starts `devkit submit` in another folder than the project's; its output goes on in a thread."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "devkit", "submit", "--working-dir", str(folder), *arguments]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(command, env=cluster.environ, cwd="/", stdout=pipe, stderr=subprocess.STDOUT, text=True)
        )
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        out, _ = process.communicate()
        print(out)  # beside the failure, if there is one


def stops_in(cluster: Cluster, file: str) -> list[Document]:
    """None of a cluster on which no job has run under devkit yet."""
    stops = cluster.json("ps", check=None).get("stops", [])
    return [stop for stop in stops if stop["file"].endswith(file)]


def test_a_breakpoint_by_a_relative_name_stops_in_what_was_uploaded(
    cluster: Cluster, submit: Submit, folder: Path
) -> None:
    name = "stops-there"
    process = submit(
        "--break", f"parts.py:{LINE} if number == 1", "--submission-id", name, "--", sys.executable, "job.py"
    )
    [stop] = eventually(lambda: stops_in(cluster, "parts.py"), "the stop")
    assert (stop["line"], stop["function"]) == (LINE, "work")
    # Ray unpacked it where nobody would look for it; the user is shown a path below the project's folder.
    assert "_ray_pkg_" in stop["file"]
    page = cluster.devkit("ps")
    assert "parts.py:7" in page and "_ray_pkg_" not in page, page
    [result] = cluster.json("eval", "doubled", "--target", stop["id"])["results"]
    assert result["value"] == "2"

    rows = {row["submission_id"]: row for row in cluster.json("jobs")["jobs"]}
    assert rows[name]["status"] == "RUNNING" and rows[name]["command"] == f"{sys.executable} job.py"

    cluster.devkit("continue", stop["id"])
    out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0 and "got [1, 3]" in out, out
    assert "got [1, 3]" in cluster.devkit("logs", name)


def test_a_job_that_fails_is_told_by_its_exit_code(submit: Submit) -> None:
    process = submit("--", sys.executable, "job.py", "fail")
    out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1 and "got [1, 3]" in out, out
    error, hint = out.splitlines()[-2:]
    assert error.startswith("error: job ") and "FAILED" in error and hint.startswith("hint: ")
    assert "Traceback" not in out


def test_the_log_begins_with_a_short_line_and_nothing_of_the_job_stays_anywhere(
    cluster: Cluster, submit: Submit
) -> None:
    home = Path(cluster.environ["DEVKIT_HOME"])
    process = submit("--", sys.executable, "job.py")
    out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out
    [line] = [line for line in out.splitlines() if "entrypoint" in line]
    assert len(line) < 250 and line.endswith("job.py"), line
    places = [Path(tempfile.gettempdir()), *(logs.parent for logs in cluster.logs)]
    assert not [path for place in places for path in place.glob("devkit-job-*")]
    assert bundle.digest(bundle.files()) in [path.name for path in (home / "bundles").iterdir()]
    assert not [path for path in home.rglob("*") if path.name.startswith(("identity-", "settings-"))]


def test_the_package_does_not_hold_itself(cluster: Cluster, folder: Path) -> None:
    home = folder / "devkit-home"
    environ = {**cluster.environ, "DEVKIT_HOME": str(home), "RAY_ADDRESS": cluster.dashboard_url}
    command = [sys.executable, "-m", "devkit", "submit", "--working-dir", str(folder), "--", sys.executable, "job.py"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert not list(home.glob("*.zip"))


def test_a_job_can_be_left_alone_and_stopped_later(cluster: Cluster, submit: Submit) -> None:
    process = submit("--no-follow", "--json", "--", sys.executable, "job.py", "forever")
    out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out
    told = json.loads(out.splitlines()[-1])
    documents.check_output(["submit"], told)
    documents.check_output(["jobs"], cluster.json("jobs"))
    name = told["submission_id"]

    said: list[str] = []
    logs = subprocess.Popen(
        [sys.executable, "-m", "devkit", "logs", name], env=cluster.environ, stdout=subprocess.PIPE, text=True
    )
    assert logs.stdout is not None
    reader = threading.Thread(target=lambda: said.extend(logs.stdout or ()), daemon=True)
    reader.start()
    eventually(lambda: any("got [1, 3]" in line for line in said), "its log")
    assert cluster.json("stop", name) == {"submission_id": name, "stopped": True}
    assert logs.wait(DEADLINE) == 0  # it follows the job to its end
    reader.join(DEADLINE)
    logs.stdout.close()
    row = next(row for row in cluster.json("jobs")["jobs"] if row["submission_id"] == name)
    assert row["status"] == "STOPPED"
    assert cluster.json("stop", name) == {"submission_id": name, "stopped": False}


def test_who_stops_following_is_told_that_the_job_goes_on(cluster: Cluster, submit: Submit) -> None:
    following = submit("--submission-id", "followed", "--", sys.executable, "job.py", "forever")
    try:
        assert following.stdout is not None
        said = iter(following.stdout)
        assert any("got [1, 3]" in line for line in said)
        following.send_signal(signal.SIGINT)
        rest = "".join(said)
        assert following.wait(DEADLINE) == 130
        assert "error: interrupted, but the job followed goes on\nhint: devkit logs followed shows" in rest, rest
        [row] = [each for each in cluster.json("jobs")["jobs"] if each["submission_id"] == "followed"]
        assert row["status"] == "RUNNING"
    finally:
        cluster.devkit("stop", "followed")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--break", "parts.py:2", "--", "python", "job.py"), "parts.py"),
        (("--break", "absent.py:1", "--", "python", "job.py"), "absent.py"),
        (("--break", "parts.py:7 if (", "--", "python", "job.py"), "condition"),
        (("--runtime-env", "[1", "--", "python", "job.py"), "--runtime-env"),
        ((), "command"),
    ],
)
def test_what_cannot_be_meant_fails_before_anything_starts(
    cluster: Cluster, submit: Submit, arguments: tuple[str, ...], said: str
) -> None:
    out, _ = (process := submit(*arguments)).communicate(timeout=DEADLINE)
    error, hint = out.splitlines()
    assert process.returncode == 2 and error.startswith("error: ") and said in error and hint.startswith("hint: "), out
