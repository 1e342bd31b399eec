"""Calls that a driver's end cuts off, and the notes of calls by which they are known."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.debug.inworker import calls_made, core, cut_off, driver_notes, words
from devkit.logs.beside import warning_lines
from devkit.logs.collect import LogFile
from devkit.logs.warned import warned
from tests.debug.conftest import PROGRAMS, Cluster, Job, mark

PROGRAM = "left_undone.py"


class Reference:
    """As Ray's: the id of an object begins with that of its task."""

    def __init__(self, task: int) -> None:
        self._task = task

    def binary(self) -> bytes:
        return bytes([self._task]) * calls_made.TASK_BYTES + b"\1\0\0\0"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, calls_made.Called]:
    kept: dict[bytes, calls_made.Called] = {}
    monkeypatch.setattr(calls_made, "_made", kept)
    monkeypatch.setattr(calls_made, "_plumbing", ())
    monkeypatch.setattr(calls_made, "_rays", "/nowhere/")
    return kept


def handle_of(kind: str, method: str, references: Any) -> Any:
    descriptor = SimpleNamespace(class_name=kind, module_name="job")

    class ActorHandle:
        def __init__(self) -> None:
            self._ray_function_descriptor = {method: descriptor}

        def _actor_method_call(self, name: str, *arguments: Any) -> Any:
            return references

    module = SimpleNamespace(ActorHandle=ActorHandle, __file__="/nowhere/actor.py")
    calls_made._watch_actors(module, calls_made._nobody)
    return ActorHandle()


def test_a_call_is_noted_by_its_name_and_place(made: dict[bytes, calls_made.Called]) -> None:
    calls_made._plumbing = (calls_made.__file__,)
    handle = handle_of("job.Saver", "save", Reference(7))
    calls_made._plumbing = (calls_made.__file__,)
    calls_made._rays = "/nowhere/"
    assert isinstance(handle._actor_method_call("save", 1), Reference)
    (call,) = made.values()
    assert call.name == "Saver.save" and list(made) == [b"\7" * 24]
    assert re.fullmatch(r"test_cut_off\.py:\d+ in test_a_call_is_noted_by_its_name_and_place", calls_made.place(call))


def test_only_the_last_calls_are_kept(made: dict[bytes, calls_made.Called], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_made, "MOST", 3)
    for number in range(5):
        calls_made._note([Reference(number)], "f", None, lambda: (b"task", 1))
    calls_made._note(None, "no result", None, calls_made._nobody)
    assert [task[0] for task in made] == [2, 3, 4]
    assert len(calls_made.by_task(b"task", 1)) == 3 and calls_made.by_task(b"task", 0) == []


def test_a_call_that_ray_makes_for_itself_is_not_noted(made: dict[bytes, calls_made.Called]) -> None:
    def call() -> None:
        calls_made._note(Reference(1), "f", None, calls_made._nobody)

    call()
    assert len(made) == 1
    calls_made._rays = str(Path(__file__).parent)
    call()
    assert len(made) == 1


def test_calls_of_many_kinds_are_counted() -> None:
    calls = [cut_off.Pending(f"step_{at}", "", 1.0) for at in range(cut_off.MOST + 2)]
    assert cut_off.said(calls).endswith("step_3 (called 1.0 s before), and calls of 2 more kinds")
    assert cut_off.said(calls[:-1]).endswith(", and calls of 1 more kind")
    many = cut_off.said(calls[:1] * calls_made.MOST)
    assert many.startswith(f"at least {calls_made.MOST} calls had not ended"), "older ones are kept no more"


def test_what_is_cancelled_is_kept_and_given_to_ray_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_off, "_cancelled", {})
    monkeypatch.setattr(cut_off, "MOST_CANCELLED", 2)
    given: list[Any] = []

    def cancel(ray_waitable: Any, *, force: bool = False) -> None:
        given.append((ray_waitable, force))

    ray = SimpleNamespace(cancel=cancel)
    cut_off._watch(ray)
    first, second, third = map(Reference, (1, 2, 3))
    ray.cancel(first)
    ray.cancel(ray_waitable=second, force=True)
    ray.cancel(third)
    assert given == [(first, False), (second, True), (third, False)]
    assert [task[0] for task in cut_off._cancelled] == [2, 3], "the last ones"
    with pytest.raises(TypeError, match="ray_waitable"):
        ray.cancel()


