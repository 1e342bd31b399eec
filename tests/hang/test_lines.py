"""The lines of the program under the evidence, with their values."""

from __future__ import annotations

from typing import Any

from devkit.debug.inworker.words import ASLEEP
from devkit.hang import view
from devkit.hang.answers import read_sample
from devkit.hang.chains import judged
from tests.hang.jobs import NOW, TRAIN, Document, answer, driver, facts, process, verdict


def line(number: int, text: str, function: str = "step", loop: Document | None = None, **values: str) -> Document:
    at = {"file": TRAIN, "line": number, "function": function}
    return {"at": at, "text": text, "values": values, "loop": loop}


def waits(rank: int, *lines: Document, **changes: Any) -> Document:
    said = [{"thread": "MainThread", "lines": list(lines)}]
    return process(facts(rank, lines[0]["at"]["line"], statements=said, **changes), rank)


def test_a_line_stands_under_its_wait_and_callers_that_show_a_value_under_it() -> None:
    inner = line(20, "self.ready.wait(seconds)", seconds="30")
    caller, main = line(40, "self.fetch(118)"), line(50, "main()")
    found = verdict([waits(0, inner, caller, main), driver()], seconds=20.0)
    at = next(number for number, each in enumerate(found.evidence) if each.startswith("Worker rank 0: waits"))
    assert found.evidence[at + 1 :][:2] == (
        "    self.ready.wait(seconds)  # seconds = 30",
        f"    called at {TRAIN}:40: self.fetch(118)",
    )
    assert not any("main()" in each for each in found.evidence), "it shows no value"


def test_equal_lines_are_one_and_different_values_are_told() -> None:
    several = [waits(rank, line(20, "recv(tag)", tag=str(9 + rank), size="8")) for rank in range(5)]
    found = verdict([*several, driver()], seconds=20.0)
    assert found.evidence.count("    recv(tag)  # tag = 9, 10, 11 or 2 other values, size = 8") == 1, found.evidence


def test_what_it_is_in_the_handler_of_is_told_in_the_sentence_and_below() -> None:
    error = {"said": "KeyError: 'a'", "at": {"file": TRAIN, "line": 5, "function": "lookup"}}
    [known] = [process(facts(1, 42, call_in="clock_nanosleep"), 1)]
    known["facts"]["statements"] = [
        {"thread": "MainThread", "lines": [{**line(42, "time.sleep(30)"), "handles": error}]}
    ]
    found = verdict([driver(), known], patience=1.0)
    assert f"sleeps at {TRAIN}:42 in step, handling KeyError: 'a' at {TRAIN}:5 in lookup" in found.sentence, found
    assert f"    handling KeyError: 'a', raised at {TRAIN}:5 in lookup" in found.evidence


def test_an_error_on_its_way_through_the_end_of_a_with_is_not_said_to_be_handled_or_caught() -> None:
    at = {"file": TRAIN, "line": 25, "function": "step"}
    stands = {**line(20, "with ThreadPoolExecutor(1) as pool:"), "handles": {"said": "TimeoutError", "at": at}}
    row = {"kind": "TimeoutError", "text": "", "at": at, "by": at, "count": 1, "seconds": 0.0, "ago": 30.0}
    found = verdict([waits(0, stands, caught=[row]), driver()], seconds=20.0)
    assert f"    TimeoutError, raised at {TRAIN}:25 in step, has not left that `with` yet" in found.evidence, (
        found.evidence
    )
    assert not any("has caught" in each or "handling" in each for each in found.evidence), found.evidence


def test_a_loop_whose_condition_holds_no_more_says_so() -> None:
    loop = {"loop": "while self.flying >= self.limit", "values": {"self.flying": "0"}, "over": True}
    found = verdict([waits(0, line(20, "await self.freed.wait()", loop=loop)), driver()], seconds=20.0)
    said = "    in the loop `while self.flying >= self.limit`, which no longer holds  # self.flying = 0"
    assert said in found.evidence, found.evidence


