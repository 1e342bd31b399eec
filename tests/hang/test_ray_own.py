"""Programs that hang: on the common cluster, or on a Ray of their own.

What a verdict says of a wait does not depend on whose Ray it is in, and a Ray takes longer to start than a verdict.
Of Rays that are gone: `test_ray_gone.py`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.debug.conftest import PROGRAMS, Cluster, Job, environment, eventually, mark, short_folder

pytestmark = pytest.mark.verdicts
DEVKIT = [sys.executable, "-m", "devkit"]
SECONDS = 120.0


@contextmanager
def started(environ: dict[str, str], folder: Path, *words: str) -> Iterator[Path]:
    """`devkit run` with these words; what it has said is in the file."""
    said = folder / "said"
    with said.open("w") as file:
        run = subprocess.Popen([*DEVKIT, "run", *words], env=environ, stdout=file, stderr=file, start_new_session=True)
    try:
        yield said
    finally:
        run.send_signal(signal.SIGINT)
        try:
            run.wait(SECONDS)
        finally:
            run.kill()


def devkit(environ: dict[str, str], *words: str) -> tuple[int, str, str]:
    done = subprocess.run([*DEVKIT, *words], env=environ, capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stdout, done.stderr


def test_a_hang_is_told_and_the_watchdog_tells_it() -> None:
    program = str(PROGRAMS / "hang_calls.py")
    with short_folder() as folder:
        environ = environment(folder)
        with started(environ, folder, "--hang-timeout", "5", "--", sys.executable, program, "itself") as said:
            eventually(lambda: "no progress for 5 s: deadlock: Me pid" in said.read_text(), said.read_text, SECONDS)
            code, out, err = devkit(environ, "hang", "--json", "--after", "3")
        found: dict[str, Any] = json.loads(out or "{}")
        assert (code, found.get("kind")) == (1, "deadlock"), (out, err)
        assert found["culprit"]["line"] == mark("hang_calls.py", "outer")


def test_what_is_held_by_who_waits_for_those_who_ask_for_it() -> None:
    with short_folder() as folder:
        environ = environment(folder)
        with started(environ, folder, "--", sys.executable, str(PROGRAMS / "own_holds.py")) as said:
            eventually(lambda: "debugging job" in said.read_text(), said.read_text, SECONDS)
            found = eventually(lambda: is_deadlock(devkit(environ, "hang", "--json", "--after", "3")[1]), "it", SECONDS)
        assert "2 sim are held by 2 x task outer" in found["sentence"], found["sentence"]
        assert found["culprit"]["line"] == mark("own_holds.py", "holds")


def verdict_of(
    ask: Callable[..., tuple[int, str, str]],
    *options: str,
    until: str | tuple[str, ...],
    is_there: Callable[[], object] = lambda: True,
    shows: tuple[str, ...] = (),
) -> dict[str, Any]:
    """What `devkit hang` says, once its sentence has all of `until` in it, and one of `shows` stands anywhere."""
    heard: list[str] = []
    wanted = (until,) if isinstance(until, str) else until

    def look() -> dict[str, Any] | None:
        assert is_there(), heard
        _, out, err = ask("--json", *options)
        heard[:] = [out[:3000], err]
        answer: dict[str, Any] = json.loads(out or "{}")
        sentence = answer.get("sentence", "")
        said = "\n".join([sentence, *answer.get("evidence", ())])
        there = all(each in sentence for each in wanted) and (not shows or any(each in said for each in shows))
        return answer if there else None

    found: dict[str, Any] = eventually(look, lambda: "\n".join(heard), SECONDS)
    return found


def own_verdict(
    program: str, *options: str, until: str | tuple[str, ...], words: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Of a program that starts its own Ray."""
    with short_folder() as folder:
        environ = environment(folder)
        with started(environ, folder, "--", sys.executable, str(PROGRAMS / program), *words) as said:
            eventually(lambda: "debugging job" in said.read_text(), said.read_text, SECONDS)
            return verdict_of(partial(devkit, environ, "hang"), *options, until=until)


