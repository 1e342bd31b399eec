"""Breakpoints without edits, on a real Ray: in every kind of code, for whom they are meant, and what can be wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from devkit import cli
from devkit.debug.client import HubClient

from .conftest import PROGRAMS, Cluster, Job, eventually, mark, staged
from .look import Look
from .stages import Stage

pytestmark = pytest.mark.ray

FILES = ("points.py", "pieces.py", "late.py")


@pytest.fixture(scope="module")
def points(cluster: Cluster) -> Iterator[Stage]:
    """One job for all tests of this file; it was started with a breakpoint."""
    spec = f"{PROGRAMS / 'points.py'}:{mark('points.py', 'early')} @Early"
    with staged(cluster, "points.py", "--break", spec) as stage:
        stage.do("kinds = Kinds.remote(); ray.get(kinds.loaded.remote('yaml'))")
        yield stage


@pytest.fixture
def look(hub: HubClient, points: Stage) -> Iterator[Look]:
    look = Look(hub, points.job.id, *FILES)
    yield look
    look.clear_all()
    look.resume_all()


# ---- where


def test_a_breakpoint_that_the_job_was_started_with(points: Stage, look: Look) -> None:
    points.do("early = Early.remote(); r = early.is_ready.remote()")
    [stop] = look.stops("early")
    assert (stop["role"], stop["function"]) == ("Early", "Early.__init__")
    look.resume(stop)
    assert points.do("ray.get(r)") is True


@pytest.mark.parametrize(
    ("method", "at", "function", "result"),
    [
        ("decorated", "decorated", "ByValue.decorated", 12),  # of a class that came in a pickle
        ("value", "property", "ByValue.value", 35),
        ("generator", "yield", "Kinds.generator.<locals>.count", 15),
        ("coroutine", "await", "Kinds.coroutine.<locals>.work", 6),
        ("closure", "closure", "make_adder.<locals>.add", 6),  # made after the breakpoint was set
    ],
)
def test_every_kind_of_function(points: Stage, look: Look, method: str, at: str, function: str, result: int) -> None:
    assert look.set(look.at(at))["workers"] >= 1
    points.do(f"r = kinds.{method}.remote(5)")
    rounds = 5 if method == "generator" else 1
    for _ in range(rounds):
        [stop] = look.stops(at)
        assert stop["function"] == function
        look.resume(stop)
        assert look.end_of(stop) == "continued"
    assert points.do("ray.get(r)") == result


def test_a_line_inside_a_statement_means_the_statement(points: Stage, look: Look) -> None:
    look.set(look.at("inner"))
    points.do("r = kinds.lines.remote(5)")
    [stop] = eventually(look.now, "a stop")
    first = mark("points.py", "inner") - 3
    assert (stop["function"], stop["line"]) == ("Kinds.lines", first)
    look.resume(stop)
    assert points.do("ray.get(r)") == 11


def test_code_of_a_package(points: Stage, look: Look) -> None:
    look.set("yaml:safe_load @Kinds")
    points.do("r = kinds.package.remote(5)")
    [stop] = eventually(look.now, "a stop")
    spec = importlib.util.find_spec("yaml")
    assert spec is not None and (stop["file"], stop["function"]) == (spec.origin, "safe_load")
    assert look.values("stream", stop) == ["'5'"]
    look.resume(stop)
    assert points.do("ray.get(r)") == 5


def test_a_module_that_is_not_loaded_yet(points: Stage, look: Look, cluster: Cluster) -> None:
    shown = cluster.devkit("break", look.at("late"), "--job", look.job)
    assert "armed in 0 of " in shown and "module not loaded yet" in shown
    points.do("r = kinds.late.remote(5)")
    [stop] = look.stops("late")
    [state] = [each for each in cluster.json("break", "--list")["breakpoints"] if "late.py" in each["spec"]]
    assert (state["armed"], state["hits"]) == (1, 1)
    look.resume(stop)
    assert points.do("ray.get(r)") == 6


def test_a_loop_that_is_running_already(points: Stage, look: Look, cluster: Cluster) -> None:
    points.do("many = Many.remote(); r = many.loop.remote(); ray.get(many.work.remote(1))")
    [state] = cluster.json("break", look.at("running", "if rounds > 3"), "--job", look.job)["breakpoints"]
    assert state["armed"] >= 1
    [stop] = look.stops("running")
    assert int(look.values("rounds", stop)[0]) > 3
    points.do("many.end.remote()")  # its other calls run
    cluster.devkit("break", "--clear", state["id"])
    look.resume(stop)
    assert points.do("ray.get(r)") == "ended"


def test_every_call_of_a_threaded_actor(points: Stage, look: Look) -> None:
    points.do("many = Many.remote(); ray.get(many.work.remote(1))")
    look.set(look.at("many"))
    points.do("r = [many.work.remote(each) for each in range(10)]")
    stops = look.stops(*["many"] * 10)
    assert sorted(map(int, look.values("number", *stops))) == list(range(10))
    look.resume(*stops)
    assert points.do("ray.get(r)") == list(range(1, 11))


# ---- for whom, and when


def test_role_rank_condition_and_hits(points: Stage, look: Look) -> None:
    points.do("ranked = [Ranked.remote(rank) for rank in range(3)]; ray.get([r.steps.remote(1) for r in ranked])")
    once = look.set(look.at("step", "@Ranked[1:] if step == 3"), hits="2")
    other = look.set(look.at("step", "@Other[1]"))
    points.do("r = [each.steps.remote(5) for each in ranked]; ray.get(r)")  # the first hit of each doesn't stop
    assert look.now() == []
    points.do("r = [each.steps.remote(5) for each in ranked]")
    stops = look.stops("step", "step")
    assert sorted((stop["rank"], *look.values("step", stop)) for stop in stops) == [(1, "3"), (2, "3")]
    assert {stop["breakpoint"] for stop in stops} == {once["id"]}
    assert eventually(lambda: look.state(once["id"])["hits"] == 4)
    assert look.state(other["id"])["hits"] == 0
    look.resume(*stops)
    assert points.do("ray.get(r)") == [4, 5, 6]


def test_a_log_point_prints_and_goes_on(points: Stage, look: Look) -> None:
    points.do("r = Ranked.remote(2); ray.get(r.steps.remote(1))")
    look.set(look.at("step", "@Ranked if step == 1"), log="'log', step, self.rank")
    assert points.do("ray.get(r.steps.remote(3))") == 4
    eventually(lambda: f"points.py:{mark('points.py', 'step')} [Ranked rank 2] ('log', 1, 2)" in points.job.out)
    assert look.now() == []


def test_what_log_points_print_is_no_repetition(points: Stage, look: Look) -> None:
    """Lines of several workers that differ in numbers alone, of which Ray shows the first."""
    points.do("r = [Ranked.remote(rank) for rank in range(3)]; ray.get([each.steps.remote(1) for each in r])")
    look.set(look.at("step", "@Ranked"), log="'seen', step, self.rank")
    points.do("ray.get([each.steps.remote(3) for each in r])")
    for rank, step in product(range(3), range(3)):
        eventually(lambda rank=rank, step=step: f"[Ranked rank {rank}] ('seen', {step}, {rank})" in points.job.out)  # type: ignore[misc]


def test_a_condition_that_raises_is_told_once(points: Stage, look: Look, cluster: Cluster) -> None:
    points.do("r = Ranked.remote(0); ray.get(r.steps.remote(1))")
    state = look.set(look.at("step", "@Ranked if nothing_of_this_name > 1"))
    assert points.do("ray.get(r.steps.remote(20))") == 19
    said = f"the condition of breakpoint {state['id']} failed and was ignored: NameError"
    eventually(lambda: said in points.job.out)
    assert "NameError" in eventually(lambda: look.state(state["id"])["error"])
    assert look.now() == [] and points.do("ray.get(r.steps.remote(20))") == 19
    assert sum(log.read_text().count(said) for logs in cluster.logs for log in logs.glob("worker-*.err")) == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere.py:3", "no such file: nowhere.py"),
        ("{points}:1", "no code"),
        ("{points}:1000000", "has"),
        ("{points}:{line} if step ==", "condition"),
        ("no.such.module:function", "module no.such.module not found"),
        ("{points}", "not a valid breakpoint"),
        ("{points}:{line} @Ranked[x]", "rank"),
    ],
)
def test_a_wrong_spec_fails_before_the_job_starts(
    spec: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = spec.format(points=PROGRAMS / "points.py", line=mark("points.py", "step"))
    started = tmp_path / "started"
    command = [sys.executable, "-c", f"open({str(started)!r}, 'w')"]
    assert cli.main(["run", "--json", "--break", text, "--", *command]) == 2
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert said in answer["error"] and answer["hint"] and answer["exit_code"] == 2
    assert [line.split(":")[0] for line in err.splitlines()] == ["error", "hint"]
    assert not started.exists()


# ---- what else a program asks of Ray


@pytest.mark.parametrize("form", ["callable", "name"])
def test_hooks_and_environments_of_the_program(cluster: Cluster, hub: HubClient, form: str) -> None:
    path = os.pathsep.join([str(PROGRAMS), cluster.environ["PYTHONPATH"]])
    theirs = {"RAY_RUNTIME_ENV_HOOK": "hooks.of_environment", "PYTHONPATH": path}
    users = replace(cluster, environ={**cluster.environ, **theirs})
    spec = f"{PROGRAMS / 'hooked.py'}:{mark('hooked.py', 'work')}"
    with staged(users, "hooked.py", "--break", spec, arguments=[form]) as stage:
        look = Look(hub, stage.job.id, "hooked.py")
        stage.do("w = Worker.options(runtime_env={'env_vars': {'OF_ACTOR': 'theirs'}}).remote(); r = w.work.remote()")
        [stop] = look.stops("work")
        answer = ["a callable" if form == "callable" else "a name", "theirs", "it ran"]
        assert look.values("answer", stop) == [repr(answer)]
        look.resume(stop)
        assert stage.do("ray.get(r)") == answer


def test_workers_without_devkit(cluster: Cluster, hub: HubClient) -> None:
    """`-S`: no .pth file is read, so what is installed as editable is not there; the packages are named one by one."""
    folders = os.pathsep.join(entry for entry in sys.path if entry.endswith("site-packages"))
    spec = f"{PROGRAMS / 'hooked.py'}:{mark('hooked.py', 'work')}"
    theirs = {"py_executable": f"{sys.executable} -S", "env_vars": {"PYTHONPATH": folders}}
    with staged(cluster, "hooked.py", "--break", spec, arguments=["callable"]) as stage:
        look = Look(hub, stage.job.id, "hooked.py")
        stage.do(f"w = Worker.options(runtime_env={theirs!r}).remote()")
        assert stage.do("ray.get(w.has_devkit.remote(), timeout=60)") is False
        stage.do("r = w.work.remote()")
        [stop] = look.stops("work")
        look.resume(stop)
        assert stage.do("ray.get(r)")[0] == "a callable"


@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
def test_uv_run(launch: Callable[..., Job], tmp_path: Path) -> None:
    """Ray's own hook for it still acts: its workers run under uv, too."""
    shutil.copy(PROGRAMS / "uv_run.py", tmp_path)  # the whole folder travels
    command = ["env", "-C", str(tmp_path), "uv", "run", "--no-project", "--python", sys.executable, "uv_run.py"]
    job = launch("--break", f"{tmp_path / 'uv_run.py'}:{mark('uv_run.py', 'uv')}", "--", *command)
    [stop] = job.stops()
    assert (stop["role"], stop["line"]) == ("Worker", mark("uv_run.py", "uv"))
    job.resume()
    assert job.end() == 0 and "depth 1" in job.out