def test_a_loop_that_passes_over_what_fails_says_so() -> None:
    loop = {
        "loop": "until ready(url)",
        "values": {"url": "'http://a'"},
        "passes_over": {"errors": "OSError", "line": 24},
    }
    found = verdict([waits(0, line(20, "time.sleep(1.0)", loop=loop)), driver()], seconds=20.0)
    said = f"    in the loop until `ready(url)`, which passes over OSError at {TRAIN}:24  # url = 'http://a'"
    assert said in found.evidence, found.evidence


def test_a_process_at_another_line_than_its_statement_has_none() -> None:
    moved = [{"thread": "MainThread", "lines": [line(21, "later()", x="1")]}]
    found = verdict([process(facts(0, 20, statements=moved), 0), driver()], seconds=20.0)
    assert not any("later" in each for each in found.evidence)
    unreadable = [{"thread": "MainThread", "lines": [line(20, "", x="1")]}]
    found = verdict([process(facts(0, 20, statements=unreadable), 0), driver()], seconds=20.0)
    assert not any("x = 1" in each for each in found.evidence)


def test_one_at_work_that_was_a_line_further_a_moment_later_has_that_line_with_its_number() -> None:
    def at_work(cpu: float) -> list[Document]:
        further = [{"thread": "MainThread", "lines": [line(21, "rewards = score(batch)", batch="list of 8")]}]
        return [process(facts(0, 20, "step", statements=further, cpu=cpu, state="R"), 0), driver()]

    found = verdict(at_work(1.0), at_work(9.0))
    assert f"    {TRAIN}:21: rewards = score(batch)  # batch = list of 8" in found.evidence, found.evidence


def test_the_loop_of_who_waits_for_the_work_is_told_while_nothing_in_it_changes() -> None:
    def job(cpu: float, kept: str) -> list[Document]:
        loop = {"loop": "while len(kept) < wanted", "values": {"kept": kept, "wanted": "8"}, "whole": kept}
        said = [{"thread": "MainThread", "lines": [line(12, "ray.get(refs)", "main", loop=loop)]}]
        asks = driver()
        asks["facts"]["statements"] = said
        return [asks, process(facts(0, 20, cpu=cpu, state="R"), 0)]

    still = verdict(job(1.0, "{}"), job(9.0, "{}"))
    loop = "`while len(kept) < wanted` (kept = {}, wanted = 8), and nothing of that has changed"
    assert not still.hang and still.sentence.endswith(f"; meanwhile the driver is in the loop {loop}"), still.sentence
    assert "meanwhile" not in verdict(job(1.0, "{}"), job(9.0, "dict of 1")).sentence


def test_what_the_culprit_wrote_last_is_evidence() -> None:
    wrote = [{"line": "UserWarning: the pool has no room", "last": False}, {"line": "step 3", "last": True}]
    found = verdict([process(facts(0, 20, wrote=wrote), 0), driver()], seconds=20.0)
    assert found.evidence[-2:] == (
        "Worker rank 0 wrote: UserWarning: the pool has no room",  # and something else after it
        "Worker rank 0 last wrote: step 3",
    )
    moving = verdict(
        [process(facts(0, 20, wrote=wrote, cpu=at), 0) for at in (1.0,)],
        [process(facts(0, 20, wrote=wrote, cpu=9.0), 0)],
    )
    assert not moving.hang and not any("last wrote" in each for each in moving.evidence)


def test_a_loop_at_work_shows_whether_what_it_looks_at_changes() -> None:
    def at_work(cpu: float, done: str) -> list[Document]:
        loop = {"loop": "while done < total", "values": {"done": done, "total": "7"}, "whole": done}
        one = waits(0, line(20, "done += 0", loop=loop), inner=[], call_in="", cpu=cpu)
        return [one, driver()]

    still = verdict(at_work(1.0, "3"), at_work(9.0, "3"))
    assert still.kind == "moves" and "    in the loop `while done < total`  # done = 3, total = 7, as before" in (
        still.evidence
    )
    assert "in step, in the loop `while done < total`, where nothing that this looks at has changed" in still.sentence
    moving = verdict(at_work(1.0, "3"), at_work(9.0, "4"))
    assert "    in the loop `while done < total`  # done = 4, total = 7" in moving.evidence
    assert "in the loop" not in moving.sentence


