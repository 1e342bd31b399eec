"""Ranks whose conversations wait: for which environment, at which line; for whose retriever; for which engine."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.debug.inworker import environments
from tests.hang.jobs import Document, driver, entry, facts, frames, group, process, verdict
from tests.trainer import test_agent_talk as talks
from tests.trainer.conversations import Scripted, prompts_of
from tests.trainer.search_stub import retriever
from tests.trainer.test_agent_loop import LIMITS, Echo, played
from trainer.agent.homes import Houses
from trainer.agent.source import Source
from trainer.retrieval import Retriever

POLL = {"call_in": "poll", "target": "a socket"}
GUESS, INSIDE = "/job/guess.py", "/job/trainer/agent/inside.py"


def waiting(**changes: Any) -> Document:
    known = {"row": "row 3 of guess.py:Guess", "sample": 0, "turn": 2, "what": "step", "seconds": 41.0, "pid": 77}
    return {**known, "limit": 60.0, **changes}


def rank(*waits: Document, **changes: Any) -> Document:
    return process(facts(0, 124, "answered", environments=list(waits), **{**POLL, **changes}), 0)


def home(of: Document, *inner: tuple[str, int, str], pid: int = 77, **changes: Any) -> Document:
    """The process of an environment, below one that forks them."""
    known = facts(None, 0, forked={"at": None}, **{"call_in": "recvfrom", "target": "a socket", **changes})
    known["threads"][0]["frames"] = frames(*inner, (INSIDE, 95, "_live"))
    who = {**of["identity"], "worker_id": f"{of['identity']['worker_id']}-{pid}", "pid": pid, "parent": 1000}
    return {**process(known, None), "identity": who}


def test_one_that_stands_is_named_with_row_turn_line_and_limit() -> None:
    of = rank(waiting())
    stuck = home(of, (GUESS, 25, "Guess.ask"), (GUESS, 14, "Guess.step"))
    found = verdict([of, stuck, driver()], seconds=20.0)
    assert found.hang
    assert found.sentence.endswith(
        "; Worker rank 0 waits for the environment of row 3 of guess.py:Guess, turn 2: its step has not returned for "
        "41 s (pid 77) at /job/guess.py:25 in Guess.ask; agent.turn_timeout=60 s"
    )
    assert found.culprit is not None and (found.culprit.pid, found.culprit.line) == (77, 25)


def test_of_several_the_oldest_is_named() -> None:
    of = rank(waiting(sample=1), waiting(row="row 4 of guess.py:Guess", seconds=2.0, pid=78))
    sentence = verdict([of, home(of, (GUESS, 25, "Guess.ask")), driver()], seconds=20.0).sentence
    assert "waits for 2 environments, longest for that of row 3 of guess.py:Guess, sample 1, turn 2: its" in sentence


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"limit": None}, "agent.turn_timeout is null: nothing ends it"),
        ({"turn": 0, "what": "reset"}, "row 3 of guess.py:Guess: its reset has not returned for 41 s (pid 77)"),
        ({"pid": 78}, "for 41 s (pid 78); agent"),  # nobody could look at that one
        ({"pid": 0}, "for 41 s at /job/train.py:124 in answered; it lives in the rank's process"),
        ({"seconds": 0.2}, None),
    ],
)
def test_what_is_known_of_it(changes: Document, said: str | None) -> None:
    of = rank(waiting(**changes))
    sentence = verdict([of, home(of, (GUESS, 25, "Guess.ask")), driver()], seconds=20.0).sentence
    assert said in sentence if said else "environment" not in sentence


def test_one_that_computes_without_end_is_named_too() -> None:
    of = rank(waiting())
    before = home(of, (GUESS, 28, "Guess.ask"), cpu=1.0, call_in="")
    now = home(of, (GUESS, 28, "Guess.ask"), cpu=21.0, call_in="")
    sentence = verdict([of, before, driver()], [of, now, driver()], seconds=20.0).sentence
    assert (
        "is working" in sentence
        and "turn 2: its step has not returned for 41 s (pid 77) at /job/guess.py:28" in sentence
    )


def test_an_environment_between_two_calls_is_given_no_line() -> None:
    of = rank(waiting())
    assert "(pid 77); agent" in verdict([of, home(of), driver()], seconds=20.0).sentence


def test_a_rank_that_first_gave_no_answer_has_made_no_progress_by_that() -> None:
    """It computes, so its own thread comes late to answer: what it then tells was there before."""
    known = {"groups": [group([entry(60)], [0, 1])], "environments": [waiting(pid=0)], "call_in": ""}
    ranks = [process(facts(each, 25, "Guess.ask", **known), each) for each in (0, 1)]
    sentence = verdict([process(None, 0), ranks[1], driver()], [*ranks, driver()], seconds=20.0).sentence
    assert "progress" not in sentence.removeprefix("no progress") and "its step has not returned for 41 s" in sentence


URL = "http://127.0.0.1:8000/retrieve"


def searching(**changes: Any) -> Document:
    return {"url": URL, "seconds": 12.0, "limit": 30.0, "tries": 1, "failure": "", **changes}


CLIENT = "/job/trainer/retrieval/client.py"


def test_a_retriever_without_an_answer_is_named_with_its_node_and_the_line_that_asks() -> None:
    of = rank(waiting())
    stuck = home(of, (CLIENT, 80, "Retriever._ask"), (GUESS, 14, "Guess.step"), searches=[searching()])
    found = verdict([of, stuck, driver()], seconds=20.0)
    assert found.sentence.endswith(
        "its step has not returned for 41 s (pid 77) at /job/guess.py:14 in Guess.step: it asks the retriever at "
        f"{URL} of node 10.0.0.0 and has no answer for 12 s; retriever.timeout=30 s; agent.turn_timeout=60 s"
    )
    assert found.culprit is not None and (found.culprit.pid, found.culprit.line) == (77, 14)


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"tries": 3, "failure": "ConnectionRefusedError"}, "for 12 s, at try 3 after ConnectionRefusedError; retr"),
        ({"url": "http://r:8000/retrieve"}, "at http://r:8000/retrieve, from node 10.0.0.0, and has no answer for"),
        ({"seconds": 0.4}, None),
    ],
)
def test_what_is_known_of_a_search(search: Document, said: str | None) -> None:
    """In a thread of the rank, as the trainer's own search has them."""
    of = rank(waiting(pid=0, thread=True), searches=[searching(**search)])
    sentence = verdict([of, driver()], seconds=20.0).sentence
    assert said in sentence if said else "retriever" not in sentence
    assert sentence.endswith("agent.turn_timeout=60 s"), "a thread has a deadline"


