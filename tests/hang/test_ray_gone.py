"""What is told of a program that has ended, and with it the Ray that it had started: who died first, where, and why."""

from __future__ import annotations

import json
import sys

import pytest

from tests.debug.conftest import PROGRAMS, environment, mark, short_folder
from tests.hang.test_ray_own import devkit

pytestmark = pytest.mark.verdicts


def test_what_could_not_be_unpickled_is_told_by_its_classes_and_the_call() -> None:
    program = str(PROGRAMS / "own_looks.py")
    with short_folder() as folder:
        environ = environment(folder)
        code, _, err = devkit(environ, "run", "--", sys.executable, program, "arrives")
        assert code == 1, err
        _, out, _ = devkit(environ, "logs", "--first-error")
        assert "the argument of Reader.read that could not be unpickled contains an object of Settings" in out


def test_actors_that_ended_before_with_their_owner_are_told_of_a_driver_that_caught_it() -> None:
    with short_folder() as folder:
        environ = environment(folder)
        code, out, err = devkit(environ, "run", "--", sys.executable, str(PROGRAMS / "own_orphans.py"))
        assert code == 1, (out, err)
        _, found, _ = devkit(environ, "logs", "--first-error")
        shown = devkit(environ, "crashes", "show")[1]
    for page in (found, shown):
        assert "RuntimeError: all servers are out of memory" in page, page
        [line] = [line for line in page.splitlines() if "2 x Server ended" in line]
        assert " before with their owner, Launcher pid " in line, line
        assert line.rstrip().endswith(", to which nothing referred any more"), line


def test_an_actor_that_ended_with_its_owner_is_told_of_whoever_called_it() -> None:
    with short_folder() as folder:
        environ = environment(folder)
        code, out, err = devkit(environ, "run", "--", sys.executable, str(PROGRAMS / "own_orphans.py"), "uncaught")
        assert code == 1, (out, err)
        shown = devkit(environ, "crashes", "show")[1]
    assert "died: its owner has ended" in shown and "has crashed" not in shown, shown
    [line] = [line for line in shown.splitlines() if "2 x Server ended" in line]
    assert line.rstrip().endswith(", to which nothing referred any more"), line


def test_an_object_that_is_lost_with_its_owner_is_told_by_that() -> None:
    with short_folder() as folder:
        environ = environment(folder)
        code, out, err = devkit(environ, "run", "--", sys.executable, str(PROGRAMS / "own_owner.py"))
        assert code == 1, (out, err)
        code, out, _ = devkit(environ, "logs", "--first-error")
        listed = devkit(environ, "crashes")[1]
    assert code == 1 and "follows from another one" not in out, out
    for page in (out, listed):
        assert "is lost with its owner, Loader pid" in page, page
        killed = mark("own_owner.py", "kills")
        who = "it was killed by ray.kill, which the driver called at tests/debug/programs/own_owner.py"
        assert f"{who}:{killed}" in page, page
        assert f"own_owner.py:{mark('own_owner.py', 'puts')} in Loader.load" in page, page


def test_after_its_end_what_it_left_is_told() -> None:
    program = str(PROGRAMS / "own_raises.py")
    with short_folder() as folder:
        environ = environment(folder)
        code, _, err = devkit(environ, "run", "--", sys.executable, program)
        assert code == 1 and "devkit crashes shows the snapshots that it left" in err, err
        code, out, err = devkit(environ, "crashes", "--json")
        crashes = json.loads(out)["crashes"]
        assert code == 0 and "devkit: this is the run" in err
        [root] = [each for each in crashes if each["root"] is None]
        assert (root["role"], root["exception"]["type"], root["line"]) == (
            "Scorer",
            "KeyError",
            mark("own_raises.py", "score"),
        )
        code, out, _ = devkit(environ, "crashes", "show", root["id"])
        assert code == 0 and "word = 'b'" in out
        [job] = json.loads(devkit(environ, "jobs", "--json")[1])["jobs"]
        assert (job["status"], job["exit_code"]) == ("FAILED", 1), job
        code, out, _ = devkit(environ, "logs", "--first-error")
        assert (
            code == 1
            and "first error: KeyError: 'b'" in out
            and f"own_raises.py:{mark('own_raises.py', 'score')}" in out
        )