def test_what_other_threads_and_coroutines_of_it_wait_for_stands_below() -> None:
    at = {"file": TRAIN, "line": 28, "function": "generate"}
    gate = {"thread": "task 7", "call": "generate", "at": at, "what": "an asyncio.Event that is not set", "free": False}
    standing = [
        {"thread": "MainThread", "lines": [line(20, "await self.idle.wait()")]},
        {"thread": "task 7", "lines": [line(28, "await self.gate.wait()", "generate", closed="True")]},
    ]
    known = facts(0, 20, primitives=[{**gate, "count": 4}], statements=standing)
    found = verdict([process(known, 0), driver()], seconds=20.0)
    place = next(number for number, each in enumerate(found.evidence) if each.startswith("Worker rank 0: waits"))
    assert found.evidence[place + 1 : place + 4] == (
        "    await self.idle.wait()",
        f"    4 more wait for an asyncio.Event that is not set at {TRAIN}:28 in generate",
        "        await self.gate.wait()  # closed = True",
    )


def test_a_thread_that_computes_beside_the_one_that_waits_is_named_with_its_line() -> None:
    def sample(cpu: float) -> list[Document]:
        loop = {"loop": "while b", "values": {"b": "nan"}, "whole": "nan"}
        known = facts(0, 20, cpu=1.0)
        side = {"file": TRAIN, "line": 13, "function": "simplify"}
        thread = {"name": "pool_0", "frames": [side], "stopped": False, "state": "R", "cpu": cpu}
        known["threads"].append(thread)
        known["process"]["cpu"] = cpu
        known["statements"] = [
            {"thread": "MainThread", "lines": [line(20, "with pool:")]},
            {"thread": "pool_0", "lines": [line(13, "(a, b) = (b, a % b)", "simplify", loop, a="nan", b="nan")]},
        ]
        return [process(known, 0), driver()]

    found = verdict(sample(1.0), sample(9.0))
    place = f"in its thread pool_0 at {TRAIN}:13 in simplify, in the loop `while b`, where nothing"
    assert found.sentence.startswith(f"no hang seen in 2.0 s: Worker rank 0 is working {place}"), found.sentence
    at = found.evidence.index(f"    its thread pool_0 is working at {TRAIN}:13 in simplify")
    assert found.evidence[at : at + 4] == (
        f"    its thread pool_0 is working at {TRAIN}:13 in simplify",
        "        (a, b) = (b, a % b)  # a = nan, b = nan",
        "        in the loop `while b`  # b = nan, as before",
        f"driver: waits for a Ray result at {TRAIN}:12 in main",
    )


def test_values_of_some_of_many_calls_are_not_given_as_those_of_all() -> None:
    at = {"file": TRAIN, "line": 20, "function": "step"}
    wait = {"thread": "task 0", "call": "step", "at": at, "what": "an asyncio.Event that is not set", "free": False}
    said = [{"thread": f"task {n}", "lines": [line(20, "await ready.wait(n)", n=str(n))]} for n in range(5)]
    for each in said:
        each["lines"][0]["locals"] = {"rows": "[]"}
    keeps = {"size": "4"}
    known = facts(0, 20, statements=said, primitives=[{**wait, "count": 1000}], keeps=keeps)
    found = verdict([process(known, 0), driver()], seconds=20.0)
    first = found.evidence.index("    await ready.wait(n)  # n = 0, 1, 2 or 2 other values")
    assert found.evidence[first + 1] == "    these values are of 5 of 1000 that wait there"
    assert f"    at {TRAIN}:20 in step, of 5 of 1000 that wait there: rows = []" in found.evidence
    all_of_them = facts(0, 20, statements=said, primitives=[{**wait, "count": 5}], keeps=keeps)
    found = verdict([process(all_of_them, 0), driver()], seconds=20.0)
    assert not any("that wait there" in each for each in found.evidence)


def test_another_thread_that_waits_is_named() -> None:
    at = {"file": TRAIN, "line": 28, "function": "pull"}
    wait = {"call": "pull", "at": at, "what": "an item from a queue.Queue that is empty", "free": False, "count": 1}
    for name, said in (("Thread-1 (pull)", "its thread Thread-1 (pull) waits"), ("task 7", "another coroutine waits")):
        known = facts(0, 20, primitives=[{**wait, "thread": name}])
        found = verdict([process(known, 0), driver()], seconds=20.0)
        place = f"an item from a queue.Queue that is empty at {TRAIN}:28 in pull"
        assert f"    {said} for {place}" in found.evidence, found.evidence


