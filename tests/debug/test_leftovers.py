"""What a process has from before the call that failed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray._private.worker

from devkit.debug.crash_page import crash_page
from devkit.debug.inworker import leftovers, private, snapshot, workdirs
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