def test_at_the_end_a_run_says_what_was_never_hit(launch: Callable[..., Job], hub: HubClient, tmp_path: Path) -> None:
    program = tmp_path / "brief.py"
    program.write_text("import ray\n\nray.init(logging_level='ERROR')\nx = 1\nif x > 1:\n    x = 2\nprint(x)\n")
    job = launch("--break", f"{program}:7", "--break", f"{program}:6", "--log", "x", "--", sys.executable, str(program))
    assert job.end() == 0, job.out
    missed = [line for line in job.out.splitlines() if "never hit" in line]
    assert missed == [f"devkit: never hit: {program}:6"], job.out
    assert not [each for each in hub.call("ps")["breakpoints"] if "brief.py" in each["spec"]]


def test_what_a_short_job_catches_is_counted(launch: Callable[..., Job], tmp_path: Path) -> None:
    program = tmp_path / "short.py"
    program.write_text(SHORT)
    job = launch("--count-caught", "--", sys.executable, str(program))
    assert job.end() == 0, job.out
    [said] = [line for line in job.out.splitlines() if "caught by the program" in line]
    assert "KeyError: 'reward'" in said and "short.py:7" in said, job.out


SHORT = """\
import ray


@ray.remote
def score(row):
    try:
        return row["reward"]
    except KeyError:
        return 0.0


print(ray.get(score.remote({})))
"""