def in_an_executor(cpu: float, joins: str = "pool_0", line_there: int = 13) -> list[Document]:
    """A worker whose main thread stands at the end of an executor's `with`, and a thread of which computes."""
    known = facts(0, 20, cpu=1.0)
    side = {"file": TRAIN, "line": line_there, "function": "simplify"}
    known["threads"].append({"name": "pool_0", "frames": [side], "stopped": False, "state": "R", "cpu": cpu})
    known["process"]["cpu"] = cpu
    known["statements"] = [
        {"thread": "MainThread", "lines": [line(20, "with ThreadPoolExecutor(1) as pool:")]},
        {"thread": "pool_0", "lines": [line(line_there, "expr = rule(expr)", "simplify", expr="'b'")]},
    ]
    wait = {"thread": "MainThread", "call": "step", "at": {"file": TRAIN, "line": 20, "function": "step"}}
    what = f"the end of thread {joins}, which is at train.py:13"
    known["primitives"] = [{**wait, "what": what, "count": 1, "free": False, "joins": joins, "closes": True}]
    return [process(known, 0), driver()]


def test_who_waits_for_the_end_of_a_thread_is_not_at_work_at_that_line() -> None:
    found = verdict(in_an_executor(1.0), in_an_executor(9.0))
    assert found.sentence == (
        f"no hang seen in 2.0 s: Worker rank 0 is working in its thread pool_0 at {TRAIN}:13 in simplify, for whose "
        f"end it waits at {TRAIN}:20 in step"
    ), found.sentence
    at = found.evidence.index(f"rank 0: waits for the end of thread pool_0 at {TRAIN}:20 in step")
    assert found.evidence[at + 1 : at + 5] == (
        "    with ThreadPoolExecutor(1) as pool:",
        "    the end of an executor's `with` waits for its threads, whatever time limit there was for their results",
        f"    its thread pool_0 is working at {TRAIN}:13 in simplify",
        "        expr = rule(expr)  # expr = 'b'",
    ), found.evidence
    assert found.culprit is not None and (found.culprit.line, found.culprit.function) == (13, "simplify")
    other = verdict(in_an_executor(1.0, "pool_1"), in_an_executor(9.0, "pool_1")).sentence
    assert other.endswith(f"in its thread pool_0 at {TRAIN}:13 in simplify"), "nobody is seen to wait for that one"


def test_the_table_has_the_line_of_the_thread_that_works() -> None:
    first, now = (read_sample(answer(in_an_executor(cpu), at)) for cpu, at in ((1.0, NOW), (9.0, NOW + 2.0)))
    [worker, _] = judged(first, now, 10.0).states
    row = view.progress(worker)
    assert (row.doing, row.line, row.function) == ("busy", 13, "simplify")


def test_a_signals_handler_was_called_by_no_line() -> None:
    at = {"file": TRAIN, "line": 20, "function": "save"}
    inner = {"at": at, "text": "save()", "values": {}, "signal": "SIGUSR1"}
    outer = {"at": {**at, "line": 30}, "text": "time.sleep(pause)", "values": {"pause": "1"}}
    known = facts(1, 20, "save", call_in="futex", statements=[{"thread": "MainThread", "lines": [inner, outer]}])
    assert f"    interrupted by SIGUSR1 at {TRAIN}:30: time.sleep(pause)  # pause = 1" in (
        verdict([driver(), process(known, 1)], patience=1.0).evidence
    )