class Judged:
    """Jobs on the common cluster, of which the next few are under way while one is judged: most of it is waiting."""

    AHEAD = 3

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = replace(cluster, environ={**cluster.environ, "RAY_ADDRESS": cluster.gcs_address})
        self._jobs: dict[tuple[str, ...], Job] = {}

    def verdict(
        self,
        program: str,
        *options: str,
        until: str | tuple[str, ...],
        words: tuple[str, ...] = (),
        first: bool = False,
        shows: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """`first`: what it says the next time, whatever that is. The others: see `verdict_of`."""
        at = IN_TURN.index((program, *words))
        for each in IN_TURN[at : at + 1 + self.AHEAD]:
            if each not in self._jobs:
                self._jobs[each] = Job(self._cluster, "--", sys.executable, str(PROGRAMS / each[0]), *each[1:])
        job = self._jobs[IN_TURN[at]].joined(SECONDS)
        try:
            ask = partial(devkit, self._cluster.environ, "hang", "--job", job.id)
            found = verdict_of(ask, *options, until=until, is_there=lambda: job.process.poll() is None, shows=shows)
            return json.loads(ask("--json", *options)[1]) if first else found
        finally:
            job.process.terminate()  # it ends while the next one is judged

    def close(self) -> None:
        for job in self._jobs.values():
            job.process.terminate()
        for job in self._jobs.values():
            job.kill()


@pytest.fixture(scope="module")
def judged(cluster: Cluster) -> Iterator[Judged]:
    made = Judged(cluster)
    yield made
    made.close()


def test_a_loop_that_looks_for_a_name_is_told_where_that_is(judged: Judged) -> None:
    found = judged.verdict("own_polls.py", "--after", "3", until="looks for the actor")
    assert (found["kind"], found["culprit"]["line"]) == ("stuck", mark("own_polls.py", "looks")), found["sentence"]
    assert "in namespace 'mine'" in found["sentence"] and "pass namespace='other'" in found["sentence"]


WAITS = {
    "permits": (
        "stuck",
        "an asyncio.Semaphore with no permit left",
        "of its calls wait there; no call that is under",
    ),
    "barrier": ("stuck", "a threading.Barrier for 3, at which 2 have arrived", "all 2 calls that it takes at once"),
    "lock": (
        "deadlock",
        "for an asyncio.Lock, which Weights.publish holds",
        "for Replica.update, which runs in Replica",
    ),
    "polls": (
        "stuck",
        "in the loop until `version >= 1` (version = 0)",
        "behind Learner.train, whose arguments are not there yet",
    ),
    "blocks": ("moves", "that blocks the event loop of its actor", "but Judge pid"),
    "retries": ("failing", "Env fails again and again, ", "times in"),
    "restarts": ("failing", "for Engine.generate, whose actor is not running", "Engine fails again and again, "),
    "hook": ("io", " for the lock of ", "in warm_cache; the driver holds it, which waits for"),  # one worker, or two
    "command": ("stuck", "Ray has been starting task produce", "error: no such package"),
    "queue": ("stuck", "a ray.util.queue.Queue that is full", "in produce"),
    "stream": (
        "stuck",
        "waits for Ray to go on with its generator",
        "in Rollout.stream, and the driver waits for stats of it",
    ),
    "coroutine": ("deadlock", "for Manager.report, queued at Manager pid", "whose event loop a ray.get in a coroutine"),
    "thread": ("stuck", "its thread prefetch ended before", "Loader.next"),
    "task": ("stuck", "its background task Server.update has failed", "nobody has awaited it: KeyError: 'grad_norm'"),
    "drives": ("stuck", "the driver sleeps at ", "in control, in the loop `while len(results) < 8`"),
    "handles": ("stuck", ", handling KeyError: 'a' at ", "in Store.lookup, and the driver waits for"),
    "leaks": (
        "stuck",
        "; 2 of its calls wait for an asyncio.Semaphore with no permit left",
        "Episodes.run has failed meanwhile: ValueError: no text",
    ),
    "behind": (
        "stuck",
        "for Streamer.set_weights, queued at Streamer pid",
        "which take one call at a time and are in the loop `while self.running` (self.running = True)",
    ),
    "joined": (
        "stuck",
        "for Hub.run, which is in the loop `while not self.closing.is_set()` (self.closing = <Event not set>)",
        "call of close (",
    ),
    "lists": ("stuck", "the driver lists the named actors of namespace 'trainer'", "in namespace 'serving' there is"),
}


# Workers that do not come up take the places in which a node starts some, until a minute later.
ALONE = ("command",)


@pytest.mark.parametrize("how", WAITS)
def test_what_a_wait_that_does_not_end_is_for(judged: Judged, how: str) -> None:
    kind, says, more = WAITS[how]
    verdict = own_verdict if how in ALONE else judged.verdict
    found = verdict("own_waits.py", "--after", "5", until=(says, more), words=(how,))
    assert found["kind"] == kind or (how == "retries" and not found["hang"]), found  # it may have been at work
    if how not in ("command", "stream"):
        assert f"own_waits.py:{mark('own_waits.py', how)} in " in json.dumps(found), found


STATES = {
    "budget": (
        "waits for an asyncio.Event that is not set",
        ["has most = 1024, used = 0, waiting = [(1036, <Event not set>), (1036, <Event not set>)]"],
    ),
    "replies": (
        "waits for an asyncio.Future that is not done",
        [
            "has futures = {",
            "7: <Future pending>",
            "in Asked.listen under `if reply is not None`  # reply = None",
            "rid = '7'",
        ],
    ),
    "asks": ("is in the loop `while len(rows) < 9` (rows = {", ["ready = [<ObjectRef "]),
}


@pytest.mark.parametrize("how", STATES)
def test_what_actors_and_functions_keep_is_shown(judged: Judged, how: str) -> None:
    says, shown = STATES[how]
    found = judged.verdict("own_states.py", "--after", "4", until=says, words=(how,))
    evidence = "\n".join(found["evidence"])
    assert [each for each in shown if each not in evidence] == [], evidence
    assert (found["kind"], found["culprit"]["line"]) == ("stuck", mark("own_states.py", how)), found["sentence"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("away", "has not reached init_process_group: it sleeps"),
        ("twice", "for 3 ranks, as ranks 0, 1, 1: rank 1 is taken by Trainer"),
    ],
)
def test_ranks_that_meet_as_the_environment_says(judged: Judged, how: str, says: str) -> None:
    found = judged.verdict("own_meets.py", "--after", "3", until=says, words=(how,))
    line = mark("own_meets.py", "away" if how == "away" else "meets")
    assert (found["kind"], found["culprit"]["line"]) == ("missing", line), found["sentence"]
    assert how == "away" or "and rank 2 is missing" in found["sentence"], found["sentence"]


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ("pipe", "io", "waits to write to a pipe"),
        ("each", "deadlock", ": they wait for each other"),
    ],
)
def test_whoever_is_at_the_other_end_is_told_with_what_it_does(judged: Judged, how: str, kind: str, says: str) -> None:
    found = judged.verdict("own_ends.py", "--after", "3", until=says, words=(how,))
    sentence = found["sentence"]
    assert found["kind"] == kind and f"own_ends.py:{mark('own_ends.py', 'asks')}" in sentence, sentence
    if how == "pipe":
        assert ", which waits to write to a pipe" in sentence and "Launcher pid" in sentence, sentence
        assert sentence.count("its other end is Launcher pid") == 1 and "'s, which is idle" in sentence, sentence
    else:
        assert f"own_ends.py:{mark('own_ends.py', 'confirms')}" in sentence, sentence


