"""Processes of environments end with their rank, and with the one that makes them, whatever they are at."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.debug.conftest import eventually
from tests.pace import stretched
from tests.trainer.conftest import Words
from tests.trainer.runs import AGENTS, DEADLINE_S, ROOT, main_ppo, marked, running, wait_until_gone

GONE_S = stretched(20.0)
RANK = r"""
import os, sys
from pathlib import Path
from trainer.agent.homes import Houses, answered
from trainer.agent.source import Source

path = Path(sys.argv[1])
house = Houses(Source(f"{path}:Env", path.read_text()), isolate=True)
homes = [house.home() for _ in range(2)]
for home in homes:
    home.ask("reset", 1)
    assert answered([home], None)
    home.take()
for home in homes:
    home.ask("step", "a")
os.write(1, b"forks %d\n" % house._process.pid)
answered(homes, None)
"""
ENVIRONMENT = r"""
import ctypes, os, sys, threading, time
{first}
def here():
    os.write(2, b"here %d\n" % os.getpid())  # in one piece: others write there, too
class Env:
    def reset(self, *, seed): return "go", {{}}
    def step(self, action):
        {step}
"""
THREAD = "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"  # so that nothing is forked
STEPS = {
    "sleeps": "here(); time.sleep(1000)",
    "holds the GIL": "here(); ctypes.PyDLL(None).sleep(1000)",
    "has a child of its own": "os.fork(); here(); time.sleep(1000)",
}


@contextmanager
def rank(folder: Path, first: str, step: str, *, count: int) -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """A process that plays two environments: it, the one that makes them, and those that stand in the step."""
    (folder / "mine.py").write_text(ENVIRONMENT.format(first=first, step=step))
    command = [sys.executable, "-c", RANK, str(folder / "mine.py")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ)
    assert process.stdout is not None
    forks, stand = 0, list[int]()
    try:
        while len(stand) < count or (not forks and first != LOADS):
            line = process.stdout.readline()
            assert line.startswith(("forks ", "here ")), line
            what, _, pid = line.partition(" ")
            if what == "forks":
                forks = int(pid)
            else:
                stand.append(int(pid))
        yield process, forks, stand
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


LOADS = r"""os.write(2, b"here %d\n" % os.getpid()); time.sleep(1000)"""


def assert_all_end(pids: list[int]) -> None:
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended, _, _ = select.select([handle], [], [], GONE_S)
        os.close(handle)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        assert ended, f"process {pid} lives on"


@pytest.mark.parametrize("first", ["", THREAD], ids=["forked", "each loads the file"])
@pytest.mark.parametrize("step", STEPS)
def test_they_end_with_a_rank_that_is_killed(tmp_path: Path, first: str, step: str) -> None:
    count = 4 if "fork" in STEPS[step] else 2
    with rank(tmp_path, first, STEPS[step], count=count) as (process, forks, stand):
        process.kill()
        assert_all_end([forks, *stand])


def test_a_file_that_never_loads_ends_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    with rank(tmp_path, LOADS, "pass", count=1) as (process, _, stand):
        process.kill()
        assert_all_end(stand)


@pytest.mark.parametrize("first", ["", THREAD], ids=["forked", "each loads the file"])
@pytest.mark.parametrize("rank_too", [False, True])
def test_they_end_with_the_process_that_makes_them(tmp_path: Path, first: str, rank_too: bool) -> None:
    """Ray kills the children of a worker that it ends, and not those of the children."""
    with rank(tmp_path, first, STEPS["sleeps"], count=2) as (process, forks, stand):
        os.kill(forks, signal.SIGKILL)
        if rank_too:
            process.kill()
        assert_all_end(stand)


@pytest.mark.trainer
@pytest.mark.timeout(3 * DEADLINE_S)
@pytest.mark.parametrize("killed", ["a rank", "the driver"])
def test_nothing_is_left_of_a_run_that_is_killed(words: Words, tmp_path: Path, killed: str) -> None:
    """While each environment stands in a step, with no deadline near."""
    step = f"open(f'{tmp_path}/stands-{{os.getpid()}}', 'x'); time.sleep(1000)"
    (tmp_path / "mine.py").write_text(f"{ENVIRONMENT.format(first='', step=step)}    def close(self): pass\n")
    command = words(
        *(f"agent.env={tmp_path}/mine.py:Env", "agent.episodes=16", "agent.val_episodes=0", "agent.max_turns=3"),
        *("agent.max_turn_tokens=4", "agent.turn_timeout=1000", "data.train_batch_size=4"),
        *("data.max_response_length=60", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
        without=("data.train_files", "data.val_files"),
    )
    with running(main_ppo(command), tmp_path) as run:
        paths = eventually(lambda: four(tmp_path.glob("stands-*")), lambda: run.text, DEADLINE_S)
        stand = [int(path.name.rpartition("-")[2]) for path in paths]
        assert set(stand) <= set(marked(run.mark))
        if killed == "the driver":
            run.process.kill()
        else:
            for pid in [pid for pid in marked(run.mark) if name_of(pid).startswith(RANK_NAMES)]:
                os.kill(pid, signal.SIGKILL)
        assert_all_end(stand)
        run.wait()
        assert wait_until_gone(run.mark, but=AGENTS) == []


RANK_NAMES = ("ray::PPOWorker", "ray::generate")  # as Ray calls one that is at a call


def four(paths: Iterable[Path]) -> list[Path] | None:
    found = list(paths)
    return found if len(found) == 4 else None


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it ended meanwhile
        return ""