def test_who_could_end_a_wait_is_told() -> None:
    at = {"file": TRAIN, "line": 20, "function": "step"}
    wait = {
        "thread": "MainThread",
        "call": "step",
        "at": at,
        "what": "an Event that is not set",
        "count": 1,
        "free": False,
    }
    ends = {
        "what": "self.idle",
        "how": "set",
        "at": [{"line": 31, "function": "S.generate"}, {"line": 40, "function": "S.end"}],
    }
    said = {"thread": "MainThread", "lines": [{**line(20, "await self.idle.wait()"), "ends": ends}]}
    known = facts(0, 20, primitives=[wait], statements=[said])
    found = verdict([process(known, 0), driver()], seconds=20.0)
    assert f"    self.idle is set at {TRAIN}:31 in S.generate and {TRAIN}:40 in S.end" in found.evidence, found.evidence
    said["lines"][0]["ends"] = {**ends, "at": []}  # type: ignore[index]
    found = verdict([process(known, 0), driver()], seconds=20.0)
    assert f"    self.idle is set nowhere in {TRAIN} by that name" in found.evidence
    said["lines"][0]["ends"] = {**ends, "what": "done", "at": []}  # type: ignore[index]
    found = verdict([process(known, 0), driver()], seconds=20.0)
    assert not any("nowhere" in each for each in found.evidence), "it may be set by another name"
    known["primitives"] = []
    assert not any("self.idle is set" in each for each in verdict([process(known, 0), driver()], seconds=20.0).evidence)


def test_under_which_condition_a_wait_could_end_and_what_undoes_it() -> None:
    at = {"file": TRAIN, "line": 20, "function": "step"}
    wait = {"thread": "MainThread", "call": "step", "at": at, "what": "an Event", "count": 1, "free": False}
    add = {"line": 31, "function": "S.add", "under": "room > 0", "values": {"room": "0"}}
    ends = {"what": "self.filled", "how": "set", "at": [add], "undone": [{"line": 19, "function": "S.sample"}]}
    said = {"thread": "MainThread", "lines": [{**line(20, "self.filled.wait()"), "ends": ends}]}
    found = verdict([process(facts(0, 20, primitives=[wait], statements=[said]), 0), driver()], seconds=20.0)
    place = found.evidence.index(f"    self.filled is set at {TRAIN}:31 in S.add under `if room > 0`  # room = 0")
    assert found.evidence[place + 1] == f"    self.filled is cleared at {TRAIN}:19 in S.sample"
    add |= {"under": "", "unless": "room <= 0"}
    found = verdict([process(facts(0, 20, primitives=[wait], statements=[said]), 0), driver()], seconds=20.0)
    assert f"    self.filled is set at {TRAIN}:31 in S.add unless `room <= 0`  # room = 0" in found.evidence


def test_what_the_culprit_and_other_actors_keep() -> None:
    def actor(rank: int, number: int, role: str, keeps: Document, **known: str) -> Document:
        said = [{"thread": "MainThread", "lines": [{**line(number, "wait()"), "locals": known}]}]
        return process(facts(rank, number, keeps=keeps, statements=said), rank, role)

    blamed = actor(0, 20, "Engine", {"used": "0", "most": "1024"}, need="1036")
    like, other = actor(1, 20, "Engine", {"used": "7"}), process(facts(2, 0, keeps={"version": "3"}), 2, "Store")
    found = verdict([blamed, like, other, driver()], seconds=20.0)
    assert found.evidence[-3:] == (
        "Engine rank 0 has used = 0, most = 1024",
        f"    at {TRAIN}:20 in step: need = 1036",
        "Store rank 2 has version = 3",
    )
    stores = [
        process(facts(rank, 0, keeps={"size": "9", "rows": rows}), rank, "Store") for rank, rows in enumerate("40")
    ]
    found = verdict([blamed, *stores, driver()], seconds=20.0)
    assert found.evidence[-1] == "Store rank 0 | rank 1 have size = 9, rows = 4 | 0"


def test_equal_waits_of_several_are_one() -> None:
    at = {"file": TRAIN, "line": 28, "function": "generate"}
    one = {"call": "generate", "at": at, "what": "an asyncio.Event that is not set", "free": False, "count": 1}
    known = facts(0, 20, primitives=[{**one, "thread": f"task {number}"} for number in range(3)])
    found = verdict([process(known, 0), driver()], seconds=20.0)
    assert [each for each in found.evidence if "wait for an asyncio.Event" in each] == [
        f"    3 more wait for an asyncio.Event that is not set at {TRAIN}:28 in generate"
    ]