POOLED = """\
import time

import ray


@ray.remote(max_concurrency=4)
class Scorer:
    def score(self, name):
        try:
            return {}[name]
        except KeyError:
            return 0.0


ray.init()
scorer = Scorer.remote()
ray.get([scorer.score.remote(f"n{n}") for n in range(40)])
time.sleep(5)
"""
SWALLOWS = """\
import time

import ray


def look(name):
    return {}[name]


@ray.remote
def work():
    found = []
    for n in range(20):
        try:
            found.append(look(f"n{n}"))
        except KeyError:
            found.append(None)
    time.sleep(5)
    return len(found)


ray.init(logging_level="ERROR")
print(ray.get(work.remote()))
"""
CATCHES = {  # the program, its function that raises, the hit that stops, what is seen there; and what is told of them
    "a task": (SWALLOWS, "look", 3, "('n2', KeyError('n2'))", "caught at"),
    # Ray's core makes them: Python learns of them with each call, which come in any order.
    "the threads of an actor": (POOLED, "Scorer.score", 30, "KeyError('n", "Scorer pid"),
}


@pytest.mark.parametrize("where", CATCHES)
def test_what_is_caught_is_counted_and_can_be_stopped_at(
    launch: Callable[..., Job], cluster: Cluster, tmp_path: Path, where: str
) -> None:
    source, function, hits, seen, told = CATCHES[where]
    program = tmp_path / "swallow.py"
    program.write_text(source)
    job = launch("--break-on", "KeyError", "--hits", str(hits), "--count-caught", "--", sys.executable, str(program))
    [stop] = job.stops()
    raises = next(number for number, line in enumerate(source.splitlines(), 1) if line.endswith("return {}[name]"))
    assert (stop["function"], stop["line"], stop["exception"]["type"]) == (function, raises, "KeyError")
    assert seen in cluster.devkit("eval", "name, __exception__", "--job", job.id)
    job.resume()
    assert job.end() == 0, job.out
    # On 3.11 the last one of a frame that goes on may be counted too late for the end.
    [said] = [line for line in job.out.splitlines() if "caught by the program" in line]
    assert "x KeyError: 'n" in said and f"swallow.py:{raises}, " in said and told in said, job.out
