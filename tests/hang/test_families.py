"""Processes that wait for children which they have forked, and children that run another program."""

from __future__ import annotations

from typing import Any

from devkit.debug.inworker.words import READERS_TURN, UNREAD
from devkit.hang.records import Verdict
from tests.hang.jobs import RAY, TRAIN, Document, driver, elsewhere, facts, in_collective, process, verdict

PIPE = {"call_in": "read", "target": "a pipe"}
QUEUE = "/usr/lib/python3.11/multiprocessing/queues.py"


def at(line: int, function: str) -> Document:
    return {"file": TRAIN, "line": line, "function": function}


def owner(**changes: Any) -> Document:
    return named(process(facts(None, 56, "Scorer.run", **{**PIPE, **changes}), None, "Scorer"), "0a")


def named(document: Document, worker_id: str) -> Document:
    document["identity"].update(worker_id=worker_id, pid=7)
    return document


def child(pid: int, known: Document, of: Document) -> Document:
    found = process({**known, "forked": {"at": at(43, "Scorer.__init__")}}, of["identity"]["rank"])
    found["identity"] = {**of["identity"], "worker_id": f"{of['identity']['worker_id']}-{pid}", "pid": pid, "parent": 7}
    return found


def orphaned(then: Document | None = None, holder: str | None = None) -> Document:
    lock = {"thread": "MainThread", "lock": "lock 0x7", "at": at(20, "Writer.add"), "holder": holder, "held_at": None}
    return facts(None, 20, "Writer.add", locks=[{**lock, "then": then}])


def test_a_lock_that_was_held_at_the_fork_is_named_with_who_held_it() -> None:
    of = owner()
    held = orphaned({"thread": "metrics", "at": at(25, "Writer.flush")})
    found = verdict([of, child(11, held, of), child(12, held, of), driver()], seconds=20.0)
    assert found.sentence == (
        "no progress: Scorer pid 7 waits at /job/train.py:56 in Scorer.run for its children pids 11, 12 (forked at "
        "/job/train.py:43 in Scorer.__init__), which wait for a lock at /job/train.py:20 in Writer.add: it was "
        "held when they were forked, as by thread metrics, which takes it at /job/train.py:25 in Writer.flush, and no "
        "thread of a child holds it; the driver waits for Scorer pid 7"
    )
    assert found.kind == "io" and found.culprit is not None
    assert (found.culprit.role, found.culprit.pid, found.culprit.line) == ("child of Scorer pid 7", 11, 20)
    assert "2 children of Scorer pid 7: wait for a lock at /job/train.py:20 in Writer.add" in found.evidence


def test_a_thread_of_the_parent_that_goes_on_working_does_not_help_its_children() -> None:
    of = owner()
    starter = {"file": "/usr/lib/python3.11/threading.py", "line": 1002, "function": "Thread._bootstrap"}
    flush = {
        "name": "metrics",
        "frames": [at(25, "Writer.flush"), starter],
        "stopped": False,
        "state": "R",
        "wait": None,
    }

    def working(cpu: float) -> Document:
        known = of["facts"]
        threads = [*known["threads"], {**flush, "cpu": cpu}]
        return {**of, "facts": {**known, "threads": threads, "process": {**known["process"], "cpu": cpu}}}

    stuck = child(11, orphaned({"thread": "metrics", "at": at(25, "Writer.flush")}), of)
    found = verdict([working(1.0), stuck, driver()], [working(20.0), stuck, driver()], seconds=20.0)
    assert found.kind == "io" and "for its child pid 11 (forked at" in found.sentence, found.sentence


def with_a_thread_at_a_lock(of: Document, **main: Any) -> Document:
    """A parent of which a thread that the program has started waits for a lock, for a moment each second."""
    starter = {"file": "/usr/lib/python3.11/threading.py", "line": 1002, "function": "Thread._bootstrap"}
    beats = {"name": "heartbeat", "frames": [at(20, "Writer.add"), starter], "stopped": False, "state": "S", "cpu": 0.0}
    lock = {"thread": "heartbeat", "lock": "lock 0x7", "at": at(20, "Writer.add"), "held_at": at(25, "Writer.flush")}
    known = {**of["facts"], "locks": [{**lock, "holder": "metrics"}], **main}
    return {**of, "facts": {**known, "threads": [*known["threads"], {**beats, "wait": {"call": "futex"}}]}}


def test_the_parent_waits_where_its_main_thread_does_and_not_where_another_one_waits_for_a_lock() -> None:
    of = with_a_thread_at_a_lock(owner())
    found = verdict([of, child(11, orphaned(), of), driver()], seconds=20.0)
    assert found.sentence.startswith(
        "no progress: Scorer pid 7 waits at /job/train.py:56 in Scorer.run for its child pid 11 (forked at"
    ), found.sentence
    assert any(
        line.startswith("Scorer pid 7: waits for data from a pipe at /job/train.py:56") for line in found.evidence
    )


