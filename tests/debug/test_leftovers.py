"""What a process has from before the call that failed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray._private.worker

from devkit.debug.crash_page import crash_page
from devkit.debug.inworker import begun, identity, leftovers, private, snapshot, workdirs
from tests.debug.hub_fake import printed
from tests.debug.test_crashes_view import WHO


def test_a_function_of_a_module_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "rename", None)
    with pytest.raises(TypeError) as caught:
        os.rename("a.tmp", "a")
    assert leftovers.called_in_vain(caught.value) == "os.rename"
    document = snapshot.take(caught.value, WHO, "actor", budget=5.0)
    assert "os.rename is None" in printed(crash_page(document, [], document["time"]))


def test_other_errors_name_nothing() -> None:
    reward: Any = None
    with pytest.raises(TypeError) as caught:
        reward(3)
    assert leftovers.called_in_vain(caught.value) == "reward"
    with pytest.raises(TypeError) as of_another:
        len(3)  # type: ignore[arg-type]
    assert leftovers.called_in_vain(of_another.value) == ""
    assert leftovers.called_in_vain(TypeError("'NoneType' object is not callable")) == ""


def test_what_a_process_ran_before_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("__main__.run_tests", "job.export", "job.load", "__main__.run_tests")
    mine, rays = SimpleNamespace(__module__="job"), SimpleNamespace(__module__="ray._private.function_manager")
    known: dict[int, Any] = {
        number: SimpleNamespace(function_name=name, function=mine) for number, name in enumerate(names)
    }
    method = SimpleNamespace(function_name="__init__", function=rays)  # of an actor of which it has a handle
    manager = SimpleNamespace(_function_execution_info={**known, 9: method})
    monkeypatch.setattr(
        ray._private.worker, "global_worker", SimpleNamespace(function_actor_manager=manager), raising=False
    )
    assert leftovers.ran("export") == ["run_tests", "load"]
    monkeypatch.setattr(ray._private.worker, "global_worker", None, raising=False)
    assert leftovers.ran("export") == []


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker that has run no task yet."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(begun, "_given", None)
    monkeypatch.setattr(begun, "_found", begun._Found())


@pytest.mark.usefixtures("found")
def test_the_rank_of_a_group_that_an_earlier_task_has_left_is_not_that_of_the_next_one() -> None:
    dist = pytest.importorskip("torch.distributed")

    def make() -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    begun.begins("evaluate", "t1")
    make()
    try:
        assert (identity._rank(None), leftovers.group()) == (0, "")
        begun.begins("evaluate", "t2")
        assert identity._rank(None) is None and begun.left_group() is not None
        with pytest.raises(ValueError, match="twice") as caught:
            make()
        document = snapshot.take(caught.value, WHO, "task", budget=5.0)
        assert "left" not in snapshot.take(caught.value, WHO, "actor", budget=5.0)
        page = printed(crash_page(document, [], document["time"]))
        assert "had a default process group of torch.distributed before this task began, and has it still" in page
        assert "it is rank 0 of 1 in that" in " ".join(page.split())
        dist.destroy_process_group()
        assert leftovers.group() == ""
        make()
        assert (identity._rank(None), leftovers.group()) == (0, ""), "of its own"
    finally:
        dist.destroy_process_group()
    begun.begins("evaluate", "t3")
    assert identity._rank(None) is None and begun.left_group() is None


@pytest.mark.usefixtures("found")
def test_a_rank_that_an_earlier_task_has_set_is_not_that_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begun.begins("score", "t1")
    monkeypatch.setenv("RANK", "1")
    assert identity._environment_rank() == 1
    begun.begins("score", "t2")
    assert identity._environment_rank() is None
    monkeypatch.setenv("RANK", "2")
    assert identity._environment_rank() == 2
    monkeypatch.setattr(begun, "_given", "3")  # as by `runtime_env`: of all tasks there
    monkeypatch.setenv("RANK", "3")
    begun.begins("score", "t3")
    assert identity._environment_rank() == 3


@pytest.mark.usefixtures("found")
def test_earlier_tasks_of_the_same_function_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = SimpleNamespace(__module__="job")
    known = {0: SimpleNamespace(function_name="job.evaluate", function=mine)}
    known |= {1: SimpleNamespace(function_name="job.load", function=mine)}
    manager = SimpleNamespace(_function_execution_info=known)
    monkeypatch.setattr(
        ray._private.worker, "global_worker", SimpleNamespace(function_actor_manager=manager), raising=False
    )

    def fails(number: int) -> int:
        return 1 // number

    tasks = iter(("t1", "t1", "t2"))
    seen = []
    for _ in range(3):
        task = next(tasks)
        monkeypatch.setattr(leftovers, "task_id", lambda task=task: task)
        with pytest.raises(ZeroDivisionError) as caught:
            leftovers.covered(fails, "job.evaluate")(0)
        assert [each.name for each in caught.traceback][1:] == ["fails"], "no frame of ours"
        document = snapshot.take(caught.value, WHO, "task", budget=5.0)  # whatever its task is called
        seen.append(document.get("ran"))
    assert seen == [["load"], ["load"], ["evaluate", "load"]], "a second try is no other task"
    method = SimpleNamespace(method=fails)
    assert leftovers.covered(method, "Reader.fails") is method


def test_a_program_that_takes_functions_away_from_its_process_takes_none_from_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As those do that grade code: tests of HumanEval call that a reliability guard."""
    for name in ("getcwd", "kill", "remove", "rename", "replace", "unlink"):
        monkeypatch.setattr(os, name, None)
    private.write(tmp_path / "own" / "a.json", "{}")
    private.write(tmp_path / "own" / "a.json", "[]")
    private.remove(tmp_path / "own" / "a.json")
    assert workdirs.of_errors([FileNotFoundError(2, "no", "data.json")]) is not None
    monkeypatch.undo()
    assert not (tmp_path / "own" / "a.json").exists()
