"""The rounds of a soak. Each does one thing that goes on in a long day of debugging, and counts what went wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.debug.conftest import PROGRAMS, Job, eventually, short_folder
from tests.soak.training import resume_after_a_kill, two_smokes
from tests.soak.watch import resident_mb
from tests.soak.world import LOOP, Loop, Tally, World, hub_process, world

CYCLES = 100  # of stop and continue in one round
GROWTH_MB = 20.0  # more than this, between the tenth cycle and the last, is a leak
BUSY = 40  # processes that want all of the machine
PATIENCE = ("--timeout", "300")


def stop_and_continue(world: World) -> Tally:
    """Both ranks stop at each step and are continued; each cycle shows two new stops."""
    tally = Tally()
    with world.looping() as loop, world.cluster.connect() as hub:
        seen = {stop["id"] for stop in loop.stop_all()}
        pids = {"hub": hub_process(world.cluster).pid, "rank 0": loop.workers()[0]["pid"]}
        early: dict[str, float] = {}
        for cycle in range(CYCLES):
            hub.call("continue", ids=[stop["id"] for stop in loop.stops(hub)])
            tally.expect(_is_stopped_anew(loop, hub, seen), f"cycle {cycle}: not both ranks stopped again")
            if cycle == 10:
                early = {who: resident_mb(pid) for who, pid in pids.items()}
        for who, pid in pids.items():
            grown = resident_mb(pid) - early[who]
            tally.notes.append(f"{who} {grown:+.1f} MB")
            tally.expect(grown < GROWTH_MB, f"{who} grew by {grown:.1f} MB in {CYCLES} cycles")
    return tally


def _is_stopped_anew(loop: Loop, hub: object, seen: set[str]) -> bool:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        now = {stop["id"] for stop in loop.stops(hub)}  # type: ignore[arg-type]
        if len(now) == 2 and not now & seen:
            seen |= now
            return True
        time.sleep(0.01)
    return False


def crash(world: World) -> Tally:
    """A task fails: its crash is listed, can be opened, and the program has its own exit code."""
    tally = Tally()
    job = Job(world.cluster, "--", sys.executable, str(PROGRAMS / "crash_kinds.py"), "chained")
    try:
        job.joined()
        job.end()
        mine = [each for each in world.cluster.json("crashes")["crashes"] if each["job_id"] == job.id]
        tally.expect(len(mine) == 1, f"{len(mine)} crashes of one")
        for each in mine:
            tally.expect(each["exception"]["type"] == "ValueError", f"another crash: {each['exception']}")
            tally.expect("bad batch" in world.cluster.devkit("crashes", "show", each["id"]), "it can't be opened")
    finally:
        job.kill()
    return tally


def kill_the_hub(world: World) -> Tally:
    """It dies beside a stop: it comes back, with the stops and the breakpoints, and the ranks go on when told to."""
    tally = Tally()
    with world.looping() as loop:
        before = {stop["id"] for stop in loop.stop_all()}
        dead = hub_process(world.cluster)
        points = world.cluster.json("break", "--list")["breakpoints"]
        os.kill(dead.pid, signal.SIGKILL)
        found = world.cluster.json("ps", *PATIENCE)
        now = {stop["id"] for stop in found["stops"] if stop["job_id"] == loop.job.id}
        tally.expect(now == before, f"stops: {len(now)} of {len(before)}")
        ids = [point["id"] for point in world.cluster.json("break", "--list")["breakpoints"]]
        tally.expect(ids == [point["id"] for point in points], "breakpoints are lost")
        tally.expect(hub_process(world.cluster) != dead, "it is the old one")
    return tally


def kill_a_worker(world: World) -> Tally:
    """A stopped rank is killed: its stop goes with the reason, and its death is a crash with a name."""
    tally = Tally()
    with world.looping() as loop:
        victim = loop.stop_all()[0]
        os.kill(victim["pid"], signal.SIGKILL)
        gone = eventually(
            lambda: [each for each in world.cluster.json("ps")["gone"] if each["id"] == victim["id"]], "its end", 90
        )
        tally.expect("died" in gone[0]["reason"] or "SIGKILL" in gone[0]["reason"], gone[0]["reason"])
        crashes = world.cluster.json("crashes")["crashes"]
        mine = [each for each in crashes if each["worker_id"] == victim["worker_id"]]
        tally.expect(len(mine) == 1 and "Worker" in mine[0]["role"], f"its crash: {mine}")
    return tally


def two_clusters(world_: World) -> Tally:
    """A second cluster beside the first: each shows its own stops alone."""
    tally = Tally()
    with short_folder() as folder, world(folder) as other, ExitStack() as stack:
        loops = [stack.enter_context(each.looping()) for each in (world_, other)]
        for loop in loops:
            loop.stop_all()
        for loop, stranger in (loops, loops[::-1]):
            workers = {stop["worker_id"] for stop in loop.cluster.json("ps")["stops"]}
            others = {worker["worker_id"] for worker in stranger.workers()}
            tally.expect(len(workers) >= 2 and not workers & others, "stops of another cluster")
    return tally


def busy_machine(world: World) -> Tally:
    """Forty processes want both cores: every verb answers, late, and the hub lives on."""
    tally = Tally()
    with world.looping() as loop:
        hub = hub_process(world.cluster)
        with _busy():
            begun = time.monotonic()
            for verb in (
                ["break", loop.place, "--answer-timeout", "300"],
                ["ps", *PATIENCE],
                ["eval", "k >= 0", "--timeout", "300", "--answer-timeout", "300"],
                ["stacks", *PATIENCE],
                ["hang", *PATIENCE],
                ["break", "--clear", "all", "--answer-timeout", "300"],
                ["continue", "--all", *PATIENCE],
                ["crashes", *PATIENCE],
            ):
                started = time.monotonic()
                done = _devkit(world, *verb)
                tally.expect(done.returncode in (0, 1), f"{verb[0]}: {done.returncode} {done.stderr[-300:]}")
                tally.notes.append(f"{verb[0]} {time.monotonic() - started:.0f} s")
            tally.notes.append(f"all {time.monotonic() - begun:.0f} s")
        tally.expect(hub_process(world.cluster) == hub, "the hub died")
        ours = [each for each in world.cluster.json("crashes")["crashes"] if "Hub" in each["role"]]
        tally.expect(not ours, "devkit's own processes among the crashes")
    return tally


def _devkit(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "devkit", *words]
    return subprocess.run(command, env=world.cluster.environ, capture_output=True, text=True, timeout=600, check=False)


@contextmanager
def _busy() -> Iterator[None]:
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for each in burners:
            each.kill()
            each.wait()


def little_memory(world: World) -> Tally:
    """A worker that may have no more memory: its MemoryError is a crash, with the line."""
    tally = Tally()
    job = Job(world.cluster, "--", sys.executable, str(Path(__file__).with_name("little_memory.py")))
    try:
        job.joined()
        job.end()
        mine = [each for each in world.cluster.json("crashes")["crashes"] if each["job_id"] == job.id]
        tally.expect([each["exception"]["type"] for each in mine] == ["MemoryError"], f"crashes: {mine}")
    finally:
        job.kill()
    return tally


def clock_jumps(world: World) -> Tally:
    """The clock of a stopped rank jumps by an hour, forwards and back: no time-out ends the stop, and it goes on."""
    tally = Tally()
    program = Path(__file__).with_name("jumping_clock.py")
    clock = world.folder / "clock"
    clock.write_text("0")
    job = Job(world.cluster, "--break", f"{program}:{_line(program)}", "--timeout", "600", "--",
              sys.executable, str(program), str(clock))  # fmt: skip
    try:
        job.stops(1)
        for jump in ("3600", "-3600", "0"):
            clock.write_text(jump)
            time.sleep(3)  # the rank and its threads live in that time
            tally.expect(len(world.cluster.ps(job.id)["stops"]) == 1, f"the stop went at {jump} s")
        job.resume()
        tally.expect(job.end() == 0, f"it ended with {job.process.returncode}")
    finally:
        job.kill()
    return tally


def _line(program: Path) -> int:
    return next(at for at, line in enumerate(program.read_text().splitlines(), 1) if "# @here" in line)


ROUNDS: dict[str, Callable[[World], Tally]] = {
    "stop and continue": stop_and_continue,
    "crash": crash,
    "hub killed": kill_the_hub,
    "worker killed": kill_a_worker,
    "two clusters": two_clusters,
    "little memory": little_memory,
    "clock jumps": clock_jumps,
    "busy machine": busy_machine,
    "resume": resume_after_a_kill,
    "two smokes": two_smokes,
}
__all__ = ["LOOP", "ROUNDS"]