def test_a_parent_that_waits_for_a_lock_is_not_said_to_wait_for_its_children() -> None:
    of = with_a_thread_at_a_lock(owner(call_in="futex", target=""))
    found = verdict([of, child(11, orphaned(), of), driver()], seconds=20.0)
    assert found.sentence.startswith(
        "no progress: Scorer pid 7 waits for a lock at /job/train.py:20 in Writer.add, and has child pid 11 (forked at"
    ), found.sentence


def test_a_child_that_is_joined_before_its_queue_is_read() -> None:
    of = owner(call_in="wait4", target="")
    place = {"thread": "MainThread", "call": "Scorer.run", "at": at(43, "Scorer.run")}
    waits = {**place, "what": UNREAD, "kind": "Thread", "count": 1, "side": 0, "blocks": False, "free": False}
    ending = facts(None, 43, "Scorer.run", primitives=[waits])
    found = verdict([of, child(11, ending, of), driver()], seconds=20.0)
    assert (
        "for its child pid 11 (forked at /job/train.py:43 in Scorer.__init__), which waits at its end for"
        in found.sentence
    )
    assert "its end for what it has put into a multiprocessing queue to be read; the driver waits for" in found.sentence


def test_one_child_and_nobody_known_to_have_held_it() -> None:
    of = owner()
    sentence = verdict([of, child(11, orphaned(), of)], seconds=20.0).sentence
    assert "for its child pid 11 (forked at" in sentence
    assert sentence.endswith(
        "which waits for a lock at /job/train.py:20 in Writer.add: it was held when it was forked, and no thread of "
        "the child holds it"
    )


def test_a_lock_that_a_thread_of_the_child_holds_is_no_matter_of_the_fork() -> None:
    of = owner()
    assert "for its child" not in verdict([of, child(11, orphaned(holder="other"), of)], seconds=20.0).sentence


def test_ray_in_a_forked_child() -> None:
    of = owner(call_in="poll")
    asks = facts(None, 27, "Data.__iter__", inner=[(RAY, 1007, "Worker.get_objects"), (RAY, 3009, "get")])
    sentence = verdict([of, child(11, asks, of), driver()], seconds=20.0).sentence
    assert "for its child pid 11 (forked at" in sentence
    assert (
        "which stands in ray.get at /job/train.py:27 in Data.__iter__: Ray does not work in a forked child" in sentence
    )


def test_a_child_that_was_late_with_its_first_answer_has_not_moved() -> None:
    of = owner(call_in="poll")
    asks = facts(None, 27, "Data.__iter__", inner=[(RAY, 1007, "Worker.get_objects"), (RAY, 3009, "get")])
    main = {"state": "S", "cpu": 0.1}
    late = child(11, {"time": 0.0, "threads": [], "process": asks["process"], "main": main}, of)
    late["facts"]["forked"] = {"at": None}
    sentence = verdict([of, late, driver()], [of, child(11, asks, of), driver()], seconds=20.0).sentence
    assert "Ray does not work in a forked child" in sentence, sentence
    found = verdict([of, child(11, asks, of), driver()], [of, late, driver()], seconds=20.0)
    assert found.kind != "moves" and "working" not in found.sentence, found.sentence


def test_a_child_that_was_there_before_and_is_told_only_now_is_not_new() -> None:
    """Its parent had no time to tell of it. Of another one that is new, nothing else may tell that the job goes on."""
    of = owner(call_in="poll")
    asks = facts(None, 27, "Data.__iter__", inner=[(RAY, 1007, "Worker.get_objects"), (RAY, 3009, "get")])

    def verdict_at(age: float) -> Verdict:
        return verdict([of, driver()], [of, child(11, {**asks, "age": age}, of), driver()], seconds=12.0)

    assert verdict_at(300.0).kind != "moves" and "working" not in verdict_at(300.0).sentence
    assert verdict_at(3.0).kind == "moves"


def test_children_that_wait_for_work_are_not_the_cause() -> None:
    of = owner()
    serves = facts(None, 30, "Scorer.work", inner=[(QUEUE, 365, "SimpleQueue.get")], **PIPE)
    found = verdict([of, child(11, serves, of)], seconds=20.0)
    assert found.sentence.startswith("no progress: Scorer pid 7 waits for data from a pipe at /job/train.py:56")


def test_a_forked_child_that_waits_within_a_library_lacks_the_threads_of_that() -> None:
    of = owner()
    found = verdict([of, child(11, facts(None, 15, "featurize"), of), child(12, facts(None, 15, "featurize"), of)])
    assert found.sentence.endswith(
        "for its children pids 11, 12 (forked at /job/train.py:43 in Scorer.__init__), which wait in a call of C at "
        "/job/train.py:15 in featurize: it may be for threads of a native library, such as "
        "OpenMP's, which are not in a forked child"
    ), found.sentence


