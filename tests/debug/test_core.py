"""Ray's core, which ends a process that asks it anything once it has begun to shut down."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.debug.inworker import core, hooks, identity
from tests.debug.conftest import PROGRAMS, environment, short_folder
from tests.pace import stretched

CLOSED: list[str] = []  # what was asked after the end


class Core:
    """As Ray's; but where that one ends the process, it is noted."""

    def __init__(self) -> None:
        self.is_over = False

    def __getattr__(self, name: str) -> Any:
        def ask() -> Any:
            if self.is_over:
                CLOSED.append(name)
            return "Rollout.generate" if name.endswith("name") else 2

        return ask


class Worker(SimpleNamespace):
    @property
    def current_task_id(self) -> SimpleNamespace:
        self.core_worker.get_task_id()
        return SimpleNamespace(hex=lambda: "ab12")


@pytest.fixture
def rays(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Ray's module: `disconnect` begins its end, of which the worker hears last."""
    job = SimpleNamespace(hex=lambda: "01000000")
    worker = Worker(core_worker=Core(), connected=True, current_job_id=job)
    module = SimpleNamespace(global_worker=worker, disconnect=lambda: setattr(worker.core_worker, "is_over", True))
    monkeypatch.setitem(sys.modules, "ray._private.worker", module)
    monkeypatch.delitem(sys.modules, "ray._private.state", raising=False)  # which would be watched for its end
    CLOSED.clear()
    core.watch(module)
    yield module
    core.watch(module)  # open again, for the tests that follow


def test_a_thread_that_fails_while_ray_ends_asks_it_nothing(rays: SimpleNamespace) -> None:
    assert hooks.task_facts() == {"task_id": "ab12", "attempt": 2}
    assert identity.task_called() == "Rollout.generate"
    rays.disconnect()
    assert hooks.task_facts() == {"task_id": "", "attempt": 0}
    assert identity.task_called() == "" and CLOSED == []


def test_garbage_is_collected_again_when_ray_has_ended(rays: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool] = []
    tables = type("Tables", (), {"disconnect": lambda self: said.append(gc.isenabled())})()
    monkeypatch.setitem(sys.modules, "ray._private.state", SimpleNamespace(state=tables))
    rays.disconnect()
    assert not gc.isenabled()
    tables.disconnect()
    assert gc.isenabled() and said == [True] and not vars(tables)
    rays.disconnect()
    core.watch(rays)  # it is begun again, though it had not ended
    assert gc.isenabled() and not vars(tables)
    gc.disable()  # the program's own wish
    try:
        rays.disconnect()
        tables.disconnect()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.ray
def test_refs_in_cycles_are_freed_while_ray_ends() -> None:
    """By another thread, which ends the process with exit code 1 where nobody sees to it (Ray 2.60)."""
    program = str(PROGRAMS / "ends_beside_cycles.py")
    with short_folder() as folder:
        words = [sys.executable, "-m", "devkit", "run", "--", sys.executable, program]
        done = subprocess.run(words, env=environment(folder), capture_output=True, text=True, timeout=stretched(120))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended in order" in done.stdout