def test_a_rank_that_meets_its_retriever_before_the_first_step() -> None:
    of = rank(searches=[searching()])
    assert verdict([of, driver()], seconds=20.0).sentence.endswith(
        f"; Worker rank 0 asks the retriever at {URL} of node 10.0.0.0 and has no answer for 12 s; "
        "retriever.timeout=30 s"
    )


def speaking(**changes: Any) -> Document:
    of = {"row": "row 3 of guess.py:Guess", "sample": 1, "turn": 2, "name": "sglang engine 0", "node_ip": "10.0.0.0"}
    return {**of, "pid": 88, "turns": 5, "done": 12, "seconds": 40.0, "limit": 1800.0, **changes}


def test_an_engine_that_says_nothing_is_named_with_its_node_and_the_turn_that_has_waited_longest() -> None:
    assert verdict([rank(engine=speaking()), driver()], seconds=20.0).sentence.endswith(
        "; Worker rank 0 waits for 5 turns of sglang engine 0 (pid 88 on 10.0.0.0), longest for that of row 3 of "
        "guess.py:Guess, sample 1, turn 2: it has said 12, and none for 40 s; engine_timeout=1800 s"
    )
    assert "engine" not in verdict([rank(engine=speaking(seconds=0.3)), driver()], seconds=20.0).sentence


def test_a_wait_that_is_old_already_is_looked_at_no_longer() -> None:
    """Two samples are enough: how long the environment has been asked is known."""
    for seconds, decided in ((41.0, True), (4.0, False)):
        of = rank(waiting(seconds=seconds))
        found = verdict([of, home(of, (GUESS, 25, "Guess.ask")), driver()], seconds=2.0)
        assert found.hang and found.decided == decided


class Stuck(Echo):
    def __init__(self) -> None:
        super().__init__()
        self.begun, self.end = threading.Event(), threading.Event()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.begun.set()
        assert self.end.wait(60)
        return super().step(action)


def test_a_rank_tells_of_the_step_that_it_is_in_itself() -> None:
    stuck = Stuck()
    prompts = prompts_of([[]])
    loop = threading.Thread(target=lambda: played(prompts, Scripted(lambda *_: "a"), lambda: stuck))
    loop.start()
    assert stuck.begun.wait(60)
    [found] = environments.describe(sys._current_frames().values())
    stuck.end.set()
    loop.join()
    assert found.pop("seconds") >= 0
    known = {"row": "row 0 of lake", "sample": 0, "turn": 1, "what": "step"}
    assert found == {**known, "pid": 0, "thread": False, "limit": LIMITS.turn_s}
    assert environments.describe(sys._current_frames().values()) == []