def test_a_child_that_rests_in_a_call_of_c_beside_a_parent_that_sleeps_is_not_waited_for() -> None:
    of = owner(call_in="clock_nanosleep")
    found = verdict([of, child(11, facts(None, 15, "pauses"), of), driver()], seconds=20.0)
    assert "for its child" not in found.sentence and "OpenMP" not in found.sentence, found.sentence


def test_who_holds_up_a_collective_is_said_to_wait_for_such_children() -> None:
    late = named(elsewhere(1, 2, 56, call_in="read", target="a pipe"), "0b")
    found = verdict([in_collective(0, 2), late, child(11, orphaned(), late)], seconds=20.0)
    assert found.kind == "io" and found.culprit is not None and found.culprit.rank == 1
    assert "; it waits for its child pid 11 (forked at" in found.sentence, found.sentence


def test_a_child_with_its_ranks_role_and_rank_is_not_taken_for_the_rank() -> None:
    """It is no peer that has not come to where a group is made."""
    ranks = [process(facts(rank, 9, call={"op": "init_process_group", "world_size": 3}), rank) for rank in (0, 1)]
    of = named(ranks[1], "0b")
    found = verdict([*ranks, child(11, facts(1, 30, "serve", **PIPE), of)], seconds=20.0)
    assert found.kind == "missing" and "only 2 have arrived" in found.sentence, found.sentence


def test_another_program_is_evidence_and_no_process_that_does_not_respond() -> None:
    of = owner(call_in="wait4", target="")
    main = {"state": "S", "cpu": 0.1, "wait": {"call": "read", "target": "a pipe"}}
    tool = child(11, {"time": 0.0, "rank": None, "threads": [], "process": {"state": "S"}, "main": main}, of)
    tool["facts"]["forked"], tool["command"] = None, "sort -u"
    found = verdict([of, tool], seconds=20.0)
    assert "Scorer pid 7 waits for the end of a child process" in found.sentence
    assert "child of Scorer pid 7, pid 11 runs sort -u (state S, in read on a pipe)" in found.evidence


def shares(pid: int, of: Document, what: str, **changes: Any) -> Document:
    """A child that waits for what it shares with its siblings, in a call of C."""
    at = {"file": TRAIN, "line": 15, "function": "grade"}
    inner = {"thread": "MainThread", "call": "grade", "at": at, "what": what, "count": 1, "free": False}
    return child(pid, facts(None, 15, "grade", primitives=[inner], **changes), of)


def test_children_all_of_which_wait_for_a_lock_that_they_share() -> None:
    """Who had it was killed: no library's threads are missing."""
    of, taken = owner(), "a multiprocessing.Lock that is taken"
    found = verdict([of, shares(11, of, taken), shares(12, of, taken), driver()], seconds=20.0)
    assert (
        "for its children pids 11, 12 (forked at /job/train.py:43 in Scorer.__init__), which wait for a "
        "multiprocessing.Lock that is taken at /job/train.py:15 in grade; the driver waits for Scorer pid 7"
    ) in found.sentence, found.sentence
    for other in (shares(12, of, taken, cpu=9.0, state="R"), shares(12, of, "a multiprocessing.Event that is not set")):
        last = [of, shares(11, of, taken), other, driver()]
        found = verdict([of, shares(11, of, taken), shares(12, of, taken), driver()], last, seconds=20.0)
        assert "for its children" not in found.sentence and "for its child" not in found.sentence, found.sentence


def reads(pid: int, of: Document, **changes: Any) -> Document:
    """A child that reads from a queue which it shares with its siblings."""
    line = {"file": TRAIN, "line": 13, "function": "grader"}
    inner = {"thread": "MainThread", "call": "grader", "at": line, "what": READERS_TURN, "count": 1, "free": False}
    known = facts(None, 13, "grader", inner=[(QUEUE, 102, "Queue.get")], primitives=[inner], **changes)
    return child(pid, known, of)


def test_children_none_of_which_has_the_turn_to_read_from_their_queue() -> None:
    of = owner()
    found = verdict([of, reads(11, of), reads(12, of), driver()], seconds=20.0)
    assert "for its children pids 11, 12" in found.sentence, found.sentence
    assert (
        "which wait for their turn to read from a multiprocessing queue at /job/train.py:13 in grader: no forked "
        "child that lives has it; who had it may have ended and kept it, as after a kill"
    ) in found.sentence


def test_one_that_reads_has_the_turn_of_the_others() -> None:
    of = owner()
    found = verdict([of, reads(11, of), reads(12, of, **PIPE), driver()], seconds=20.0)
    assert "that lives has it" not in found.sentence, found.sentence