def test_a_send_and_a_receive_with_other_tags(judged: Judged) -> None:
    found = judged.verdict("own_meets.py", "--after", "3", until="mismatched transfers", words=("tags",))
    assert (found["kind"], found["culprit"]["line"]) == ("mismatch", mark("own_meets.py", "sends"))
    assert f"own_meets.py:{mark('own_meets.py', 'receives')}" in found["sentence"], found["sentence"]
    assert found["sentence"].endswith("the tags differ")


def test_children_none_of_which_has_the_turn_to_read_from_their_queue(judged: Judged) -> None:
    found = judged.verdict("own_turns.py", "--after", "3", until="no forked child that lives has it")
    assert (found["kind"], found["culprit"]["line"]) == ("io", mark("own_turns.py", "turn")), found["sentence"]
    assert f"own_turns.py:{mark('own_turns.py', 'waits')}" in found["sentence"], found["sentence"]


def test_the_values_that_a_line_looks_at_are_told(judged: Judged) -> None:
    says = "the predicate of an asyncio.Condition"
    found = judged.verdict("own_looks.py", "--after", "3", until=says, words=("predicate",))
    looks = "await self.changed.wait_for(lambda: self.version >= wanted)  # self.version = 1, wanted = 118"
    assert looks in map(str.strip, found["evidence"]), found
    assert found["culprit"]["line"] == mark("own_looks.py", "predicate"), found["sentence"]


