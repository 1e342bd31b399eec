"""Processes that wait for room in queues of Ray: a circle over two of them, and a feeder that is merely ahead."""

from __future__ import annotations

from typing import Any

from devkit.hang.records import Verdict
from tests.hang.jobs import RAY, TRAIN, facts, process, verdict
from tests.hang.test_calls import actor, actor_id, calls, task_id, wait

Document = dict[str, Any]
PROMPTS, RESULTS = "p", "r"
QUEUES = [actor(name, role="_QueueActor") for name in (PROMPTS, RESULTS)]


def puts(into: str, who: str, line: int, function: str, *takes: tuple[str, int]) -> Document:
    taken = [{"actor": actor_id(name), "at": {"file": TRAIN, "line": at, "function": function}} for name, at in takes]
    return wait(task_id(who, into), line=line, call=function, takes=taken)


def feeds(line: int = 33) -> Document:
    return actor("f", puts(PROMPTS, "feed", line, "Feeder.run"), role="Feeder")


def rolls(*names: str, **changes: Any) -> list[Document]:
    """Workers that take prompts and put results."""
    waits = [puts(RESULTS, f"roll{name}", 52, "Rollout.run", (PROMPTS, 46)) for name in names]
    return [actor(name, one, role="Rollout", **changes) for name, one in zip(names, waits, strict=True)]


def trains(*takes: tuple[str, int]) -> Document:
    one = puts(PROMPTS, "drive", 68, "Trainer.collect", *takes)
    known = facts(None, 68, "Trainer.collect", inner=[(RAY, 7, "get")], waits=[one])
    return process(known, None, "driver")


def judged(*job: Document, last: list[Document] | None = None) -> Verdict:
    tasks = {each["facts"]["waits"][0]["tasks"][0] for each in job if each["facts"].get("waits")}
    table = calls(*((task, "_QueueActor.put", "RUNNING", "") for task in tasks))
    return verdict([*job, *QUEUES], last and [*last, *QUEUES], seconds=12.0, calls=table, running={})


def test_a_circle_over_two_full_queues_is_named_with_who_takes_from_which() -> None:
    found = judged(feeds(), *rolls("x", "y"), trains((RESULTS, 66)))
    assert found.kind == "deadlock" and found.sentence == (
        f"deadlock: the driver waits at {TRAIN}:68 in Trainer.collect to put something into a ray.util.queue.Queue "
        f"that is full, from which Rollout pid 3120 and Rollout pid 3121 take at {TRAIN}:46 in Rollout.run; "
        f"Rollout pid 3120 and Rollout pid 3121 wait at {TRAIN}:52 in Rollout.run to put something into another one "
        f"that is full, from which the driver takes at {TRAIN}:66 in Trainer.collect: they wait for each other"
    ), found.sentence
    assert found.culprit is not None and (found.culprit.role, found.culprit.line) == ("driver", 68)


def test_where_it_is_not_known_who_takes_all_that_wait_are_named() -> None:
    found = judged(feeds(), *rolls("x"), trains())
    assert found.kind == "stuck" and found.sentence == (
        f"no progress: the driver waits at {TRAIN}:68 in Trainer.collect and Feeder pid 3102 waits at {TRAIN}:33 in "
        f"Feeder.run to put something into a ray.util.queue.Queue that is full; Rollout pid 3120 waits at {TRAIN}:52 "
        "in Rollout.run to put something into another one that is full; nobody is at work who could take from them"
    ), found.sentence


def test_who_is_at_work_may_take_from_them() -> None:
    sleeps = process(facts(4, 70, call_in="clock_nanosleep"), 4, "Learner")
    found = judged(feeds(), *rolls("x"), trains((RESULTS, 66)), sleeps)
    assert "they wait for each other" not in found.sentence and "nobody is at work" not in found.sentence
    one = judged(feeds())
    assert one.sentence.startswith("no progress: Feeder pid 3102 waits at"), one.sentence