def test_an_error_that_a_driver_prints_itself_is_told_though_its_ray_had_ended_before() -> None:
    program = str(PROGRAMS / "own_raises.py")
    with short_folder() as folder:
        environ = environment(folder)
        code, _, err = devkit(environ, "run", "--", sys.executable, program, "closes")
        assert code == 1 and "error: integer division" in err, err
        code, out, _ = devkit(environ, "logs", "--first-error")
        place = f"own_raises.py:{mark('own_raises.py', 'total')} in total"
        assert code == 1 and "first error: ZeroDivisionError: integer division" in out and place in out, out
        code, out, _ = devkit(environ, "crashes", "show")
        assert code == 0 and "scores = []" in out, out


@pytest.mark.parametrize("how", ["kill", "late", "caught", "closed", "quick", "exit", "leaves"])
def test_an_actor_that_was_killed_is_told_of_after_the_end(how: str) -> None:
    """Though its driver, and the Ray with it, ends as soon as it is told; or catches that, or ends Ray itself."""
    program = str(PROGRAMS / "own_killed.py")
    with short_folder() as folder:
        environ = environment(folder)
        code, out, err = devkit(environ, "run", "--", sys.executable, program, how)
        assert code == {"caught": 0, "closed": 0, "leaves": 3}.get(how, 1), (out, err)
        _, out, err = devkit(environ, "crashes", "--json")
        crashes = json.loads(out)["crashes"]
        [root] = [each for each in crashes if each["root"] is None]
        assert (root["role"], root["kind"]) == ("Reader", "exit"), crashes
        assert [each["role"] for each in crashes if each["root"]] == ([] if code == 0 else ["driver"]), crashes
        _, shown, _ = devkit(environ, "crashes", "show", root["id"])
        code, said, _ = devkit(environ, "logs", "--first-error")
    assert code == 1 and "follows from another one" not in said, said
    if how in ("exit", "leaves"):
        assert "first error: process ended: os._exit(7)" in said, said
        return
    assert "first error: ProcessDied" in said and "without a message: by SIGKILL" in said, said
    for page in (shown, said):
        assert "asked for by the driver" in page, page
        if how != "quick":  # which is dead before it has told anything
            assert root["rank"] == 3 and "actor reader-b: Reader(path='/data/part-7', rank=3, shards=[1, 2, 3])" in page
            assert "memory when last reported" in page
        if how == "late":
            assert root["line"] == mark("own_killed.py", "works") and "in read(how='late')" in page, page
        if how in ("kill", "late", "quick"):
            assert (
                f"asked for by the driver, which awaited it at {program}:{mark('own_killed.py', 'asks')}"
                in page.replace("tests/debug/programs/own_killed.py", program)
            ), page


@pytest.mark.parametrize(
    ("how", "why", "line", "then"),
    [
        ("guard", "by SIGKILL, which Guard pid", "kills", " in Guard.check"),
        ("alarm", "by SIGALRM, as a timer of its own, set", "limit", " in Reader.limit, ran out, and nothing handles"),
    ],
)
def test_what_killed_an_actor_is_told_where_the_program_did_it(how: str, why: str, line: str, then: str) -> None:
    with short_folder() as folder:
        environ = environment(folder)
        code, out, err = devkit(environ, "run", "--", sys.executable, str(PROGRAMS / "own_killed.py"), how)
        assert code == 1, (out, err)
        _, said, _ = devkit(environ, "logs", "--first-error")
    assert f"first error: ProcessDied: the process died: {why}" in said, said
    assert f"own_killed.py:{mark('own_killed.py', line)}{then}" in said, said