def test_a_coroutine_that_sleeps_says_under_which_condition() -> None:
    at = {"file": TRAIN, "line": 20, "function": "step"}
    sleeps = {"thread": "task 7", "call": "run", "at": at, "what": ASLEEP, "count": 1, "free": False}
    said = line(20, "await asyncio.sleep(0.05)")
    said["under"] = {"if": "self.stale >= self.limit", "values": {"self.stale": "24", "self.limit": "24"}}
    known = facts(0, 20, primitives=[sleeps], statements=[{"thread": "MainThread", "lines": [said]}])
    found = verdict([process(known, 0), driver()], seconds=20.0)
    assert found.sentence.startswith(f"no progress: Worker rank 0 sleeps at {TRAIN}:20"), found.sentence
    assert "    under `if self.stale >= self.limit`  # self.stale = 24, self.limit = 24" in found.evidence


def test_a_driver_whose_pool_has_lost_a_worker_does_not_rest() -> None:
    at = {"file": TRAIN, "line": 12, "function": "main"}
    what = (
        "1 of 3 chunks of a multiprocessing.Pool's map; a worker of the pool, pid 7, ended with exit code 1, and what "
    )
    lost = {
        "thread": "MainThread",
        "call": "main",
        "at": at,
        "what": f"{what}it was at is lost",
        "count": 1,
        "free": False,
    }
    found = verdict([process(facts(None, 12, "main", primitives=[lost]), None, "driver")], seconds=20.0)
    assert found.hang and found.sentence.startswith("no progress: the driver waits for 1 of 3 chunks"), found.sentence
    rests = verdict([process(facts(None, 12, "main"), None, "driver")], seconds=20.0)
    assert not rests.hang and rests.kind == "idle"


def test_who_holds_what_others_wait_for_is_told_there_too() -> None:
    at = {"file": TRAIN, "line": 28, "function": "solve"}
    one = {"thread": "task 7", "call": "solve", "at": at, "what": "an asyncio.Semaphore with no permit left"}
    held = {"holder": "task 2", "holder_call": "solve", "held_at": {**at, "line": 31}}
    known = facts(0, 20, primitives=[{**one, **held, "free": False, "count": 11}])
    found = verdict([process(known, 0), driver()], seconds=20.0)
    line = f"    11 more wait for an asyncio.Semaphore with no permit left at {TRAIN}:28 in solve; solve holds it at "
    assert f"{line}{TRAIN}:31" in found.evidence, found.evidence


def test_a_predicate_that_holds_by_now_is_told() -> None:
    inner = {**line(20, "self.changed.wait_for(lambda: self.items)"), "met": True}
    found = verdict([waits(0, inner), driver()], seconds=20.0)
    at = found.evidence.index("    self.changed.wait_for(lambda: self.items)")
    assert found.evidence[at + 1].startswith("    the predicate holds now: the wake-up may have gone to another one")


def test_how_many_of_several_have_what_they_wait_for() -> None:
    at = {"file": TRAIN, "line": 20, "function": "step"}
    lines = [{**line(20, "self.changed.wait_for(lambda: self.items[split])"), "met": met} for met in (True, False)]
    said = [{"thread": f"thread {number}", "lines": [each]} for number, each in enumerate(lines)]
    wait = {"thread": "thread 0", "call": "take", "at": at, "what": "the predicate of a threading.Condition to hold"}
    known = facts(0, 20, statements=said, primitives=[{**wait, "free": False, "count": 2}])
    found = verdict([process(known, 0), driver()], seconds=20.0)
    assert "; the predicate holds now for 1 of them, and who waits has not been woken up since" in found.sentence, found


def test_a_caller_behind_one_that_shows_nothing_is_not_said_to_have_called() -> None:
    inner, between, outer = line(20, "ray.wait(refs)"), line(40, "self.join()"), line(50, "run(workers)", workers="2")
    found = verdict([waits(0, inner, between, outer), driver()], seconds=20.0)
    assert f"    further out at {TRAIN}:50: run(workers)  # workers = 2" in found.evidence, found.evidence


def test_a_child_whose_shell_has_ended_is_told() -> None:
    left = process({**facts(None, 8, "main"), "orphaned": True}, None, "Grader")
    found = verdict([left, driver()], seconds=20.0)
    assert any("lives on: the process that started it, which may be a shell, has ended" in e for e in found.evidence)


