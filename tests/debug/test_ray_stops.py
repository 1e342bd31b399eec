"""Stops that hold, on a real Ray: each row of the table of what Ray's own debugger does wrong, done right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from devkit.debug.client import HubClient
from devkit.errors import DevkitError
from tests.pace import stretched

from .conftest import PROGRAMS, Cluster, Job, eventually, mark, staged
from .look import Look
from .stages import Debugger, Pipe, Stage

PROGRAM = "scenes.py"
FILES = (PROGRAM, "children.py")


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Stage]:
    """One job for all tests of this file; each has actors of its own in it."""
    with staged(cluster, PROGRAM) as stage:
        yield stage


@pytest.fixture
def look(hub: HubClient, scene: Stage) -> Iterator[Look]:
    look = Look(hub, scene.job.id, *FILES)
    yield look
    look.resume_all()


# ---- what stops, and how it is listed


def test_every_kind_of_code_stops_and_says_what_it_is(scene: Stage, look: Look, cluster: Cluster) -> None:
    scene.do(
        "p, q, f, s, a = [Plain.remote() for _ in range(4)] + [Async.remote()];"
        "g = generate.remote(1);"
        "r = [task.remote(1), p.stop.remote(2), a.stop.remote(3), q.in_thread.remote(),"
        "     f.in_child.remote('fork'), s.in_child.remote('spawn')]"
    )
    marks = ("task", "plain", "async", "thread", "child", "child", "generator")
    stops = look.stops(*marks)
    assert {stop["reason"] for stop in stops} == {"breakpoint"}
    functions = ["task", "Plain.stop", "Async.stop", "own_thread", "leave", "leave", "generate"]
    assert [stop["function"] for stop in stops] == functions
    assert [stop["role"] for stop in stops[:4]] == ["task", "Plain", "Async", "Plain"]
    pids = {stop["pid"] for stop in stops}
    assert len(pids) == len(marks) and all(Path(f"/proc/{pid}").exists() for pid in pids)
    shown = cluster.devkit("ps")  # for people: each is there, by where it is and what it is
    assert all(stop["id"] in shown and f"{Path(stop['file']).name}:{stop['line']}" in shown for stop in stops)
    assert look.values("doubled", *stops[:3]) == ["2", "4", "6"]
    groups = cluster.json("stacks", "--job", stops[0]["job_id"])["groups"]
    assert {group["frames"][0]["line"] for group in groups if group["stopped"]} == {stop["line"] for stop in stops}, (
        groups
    )
    cluster.devkit("continue", *(stop["id"] for stop in stops))
    assert scene.do("ray.get(r, timeout=60)") == [2, 4, 6, None, 40, 40]
    assert scene.do("[ray.get(each) for each in g]") == [0]
    assert {look.end_of(stop) for stop in stops} == {"continued"}


def test_nothing_stays_slow_after_a_stop(scene: Stage, look: Look) -> None:
    scene.do("p = Plain.remote(); r = p.stop.remote(1)")
    [stop] = look.stops("plain")
    client, event, _ = look.debugger(stop)
    client.ask("next", threadId=event["threadId"])
    assert client.event("stopped")["reason"] == "step"
    client.ask("continue", threadId=event["threadId"])
    client.ask("disconnect")
    assert scene.do("ray.get(r)") == 2
    assert scene.do("ray.get(p.tracing.remote())") == [False, False, []]


# ---- who looks, and who leaves


def test_a_stop_is_listed_while_clients_look_in_turn_and_their_edits_stay(scene: Stage, look: Look) -> None:
    scene.do("p = Plain.remote(); r = p.stop.remote(21)")
    [stop] = look.stops("plain")
    first, _, frame = look.debugger(stop)
    look.attached(stop, 1)
    assert first.evaluate("doubled", frame) == "42"
    second, _, other_frame = look.debugger(stop)  # both at once
    look.attached(stop, 2)
    first.set(frame, "doubled", "1000")
    assert second.evaluate("doubled", other_frame) == "1000"
    first.ask("disconnect")  # cleanly
    look.attached(stop, 1)
    second.set(other_frame, "doubled", "doubled + 1")
    second.wire.close()  # and without a word
    look.attached(stop, 0)
    assert not scene.is_done("r")
    look.resume(stop)
    assert scene.do("ray.get(r)") == 1001


def test_a_client_that_is_killed_resumes_nothing(scene: Stage, look: Look, cluster: Cluster) -> None:
    scene.do("p = Plain.remote(); r = p.stop.remote(1)")
    [stop] = look.stops("plain")
    command = [sys.executable, "-m", "devkit", "dap", "--id", stop["id"]]
    process = subprocess.Popen(command, env=cluster.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        client = Debugger(Pipe(process))
        client.attach()
        client.event("stopped")
        look.attached(stop, 1)
        process.kill()
    look.attached(stop, 0)
    assert not scene.is_done("r")
    again, event, frame = look.debugger(stop)
    assert again.evaluate("doubled", frame) == "2"
    again.ask("continue", threadId=event["threadId"])
    assert scene.do("ray.get(r)") == 2


def test_one_continues_what_another_looks_at(scene: Stage, look: Look, cluster: Cluster) -> None:
    scene.do("p = Plain.remote(); r = p.stop.remote(1)")
    [stop] = look.stops("plain")
    client, event, _ = look.debugger(stop)
    cluster.devkit("continue", stop["id"])
    assert client.event("continued")["threadId"] == event["threadId"]
    assert scene.do("ray.get(r)") == 2
    look.stops()
    with pytest.raises(DevkitError) as late:
        look.resume(stop)
    assert late.value.hint == "that stop has ended: continued"


# ---- actors that do several things at once


def test_two_stops_of_a_threaded_actor_are_two(scene: Stage, look: Look) -> None:
    scene.do("t = Threaded.remote(); one, two = t.stop.remote(1), t.stop.remote(2)")
    stops = {look.values("number", stop)[0]: stop for stop in look.stops("plain", "plain")}
    assert scene.do("ray.get(t.ping.remote(), timeout=30)") == stops["1"]["pid"]  # its other calls run
    client, event, frame = look.debugger(stops["2"])
    assert client.evaluate("doubled", frame) == "4"
    client.ask("continue", threadId=event["threadId"])
    assert scene.do("ray.get(two)") == 4
    assert look.stops("plain") == [stops["1"]] and not scene.is_done("one")
    look.resume(stops["1"])
    assert scene.do("ray.get(one)") == 2


@pytest.mark.skipif(find_spec("uvloop") is not None, reason="Ray takes uvloop, which cannot run in itself")
def test_the_other_calls_of_an_async_actor_run(scene: Stage, look: Look) -> None:
    scene.do("a = Async.remote(); one, two = a.stop.remote(1), a.stop.remote(2)")
    stops = look.stops("async", "async")
    assert scene.do("ray.get(a.ping.remote(), timeout=30)") == "pong"
    client, _, _ = look.debugger(stops[0])  # and with a client at it
    assert scene.do("ray.get(a.ping.remote(), timeout=30)") == "pong"
    client.ask("disconnect")
    look.resume(*stops)
    assert scene.do("ray.get([one, two])") == [2, 4]


# ---- how stops end


def test_a_worker_that_dies_says_so(scene: Stage, look: Look) -> None:
    scene.do("p, q = Plain.remote(), Plain.remote(); r = [p.stop.remote(1), q.stop.remote(2)]")
    first, second = sorted(look.stops("plain", "plain"), key=lambda stop: look.values("number", stop)[0])
    os.kill(first["pid"], signal.SIGKILL)
    why = look.end_of(first)
    assert "died" in why and "SIGKILL" in why
    scene.do("ray.kill(q)")
    assert "ray.kill" in look.end_of(second)


def test_a_task_that_is_cancelled_is_gone(scene: Stage, look: Look) -> None:
    scene.do("r = task.remote(1)")
    [stop] = look.stops("task")
    scene.do("ray.cancel(r)")
    assert look.end_of(stop) == "cancelled"
    assert "TaskCancelledError" in scene.do("type(ray.exceptions.TaskCancelledError()).__name__")


def test_a_stop_with_a_time_out_ends_by_itself(scene: Stage, look: Look, cluster: Cluster) -> None:
    """On a busy machine it may be over before anybody looks: that it has been is listed, too."""
    pid = scene.do("p = Plain.remote(); ray.get(p.ping.remote())")
    [state] = cluster.json("break", look.at("ping", "@Plain"), "--timeout", "1", "--job", look.job)["breakpoints"]

    def ended() -> list[str]:
        """Of a call, until one has come behind the breakpoint: other actors of that class may have it before."""
        assert scene.do("ray.get(p.ping.remote())") == pid
        ends = look.hub.call("ps")["gone"]
        own = [each for each in ends if (each["job_id"], each["pid"]) == (look.job, pid)]
        return [each["reason"] for each in own if (each["file"], each["line"]) == look.place("ping")]

    assert set(eventually(ended, "the end of a stop")) == {"timeout"}
    look.hub.call("clear", id=state["id"])


def test_what_a_dead_driver_leaves(cluster: Cluster) -> None:
    with staged(cluster, PROGRAM) as stage, cluster.connect() as hub:
        look = Look(hub, stage.job.id, *FILES)
        stage.do("r = task.remote(1); d = Plain.options(name='last', namespace='stops', lifetime='detached').remote()")
        stage.do("s = d.stop.remote(21)")
        of_task, of_detached = look.stops("task", "plain")
        os.kill(stage.do("os.getpid()"), signal.SIGKILL)
        assert stage.job.end() == 128 + signal.SIGKILL
        assert "job" in look.end_of(of_task)
        assert look.now() == [of_detached]  # the job is over, the stop is listed
        with staged(cluster, PROGRAM) as other:
            other.do("d = ray.get_actor('last', namespace='stops')")
            look.resume(of_detached)
            assert other.do("ray.get(d.ping.remote(), timeout=60)") == of_detached["pid"]
            other.do("ray.kill(d)")


# ---- the driver


@pytest.mark.usefixtures("scene")  # the hub ends with the last job, and forgets what it has seen
def test_a_breakpoint_of_the_driver_without_a_terminal(launch: Callable[..., Job]) -> None:
    program = str(PROGRAMS / "driver.py")
    passing = [launch("--", sys.executable, program) for _ in range(3)]
    seconds = str(stretched(3))  # that the hub hears of the stop while it is one
    waiting = launch("--wait", "--timeout", seconds, "--", sys.executable, program)
    assert waiting.end() == 0 and "went on" in waiting.out
    [end] = eventually(lambda: [end for end in waiting.cluster.ps()["gone"] if end["job_id"] == waiting.id])
    assert (end["role"], end["line"], end["reason"]) == ("driver", mark("driver.py", "here"), "timeout")
    said = f"breakpoint() at {program}:{mark('driver.py', 'here')} in the driver"
    for job in passing:  # and they end well, though our threads are still at their beginning
        assert job.end() == 0 and "went on" in job.out and said in job.out, job.out


def test_a_watch_ends_with_its_reader_though_there_is_no_news(scene: Stage, cluster: Cluster) -> None:
    command = [sys.executable, "-m", "devkit", "ps", "--watch", "--wait", "--json"]
    watch = subprocess.Popen(command, env=cluster.environ, stdout=subprocess.PIPE, text=True)
    try:
        assert watch.stdout is not None and "stops" in json.loads(watch.stdout.readline())
        watch.stdout.close()  # as of an editor that was killed
        assert watch.wait(stretched(20)) == 0
    finally:
        watch.kill()
        watch.wait()