SLEEPS = """
import time

class Sleeps:
    def reset(self, *, seed): return "a", {}
    def step(self, action):
        if action == "1": time.sleep(1000)
        return "a", 0.0, True, False, {}
    def close(self): ...
"""


def test_a_rank_tells_of_processes_that_it_waits_for(tmp_path: Any) -> None:
    path = tmp_path / "sleeps.py"
    path.write_text(SLEEPS)
    houses = Houses(Source(f"{path}:Sleeps", SLEEPS), isolate=True)
    try:
        engine = Scripted(lambda context, uid, sample, turn: str(uid))
        limits = LIMITS.__class__(**{**vars(LIMITS), "turn_s": 3.0})
        loop = threading.Thread(target=lambda: played(prompts_of([[]] * 2), engine, limits=limits, home=houses.home))
        loop.start()
        while not (found := environments.describe(sys._current_frames().values())) or found[0]["seconds"] < 1.0:
            assert loop.is_alive()
        assert [(each["row"], each["turn"], each["what"], each["limit"]) for each in found] == [
            ("row 1 of lake", 1, "step", 3.0)
        ]
        assert found[0]["pid"] > 0
        loop.join()
    finally:
        houses.close()


def test_a_process_tells_of_its_searches() -> None:
    with retriever(lambda query: ["found"]) as stub:
        stub.answers = False
        asks = threading.Thread(target=lambda: Retriever(f"{stub.url}?key=1").search(["Faust"]))
        asks.start()
        while not (found := environments.searches(sys._current_frames().values())) or not stub.queries:
            assert asks.is_alive()
        stub.answers = True
        asks.join()
    [search] = found
    assert 0 <= search.pop("seconds") < 30
    assert search == {"url": stub.url, "limit": 30.0, "tries": 1, "failure": ""}
    assert environments.searches(sys._current_frames().values()) == []


def test_a_rank_tells_of_the_engine_that_it_waits_for(tmp_path: Any) -> None:
    engine = talks.Engine(tmp_path, talks.script, hold=lambda turn, engine: turn.row == 1 and turn.number == 1)
    engine.spec = SimpleNamespace(replicas=1, name="sglang")
    engine.info = SimpleNamespace(reports=str(tmp_path), pids=(81, 82))
    engine.part, engine.node_ip = SimpleNamespace(engine=0), "10.0.0.1"  # type: ignore[attr-defined]
    with closing(engine):
        loop = threading.Thread(target=lambda: talks.played(engine, 2))
        loop.start()
        found = None
        while not engine.held or found is None or found["turns"] > 1:  # those of other rows are done soon
            found = environments.engine(sys._current_frames().values())
            assert loop.is_alive()
        engine.answer(engine.held[0])
        loop.join()
    assert found is not None and found.pop("seconds") >= 0 and found.pop("done") >= 1
    of = {"row": "row 1 of lake", "sample": 0, "turn": 2, "turns": 1, "limit": engine.timeout_s}
    assert found == {**of, "name": "sglang engine 0", "node_ip": "10.0.0.1", "pid": 81}


def test_what_a_rank_said_before_it_fell_silent_is_not_forgotten() -> None:
    """Of an engine that is frozen on a busy machine, whose rank answers one time and not the next."""
    of = rank(engine=speaking())
    mute = {key: value for key, value in of.items() if key != "facts"} | {"process": {"state": "S"}, "threads": []}
    found = verdict([of, driver()], [mute, driver()], seconds=20.0)
    assert "; Worker rank 0 waits for 5 turns of sglang engine 0 (pid 88 on 10.0.0.0), longest " in found.sentence


def test_environments_of_a_rank_are_counted_and_no_ids_of_rays() -> None:
    of = rank(waiting())
    of["identity"]["worker_id"] = "0a1b"
    others = [home(of, (GUESS, 25, "Guess.ask"), pid=pid) for pid in (77, 78)]
    for each in others:
        each["identity"]["rank"] = each["facts"]["rank"] = 0
    page = "\n".join(verdict([of, *others, driver()], seconds=20.0).evidence)
    assert "2 children of Worker[0]: " in page and of["identity"]["worker_id"] not in page, page