def test_the_loop_of_a_caller_stands_below_its_line() -> None:
    own = {"loop": "for part in parts", "values": {"part": "3"}}
    loop = {"loop": "for micro in batches", "values": {"micro": "[9]", "batches": "list of 4"}}
    inner, caller = line(20, "dist.all_reduce(flat)", loop=own), line(40, "self.reduce()", loop=loop)
    found = verdict([waits(0, inner, caller), driver()], seconds=20.0)
    at = next(number for number, each in enumerate(found.evidence) if each.startswith("Worker rank 0: waits"))
    assert found.evidence[at + 1 : at + 5] == (
        "    dist.all_reduce(flat)",
        "    in the loop `for part in parts`  # part = 3",
        f"    called at {TRAIN}:40: self.reduce()",
        "    in the loop `for micro in batches`  # micro = [9], batches = list of 4",
    )


def test_the_condition_that_a_caller_is_under_stands_below_its_line() -> None:
    caller = {**line(40, "self.save()"), "under": {"if": "loss < self.best", "values": {"loss": "5.5"}}}
    found = verdict([waits(0, line(20, "dist.barrier()"), caller), driver()], seconds=20.0)
    at = found.evidence.index(f"    called at {TRAIN}:40: self.save()")
    assert found.evidence[at + 1] == "    under `if loss < self.best`  # loss = 5.5", found.evidence
    caller["under"]["over"] = True  # what it looks at has been set since
    found = verdict([waits(0, line(20, "dist.barrier()"), caller), driver()], seconds=20.0)
    assert found.evidence[at + 1] == "    under `if loss < self.best`, which no longer holds  # loss = 5.5"


def test_the_loops_around_the_innermost_one_stand_below_it() -> None:
    def at(number: str) -> dict[str, Any]:
        batch = {"loop": "for batch in batches", "values": {"batch": f"[9] ({number})", "batches": "list of 4"}}
        return {"loop": "for p in params()", "values": {}, "outer": [batch]}

    job = [waits(rank, line(20, "all_reduce(p)", loop=at(f"no. {rank + 1} of 4"))) for rank in (0, 1)]
    found = verdict([*job, driver()], seconds=20.0)
    said = "    in the loop `for batch in batches`  # batch = [9] (no. 1 of 4) or [9] (no. 2 of 4), batches = list of 4"
    assert said in found.evidence, found.evidence


def test_loops_of_which_one_rank_has_nothing_to_show_are_not_mixed_up() -> None:
    batch, epoch = ({"loop": f"for {name} in data", "values": {name: "7"}} for name in ("batch", "epoch"))
    outer = [[batch, epoch], [{**epoch, "values": {"epoch": "8"}}]]
    loops = [{"loop": "for p in params()", "values": {}, "outer": each} for each in outer]
    job = [waits(rank, line(20, "all_reduce(p)", loop=loops[rank])) for rank in (0, 1)]
    found = [each for each in verdict([*job, driver()], seconds=20.0).evidence if "in the loop" in each]
    assert found == [
        "    in the loop `for batch in data`  # batch = 7",
        "    in the loop `for epoch in data`  # epoch = 7 or 8",
    ]


def test_calls_that_wait_in_all_slots_of_an_actor_keep_others_from_beginning() -> None:
    at = {"file": TRAIN, "line": 20, "function": "step"}
    wait = {"thread": "task 1", "call": "step", "at": at, "what": "an asyncio.Event that is not set", "free": False}
    known = facts(0, 20, primitives=[{**wait, "count": 4}], concurrency=4)
    found = verdict([process(known, 0), driver()], seconds=20.0)
    assert "; all 4 calls that it takes at once (max_concurrency) are there, so no other call can begin" in (
        found.sentence
    )
    free = facts(0, 20, primitives=[{**wait, "what": "an asyncio.Semaphore", "count": 4, "free": True}], concurrency=4)
    found = verdict([process(free, 0), driver()], seconds=20.0)
    assert "(max_concurrency) are there, so no other call can begin; no call that is under way is seen to hold" in (
        found.sentence
    )
    more = verdict([process({**known, "concurrency": 5}, 0), driver()], seconds=20.0)
    assert "max_concurrency" not in more.sentence and "4 of its calls wait there" in more.sentence


