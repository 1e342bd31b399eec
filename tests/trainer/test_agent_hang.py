"""Agentic runs that stand: `devkit hang` names the step with its line, the retriever with its node, the engine."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.debug.conftest import environment, eventually, short_folder
from tests.hang.test_ray_own import SECONDS, devkit, started, verdict_of
from tests.trainer.conftest import Words
from tests.trainer.runs import DEADLINE_S, main_ppo
from tests.trainer.search_stub import Stub, retriever
from tests.trainer.stubbed import stub_in

pytestmark = [pytest.mark.verdicts, pytest.mark.timeout(3 * DEADLINE_S)]
QUERY = "who waits"
WAITS = f"""
import os, signal, time
import psutil
from trainer.retrieval import here


class Waits:
    def __init__(self, how):
        self.how = how

    def reset(self, *, seed):
        self.at = 0
        return "Go.", {{}}

    def step(self, action):
        self.at += 1
        if self.at == 2:
            getattr(self, self.how)()
        return "on", 0.0, self.at == 3, False, {{}}

    def sleeps(self):
        time.sleep(1000)

    def searches(self):
        here().search(["{QUERY}"])

    def freezes(self):
        port = int(here().url.split(":")[2].partition("/")[0])
        for each in psutil.net_connections("tcp"):
            if each.status == "LISTEN" and each.laddr.port == port and each.pid:
                os.kill(each.pid, signal.SIGSTOP)
        here().search(["{QUERY}"])

    def plays(self):
        pass

    def close(self):
        pass
"""
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture
def slow() -> Iterator[Stub]:
    """A retriever that answers all queries but one."""
    end = threading.Event()

    def found(query: str) -> list[str]:
        if query == QUERY:
            end.wait(SECONDS)
        return ["passage"]

    with retriever(found) as stub:
        yield stub
        end.set()


@pytest.fixture
def verdict(words: Words, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Of a run of that environment, which waits in the way `how` in its second step."""
    (tmp_path / "waits.py").write_text(WAITS)

    def of(
        how: str,
        *changes: str,
        until: tuple[str, ...],
        freezes: str = "",
        then: Callable[[], object] = lambda: True,
        **env: str,
    ) -> dict[str, Any]:
        command = words(
            *(f"agent.env={tmp_path}/waits.py:Waits", f"agent.env_kwargs={{how:{how}}}", "agent.episodes=16"),
            *("agent.val_episodes=0", "agent.max_turns=3", "agent.max_turn_tokens=4", "data.train_batch_size=4"),
            *("agent.turn_timeout=1000", "data.max_response_length=60", f"trainer.default_local_dir={tmp_path}/run"),
            *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "retriever.timeout=500", *changes),
            without=("data.train_files", "data.val_files"),
        )
        with short_folder() as folder:
            environ = {**environment(folder), **env}
            with started(environ, folder, "--", *main_ppo(command)) as said:
                eventually(lambda: "debugging job" in said.read_text(), said.read_text, SECONDS)
                with frozen(environ, freezes, then, said):
                    return verdict_of(partial(once_it_stands, environ), "--after", "3", until=until)

    return of


@contextmanager
def frozen(environ: dict[str, str], program: str, then: Callable[[], object], said: Path) -> Iterator[None]:
    """Of the run with this environment, the processes that call themselves so; once `then` is true."""
    stopped: list[int] = []
    if program:
        eventually(then, said.read_text, SECONDS)
        stopped = eventually(lambda: called(program, environ["DEVKIT_HOME"]), said.read_text, SECONDS)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def called(program: str, home: str) -> list[int]:
    """Pids of one run's processes, found by the folder that its devkit has to itself."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            ours = f"DEVKIT_HOME={home}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if ours and (folder / "cmdline").read_bytes().startswith(program.encode()):
                found.append(int(folder.name))
    return found


def once_it_stands(environ: dict[str, str], *options: str) -> tuple[int, str, str]:
    """What `devkit hang` answers, and nothing while a process has only just come there."""
    code, out, err = devkit(environ, "hang", *options)
    return code, out if code == 1 else json.dumps({"not yet": out}), err


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(WAITS.splitlines(), 1) if text in line)


def test_a_step_that_stands_is_named_with_its_line(verdict: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    found = verdict("sleeps", until=("no progress", "turn 2: its step has not returned for"))
    line = line_of("time.sleep")
    assert found["hang"] and f"waits.py:{line} in Waits.sleeps; agent.turn_timeout" in found["sentence"], found
    assert "PPOWorker rank 0 waits for 4 environments, longest for that of row " in found["sentence"]
    assert (found["culprit"]["file"], found["culprit"]["line"]) == (f"{tmp_path}/waits.py", line)


def test_a_retriever_without_an_answer_is_named_with_its_node(
    verdict: Callable[..., dict[str, Any]], slow: Stub
) -> None:
    asks = f"in Waits.searches: it asks the retriever at {slow.url} of node "
    found = verdict("searches", f"retriever.url={slow.url}", until=("no progress", asks, "retriever.timeout=500 s"))
    assert found["hang"] and found["culprit"]["line"] == line_of(f'search(["{QUERY}"])')


ENGINE = (
    *(f"{ROLLOUT}.name=sglang", f"{ROLLOUT}.tensor_model_parallel_size=1"),
    *("algorithm.adv_estimator=rloo", f"{ROLLOUT}.n=2"),
)
TURNS = "PPOWorker rank 0 waits for 8 turns of sglang engine 0 (pid "


def test_an_engine_that_says_nothing_is_named(verdict: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    said = ("no progress", TURNS, "turn 1: it has said 0, and none for")
    found = verdict("plays", *ENGINE, until=said, **stub_in(tmp_path))
    assert found["hang"], found


def test_an_engine_that_is_frozen_is_named(verdict: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    found = verdict(
        "plays",
        *ENGINE,
        until=("is frozen", TURNS),
        freezes="ray::EngineServer",
        then=(tmp_path / "generating").exists,
        **stub_in(tmp_path),
    )
    assert (found["kind"], found["culprit"]["role"]) == ("frozen", "EngineServer"), found


def test_a_retriever_of_the_run_that_is_frozen_is_named(verdict: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "\\"who\\"\\nwaits"}\n')
    asks = "it asks the retriever at http://127.0.0.1:"
    found = verdict("freezes", f"retriever.serve={tmp_path}/corpus.jsonl", until=("is frozen", asks))
    assert (found["kind"], found["culprit"]["role"]) == ("frozen", "RetrieverServer"), found
