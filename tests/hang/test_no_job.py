"""A hang and nobody to look at are two answers, and two exit codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from devkit.debug.hub_file import no_hub
from devkit.debug.rows import ActorRow, JobRow, NodeRow, PlacementGroupRow, TaskRow
from devkit.errors import DevkitError
from devkit.hang import unwatched
from devkit.hang.gather import choose_job
from devkit.hang.tables import holders, queued, unsent, without_arguments
from devkit.logs.run import choose
from tests.debug.hub_fake import FakeHub, ps_document


class NoJobs:
    """A dashboard of a Ray that has run nothing."""

    url = "http://127.0.0.1:8265"

    def jobs(self) -> list[Any]:
        return []


@pytest.mark.parametrize("wanted", [None, "07000000"])
def test_hang_without_a_job(wanted: str | None) -> None:
    with pytest.raises(DevkitError, match="runs under devkit") as caught:
        choose_job(FakeHub(ps=ps_document()), None, wanted)
    assert caught.value.exit_code == 3


def test_the_first_error_of_no_job() -> None:
    with pytest.raises(DevkitError, match="no job has run") as caught:
        choose(NoJobs(), None)  # type: ignore[arg-type]
    assert caught.value.exit_code == 3


def test_a_cluster_on_which_no_job_was_started_under_devkit() -> None:
    assert no_hub().exit_code == 3


class Starved:
    """A dashboard of a Ray on which a job without devkit waits for what no node has."""

    def jobs(self) -> list[JobRow]:
        return [JobRow(job_id="01000000", status="SUCCEEDED"), JobRow(job_id="02000000", status="RUNNING")]

    def placement_groups(self, *_: Any) -> list[PlacementGroupRow]:
        bundles = ({"unit_resources": {"CPU": 3.0}},)
        return [PlacementGroupRow(placement_group_id="a1", creator_job_id="02000000", state="PENDING", bundles=bundles)]

    def nodes(self) -> list[NodeRow]:
        return [NodeRow(node_id="n", node_ip="10.0.0.1", state="ALIVE", resources_total={"CPU": 2.0})]

    def actors(self, *_: Any) -> list[Any]:
        return []

    def tasks(self, *_: Any) -> list[Any]:
        return []

    def usage(self) -> dict[str, Any]:
        return {}

    def log_file(self, *_: Any, **__: Any) -> bytes:
        return b""


class Held(Starved):
    """The same where the node would have it, and an actor holds it."""

    def nodes(self) -> list[NodeRow]:
        return [NodeRow(node_id="n", node_ip="10.0.0.1", state="ALIVE", resources_total={"CPU": 3.0})]

    def usage(self) -> dict[str, Any]:
        return {"n": {"CPU": (3.0, 3.0)}}

    def placement_groups(self, *filters: Any) -> list[PlacementGroupRow]:
        return [] if ("state", "=", "CREATED") in filters else super().placement_groups()

    def actors(self, *filters: Any) -> list[ActorRow]:
        resources = {"CPU": 3.0}
        alive = ActorRow("a", class_name="Keeper", job_id="01000000", state="ALIVE", required_resources=resources)
        return [alive] if ("state", "=", "ALIVE") in filters else []


def test_what_a_job_without_devkit_waits_for_is_told_with_who_holds_it() -> None:
    found = unwatched.look(Held(), wait=lambda _: None)  # type: ignore[arg-type]
    assert found is not None and found.verdict.hang
    assert "the actor Keeper of job 01000000, which has ended, still holds 3 CPU" in found.verdict.sentence


def test_what_a_job_without_devkit_can_never_have_is_told() -> None:
    waited: list[float] = []
    found = unwatched.look(Starved(), wait=waited.append)  # type: ignore[arg-type]
    assert found is not None and found.verdict.hang and waited
    assert found.verdict.sentence == (
        "job 02000000: the placement group a1 can never be scheduled on these nodes: it requests 3 CPU, "
        "and no node has more than 2 CPU"
    )
    assert found.verdict.evidence[-1] == unwatched.NOT_IN_IT
    assert unwatched.look(Starved(), "01000000", waited.append) is None  # type: ignore[arg-type]


class Retried(Starved):
    """Of two calls that wait, Ray is to try one again: its arguments are there."""

    def tasks(self, *_: Any) -> list[Any]:
        of_actor = TaskRow(type="ACTOR_TASK", state="PENDING_ARGS_AVAIL", actor_id="a1")
        return [replace(of_actor, name="Trainer.step"), replace(of_actor, name="Verifier.verify", attempt_number=30)]


class Queues(Starved):
    """Calls that have come to an actor, and a task that has none."""

    STATE = "SUBMITTED_TO_WORKER"

    def tasks(self, *filters: Any) -> list[Any]:
        state = str({name: value for name, _, value in filters}["state"])
        row = TaskRow(type="ACTOR_TASK", state=state, actor_id="a1", name="Gate.release")
        return [row, replace(row, type="NORMAL_TASK")] if state == self.STATE else []


def test_the_calls_that_an_actor_has_not_begun() -> None:
    assert queued(Queues(), "01000000") == {"a1": ("Gate.release",)}  # type: ignore[arg-type]


def test_the_calls_of_an_actor_that_were_not_sent_yet() -> None:
    class Unsent(Queues):
        STATE = "PENDING_NODE_ASSIGNMENT"

    assert unsent(Unsent(), "01000000") == {"a1": ("Gate.release",)}  # type: ignore[arg-type]


def test_a_placement_group_in_which_nothing_lives_comes_first() -> None:
    class Groups(Starved):
        def placement_groups(self, *_: Any) -> list[PlacementGroupRow]:
            bundles = ({"unit_resources": {"CPU": 1.0}},)
            row = PlacementGroupRow(creator_job_id="01", state="CREATED", bundles=bundles)
            return [replace(row, placement_group_id=each, name=each) for each in ("used", "left")]

        def actors(self, *filters: Any) -> list[ActorRow]:
            dead = ActorRow("d", state="DEAD", placement_group_id="left")
            return [] if filters else [dead, ActorRow("a", state="PENDING_CREATION", placement_group_id="used")]

    found = holders(Groups())  # type: ignore[arg-type]
    assert [(each.name, each.empty) for each in found] == [("left", True), ("used", False)]


def test_a_call_that_is_to_be_tried_again_waits_for_no_argument() -> None:
    assert without_arguments(Retried(), "01000000") == {"a1": ("Trainer.step",)}  # type: ignore[arg-type]