def test_a_lock_that_is_kept_over_a_wait_which_only_somebody_ends_who_wants_the_lock() -> None:
    """Given a buffer whose `add` keeps its lock while the queue is full, and a writer that takes the lock, too."""
    here = {"file": TRAIN, "function": "add", "line": 35}
    lock = {"lock": "lock 1", "holder": "Dummy-2", "held_at": {**here, "line": 36}}
    locks = [
        {**lock, "thread": "MainThread", "at": here},
        {**lock, "thread": "writer", "at": {**here, "function": "_writer", "line": 28}},
    ]
    full = {
        "thread": "Dummy-2",
        "call": "add",
        "at": {**here, "line": 38},
        "what": "room in a queue.Queue that is full",
    }
    ends = {"what": "self.incoming", "how": "taken from", "at": [{"line": 26, "function": "_writer"}], "undone": []}
    puts = {**line(38, "self.incoming.put(item)"), "at": {**here, "line": 38}, "ends": ends}
    known = facts(0, 35, "add", locks=locks, primitives=[{**full, "count": 1, "free": False}])
    known["statements"] = [{"thread": "Dummy-2", "lines": [puts]}]
    found = verdict([process(known, 0), driver()], seconds=20.0)
    assert (
        "waits for a lock at /job/train.py:35 in add; thread Dummy-2 holds it, and waits for room in a "
        "queue.Queue that is full at /job/train.py:38 in add; thread writer, which would end that, waits for the same "
        "lock at /job/train.py:28 in _writer"
    ) in found.sentence, found.sentence


def test_models_that_differ_are_compared() -> None:
    def model(*names: str, **tied: str) -> Document:
        return {"model": {"class": "TinyLM", "parameters": dict.fromkeys(names, 1), "tied": tied}}

    def job(trainers: Document, engines: Document) -> tuple[str, ...]:
        keeps = {"model": "TinyLM"}
        ranks = [process(facts(0, 20, keeps=keeps, models=trainers), 0, "Trainer")]
        ranks += [process(facts(rank, 0, keeps=keeps, models=engines), rank, "Engine") for rank in (1, 2)]
        return verdict([*ranks, driver()], seconds=20.0).evidence

    embed, head, layers = "embed.weight [64, 16]", "lm_head.weight [64, 16]", "layers.*.weight [16]"
    tied = {"model": {**model(embed)["model"], "tied": {"lm_head.weight": "embed.weight"}}}
    assert job(tied, model(embed, head))[-1] == (
        f"TinyLM: {head} is in that of Engine ranks 1,2, and no parameter of its own in that of Trainer rank 0, "
        "where that is embed.weight"
    )
    less, more = model(embed, layers), model(embed, layers)
    more["model"]["parameters"][layers] = 3
    assert job(less, more)[-1] == (f"TinyLM: {layers} 1 x in that of Trainer rank 0, 3 x in that of Engine ranks 1,2")
    assert "TinyLM:" not in job(less, less)[-1]
    part = model("embed.weight [32, 16]", layers)
    assert job(less, part)[-1] == (
        "TinyLM: embed.weight is [64, 16] in that of Trainer rank 0, [32, 16] in that of Engine ranks 1,2"
    )


def test_how_often_a_signal_has_come_since_is_said_where_it_is_the_same_for_all() -> None:
    at = {"file": TRAIN, "line": 20, "function": "save"}
    outer = {"at": {**at, "line": 30}, "text": "time.sleep(pause)", "values": {"pause": "1"}}

    def workers(*since: int) -> list[Document]:
        inner = [{"at": at, "text": "save()", "values": {}, "signal": f"SIGUSR1 ({each} more since)"} for each in since]
        lines = [{"statements": [{"thread": "MainThread", "lines": [each, outer]}]} for each in inner]
        every = [facts(rank, 20, "save", call_in="futex", **each) for rank, each in enumerate(lines)]
        return [driver(), *(process(each, rank) for rank, each in enumerate(every))]

    for since, said in (((3, 3), "SIGUSR1 (3 more since)"), ((3, 2), "SIGUSR1")):
        text = f"    interrupted by {said} at {TRAIN}:30: time.sleep(pause)  # pause = 1"
        assert text in verdict(workers(*since), patience=1.0).evidence
