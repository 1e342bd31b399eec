"""Errors that travel from a rank to the driver."""

from __future__ import annotations

import pickle

from trainer.errors import EngineError, TrainerError
from trainer.failures import WorkerFailed
from trainer.teams import Seat
from trainer.worker import PPOWorker


def test_an_error_arrives_with_all_that_it_carries() -> None:
    """The debugger keeps in an error which crash it came from."""
    sent = EngineError("it died", hint="look there")
    sent.__dict__["devkit_tag"] = "crash-1"
    found = pickle.loads(pickle.dumps(sent))
    assert (type(found), str(found), found.hint) == (EngineError, "it died", "look there")
    assert found.devkit_tag == "crash-1"
    assert pickle.loads(pickle.dumps(WorkerFailed("it failed", hint="look", trace="Traceback"))).trace == "Traceback"
    assert (
        pickle.loads(pickle.dumps(TrainerError("bare", hint="look"))).__dict__
        == TrainerError("bare", hint="look").__dict__
    )


def test_a_worker_has_a_rank_before_it_meets_the_others() -> None:
    """As the debugger looks for it: the actor's attribute `rank`."""
    assert PPOWorker(Seat(5, 1, 2, frozenset({"critic"})), "10.0.0.1").rank == 1
