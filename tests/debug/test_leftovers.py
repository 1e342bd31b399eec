"""What a process has from before the call that failed."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import ray._private.worker

from devkit.debug.crash_page import crash_page
from devkit.debug.inworker import leftovers, snapshot
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
    names = {"a": "__main__.run_tests", "b": "job.export", "c": "job.load", "d": "job.never"}
    manager = SimpleNamespace(
        _function_execution_info={key: SimpleNamespace(function_name=name) for key, name in names.items()},
        _num_task_executions={"a": 12, "b": 1, "c": 20, "d": 0, "e": {}},
    )
    monkeypatch.setattr(
        ray._private.worker, "global_worker", SimpleNamespace(function_actor_manager=manager), raising=False
    )
    assert leftovers.ran("export") == {"load": 20, "run_tests": 12}
    monkeypatch.setattr(ray._private.worker, "global_worker", None, raising=False)
    assert leftovers.ran("export") == {}
