"""Why an actor has ended, from rows as Ray's table has them."""

from __future__ import annotations

import pytest

from devkit.hang.deaths import why

EXIT = (
    "The actor is dead because its worker process has died. Worker exit type: INTENDED_USER_EXIT Worker exit detail: "
    "Worker exits by an user request. exit_actor() is called."
)
CREATION = (
    "The actor died because of an error raised in its creation task, \x1b[36mray::Engine.__init__()\x1b[39m (pid=7, "
    'ip=10.0.0.1, actor_id=5a, repr=<job.Engine object at 0x7f>)\n  File "/job/train.py", line 25, in __init__\n'
    "    raise ValueError(kind)\nValueError: no such kind"
)


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        ("OUT_OF_SCOPE", "The actor is dead because all references to the actor were removed.", "no handle was left"),
        ("REF_DELETED", "The actor is dead because all references ... lineage ref count.", "no handle was left"),
        ("", "The actor is dead because all references to the actor were removed.", "no handle was left"),
        ("RAY_KILL", "The actor is dead because it was killed by `ray.kill`.", "it was killed by ray.kill"),
        ("OWNER_DIED", "The actor is dead because its owner has died. Owner Id: 0a", "its owner, the process that"),
        ("NODE_DIED", "The actor died because its node has died. Node Id: 0a", "its node is gone"),
        ("WORKER_DIED", EXIT, "Worker exits by an user request. exit_actor() is called"),
        ("UNSPECIFIED", "", ""),
    ],
)
def test_the_end_of_an_actor(reason: str, message: str, said: str) -> None:
    found = why({"actor_died_error_context": {"reason": reason, "error_message": message}})
    assert found.startswith(said) and bool(found) == bool(said)


def test_an_init_that_raised_and_other_ends() -> None:
    failed = why({"creation_task_failure_context": {"formatted_exception_string": CREATION}})
    assert failed == "its __init__ has failed: ValueError: no such kind"
    assert why({"creation_task_failure_context": {}}) == "its __init__ has failed"
    assert why({"oom_context": {"error_message": "..."}}) == "it was killed by Ray's memory monitor"
    assert why({"actor_died_error_context": None}) == ""