def test_calls_of_another_jobs_actors_are_not_cut_off(
    made: dict[bytes, calls_made.Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core._core, "is_open", True)
    worker = SimpleNamespace(global_worker=SimpleNamespace(current_job_id=SimpleNamespace(binary=lambda: b"\2\0\0\0")))
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    task = b"\7" * 20 + b"\1\0\0\0"
    calls_made._plumbing = ()
    calls_made._note(
        SimpleNamespace(binary=lambda: task), "Store.save", SimpleNamespace(module_name="job"), lambda: (b"", 0)
    )
    monkeypatch.setattr(cut_off, "_pending", lambda: {task})
    monkeypatch.setattr(cut_off, "WAIT_SECONDS", 0.0)
    assert list(made) == [task] and cut_off.found() == []


def test_what_is_said_at_a_drivers_end_is_kept_and_told_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = SimpleNamespace(hex=lambda: "01000000")
    node = SimpleNamespace(get_logs_dir_path=lambda: str(tmp_path))
    worker = SimpleNamespace(global_worker=SimpleNamespace(current_job_id=job), _global_node=node)
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    monkeypatch.setattr(driver_notes, "given", [])
    monkeypatch.setattr(cut_off, "found", lambda: [cut_off.Pending("Saver.save", "job.py:9 in main", 1.0)])
    driver_notes.keep([*driver_notes.tell_cut_off(), "/job/job.py:3: DevkitWarning: in vain"])
    text = (tmp_path / "devkit" / "driver-01000000.err").read_text()
    assert text.count("\n") == 2

    found = warned([LogFile("", "", "devkit/driver-01000000.err", text), LogFile("", "", "worker-ab-01-7.err", text)])
    assert list(warning_lines(found, None)) == [
        "/job/job.py:3  DevkitWarning: in vain (a worker pid 7)",
        "1 call had not ended when the driver did, and Ray ends it with it: "
        "Saver.save (called 1.0 s before at job.py:9 in main)",
    ]


def test_each_job_of_a_driver_has_its_own_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = SimpleNamespace(get_logs_dir_path=lambda: str(tmp_path))
    monkeypatch.setattr(words, "given", kept := list[str]())
    monkeypatch.setattr(driver_notes, "given", kept)
    for job, what in (("01000000", "in vain"), ("02000000", "too late"), ("03000000", "")):
        worker = SimpleNamespace(current_job_id=SimpleNamespace(hex=lambda job=job: job))
        module = SimpleNamespace(global_worker=worker, _global_node=node)
        monkeypatch.setitem(sys.modules, "ray._private.worker", module)
        if what:
            words.warn("/job/job.py", 3, what)
        driver_notes.keep([])
    found = {path.name: path.read_text() for path in (tmp_path / "devkit").iterdir()}
    assert found == {
        "driver-01000000.err": "/job/job.py:3: DevkitWarning: in vain\n",
        "driver-02000000.err": "/job/job.py:3: DevkitWarning: too late\n",
    }


def test_an_end_by_an_error_needs_no_such_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_off, "found", lambda: [cut_off.Pending("Saver.save", "", 1.0)])
    try:
        raise ValueError
    except ValueError:
        assert driver_notes.tell_cut_off() == []


def test_a_driver_says_which_of_its_calls_are_cut_off(cluster: Cluster) -> None:
    job = Job(cluster, "--", sys.executable, str(PROGRAMS / PROGRAM))
    try:
        assert job.end() == 0, job.out
    finally:
        job.kill()
    (said,) = (line for line in job.out.splitlines() if "had not ended" in line)
    said = re.sub(r"\d+\.\d s", "T", said)
    assert said == (
        "devkit: at least 3 calls had not ended when the driver did, and Ray ends them with it: "
        f"Saver.save (called T before at {PROGRAM}:{mark(PROGRAM, 'save')} in main), "
        f"Saver.save (called T before at {PROGRAM}:{mark(PROGRAM, 'queued')} in main), "
        f"evaluate (called T before at {PROGRAM}:{mark(PROGRAM, 'task')} in main)"
    )