def test_a_loop_that_gets_nowhere_shows_that_what_it_looks_at_stays(judged: Judged) -> None:
    # The first answer may be of a look before which there was none in the loop.
    shows = ("as before", "which has come round")
    found = judged.verdict("own_looks.py", until="Packer pid", words=("spins",), shows=shows)
    loop, values = (
        "in the loop `while len(packed) < len(self.rows)`",
        "packed = list of 30: [0, 1, ..., 29], self.rows = list of 40: [0, 1, ..., 39]",
    )
    if found["kind"] == "livelock":  # it was seen to come round before the first answer
        assert f"{loop} ({values})" in found["sentence"] and "which has come round" in found["sentence"], found
        return
    assert (found["kind"], found["hang"]) == ("moves", False), found["sentence"]
    assert f"{loop}  # {values}, as before" in map(str.strip, found["evidence"]), found


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("lock", "it was held when they were forked, as by thread "),
        ("ray", "Ray does not work in a forked child"),
    ],
)
def test_children_that_were_forked_are_named_with_what_they_lack(judged: Judged, how: str, why: str) -> None:
    program = "own_forks.py"
    fork = f"{program}:{mark(program, 'fork')}"  # once they have answered themselves
    found = judged.verdict(program, "--after", "3", until=fork, words=(how,))
    sentence = found["sentence"]
    assert (found["kind"], found["culprit"]["line"]) == ("io", mark(program, how)), sentence
    assert "for its children pids" in sentence and why in sentence, sentence
    assert f"own_forks.py:{mark(program, 'waits')}" in sentence and "the driver waits for Owner pid" in sentence
    if how == "lock":
        assert "thread flusher, which takes it at" in sentence and f"{program}:{mark(program, 'takes')}" in sentence
    [owner] = [each for each in found["ranks"] if each["role"] == "Owner"]
    children = [each for each in found["ranks"] if each["role"] == f"child of Owner pid {owner['pid']}"]
    assert len(children) == 2 and found["culprit"]["pid"] in {each["pid"] for each in children}
    stacks = [each for each in found["stacks"]["ranks"] if each["parent"] == owner["pid"]]
    assert [each["threads"][0]["frames"] != [] for each in stacks] == [True, True]


WORKS = {
    "circles": ("livelock", "is in the loop `while len(kept) < 8` (kept = {}) at", "which has come round"),
    "parses": ("livelock", "is in the loop `while at < len(text)` (at = 2, text = '{}x{}') at", "the driver waits for"),
    "pooled": ("silent", "has held its Python's lock (the GIL) for", "the driver waits for PooledVerifier"),
    "regex": ("silent", "has held its Python's lock (the GIL) for", "the driver waits for Verifier"),
}


@pytest.mark.parametrize("how", WORKS)
def test_work_that_never_ends_is_told_apart_from_work(judged: Judged, how: str) -> None:
    kind, says, more = WORKS[how]
    first = how == "circles"  # a user asks once
    found = judged.verdict(
        "own_works.py", "--after", "3", until="Sampler" if first else more, words=(how,), first=first
    )
    assert says in found["sentence"], found["sentence"]
    if how == "circles" and found["kind"] == "stuck":  # the sampler was between two calls, each time that it was seen
        assert "it asks Ray for results, and no other process is seen at work" in found["sentence"], found
    else:
        assert found["kind"] == kind and more in found["sentence"], found["sentence"]
    if how == "parses":  # at any line of the loop
        assert found["culprit"]["function"] == "Parser.braces", found
    else:
        assert found["culprit"]["line"] == mark("own_works.py", how), found
    if how == "regex":  # which nobody but a neighbour can say
        assert any(each.strip().startswith("found = BOXED.findall(text)  # ") for each in found["evidence"]), found


IN_TURN = [  # as above
    ("own_polls.py",),
    *(("own_waits.py", how) for how in WAITS if how not in ALONE),
    *(("own_states.py", how) for how in STATES),
    *(("own_meets.py", how) for how in ("away", "twice")),
    *(("own_ends.py", how) for how in ("pipe", "each")),
    ("own_meets.py", "tags"),
    ("own_turns.py",),
    *(("own_looks.py", how) for how in ("predicate", "spins")),
    *(("own_forks.py", how) for how in ("lock", "ray")),
    *(("own_works.py", how) for how in WORKS),
]


@pytest.mark.parametrize("words", [(), ("alone",)], ids=["a dashboard", "none"])
def test_a_placement_group_that_waits_says_who_holds_what(words: tuple[str, ...]) -> None:
    found = own_verdict("own_groups.py", "--after", "3", until="placement group second", words=words)
    assert found["kind"] == "resource" and found["hang"], found["sentence"]
    said = "the placement group first of job 01000000, in which no actor and no task is, holds 2 CPU"
    assert said in found["sentence"], found["sentence"]


def test_a_run_that_spills_is_slow_and_by_whom() -> None:
    found = own_verdict("own_spills.py", until="object store of")
    assert (found["kind"], found["hang"]) == ("moves", False), found["sentence"]
    line = mark("own_spills.py", "puts")
    assert "but it is slow: object store of" in found["sentence"], found
    assert "Loader pid" in found["sentence"] and f"own_spills.py:{line} in Loader.load" in found["sentence"], found


def is_deadlock(out: str) -> dict[str, Any] | None:
    found: dict[str, Any] = json.loads(out or "{}")
    return found if found.get("kind") == "deadlock" else None
