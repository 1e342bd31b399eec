"""What a process tells of itself while it lives: its actor, its call, the objects it puts, what it looks for."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray._private.function_manager as rays

from devkit.debug.inworker import core, entering, leftovers, lookups, made, ownership, unmet
from devkit.debug.inworker.doing import Doing
from tests.debug.hubs import identity


class Reader:
    def __init__(self, path: str, *, rank: int = 0, api_token: str = "") -> None:
        self.path = path

    def read(self, how: str) -> Any:
        return made.current_call(sys._getframe())


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[made.Call]]:
    """Ray's own maker of what runs an actor's methods, watched; and what it has told."""
    told: list[made.Call] = []

    class Manager(rays.FunctionActorManager):  # type: ignore[misc]
        pass

    monkeypatch.setattr(rays, "FunctionActorManager", Manager)
    made.watch(told.append, lambda: told.append((None, "made", (), {})))
    return Manager(None)._make_actor_method_executor, told


def test_with_what_an_actor_is_made(executors: tuple[Any, list[made.Call]]) -> None:
    make, told = executors
    actor = Reader.__new__(Reader)
    executor = make("__init__", Reader.__init__)
    executor(actor, "/data/part-7", rank=3, api_token="sk-1234567890")
    assert (executor.name, executor.method) == ("__init__", Reader.__init__)
    assert actor.path == "/data/part-7"
    assert [name for _, name, _, _ in told] == ["Reader", "made"]
    assert made.told(told[0]) == {
        "name": "Reader", "arguments": {"path": "/data/part-7", "rank": 3, "api_token": "<redacted>"},
    }  # fmt: skip


def test_the_methods_of_an_actor_are_no_tasks_that_ran_and_are_covered(
    executors: tuple[Any, list[made.Call]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray keeps them beside the remote functions that a process has run."""
    make, _ = executors
    manager = make.__self__
    for number, name in enumerate(("__init__", "read")):
        executor = make(name, getattr(Reader, name))
        manager._function_execution_info[number] = rays.FunctionExecutionInfo(executor, name, 0)
    manager._function_execution_info[2] = rays.FunctionExecutionInfo(Path.exists, "job.load", 0)
    monkeypatch.setattr(ray._private.worker, "global_worker", SimpleNamespace(function_actor_manager=manager))
    assert leftovers.ran("go") == ["load"]
    begun: list[int] = []
    entering.want(lambda: begun.append(1))
    try:
        covered = manager._function_execution_info[1].function
        assert (covered.name, covered(Reader("/data"), "late")["name"]) == ("read", "read")
        assert begun == [1]
        entering.look()
        assert manager._function_execution_info[1].function is covered
        assert manager._function_execution_info[2].function is Path.exists
    finally:
        entering.forget()


def test_which_call_an_actor_is_at(executors: tuple[Any, list[made.Call]]) -> None:
    make, told = executors
    found = make("read", Reader.read)(Reader("/data"), "late")
    assert found == {"name": "read", "arguments": {"how": "late"}} and not told
    assert made.current_call(sys._getframe()) is None


class Wire:
    """A connection that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, document: dict[str, Any]) -> None:
        self.sent.append(document)


def test_what_is_told_once_is_told_again_to_another_hub() -> None:
    doing, first, second, who = Doing(), Wire(), Wire(), identity("w1")
    doing.tell(first, who)
    doing.tell(first, who)  # just now
    assert len(first.sent) == 1 and first.sent[0]["memory"]["own"] > 0
    doing.making((Reader.__init__, "Reader", (None, "/data"), {}))
    doing.tell(first, who)
    assert first.sent[1]["made"] == {"name": "Reader", "arguments": {"path": "/data"}}
    doing.tell(second, who)
    assert second.sent[0]["made"] == first.sent[1]["made"]


def test_what_no_hub_hears_is_in_a_file_until_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devkit.debug.inworker.hub_place.log_folder", lambda: tmp_path / "devkit")
    doing, who = Doing(), identity("w1")
    doing.making((Reader.__init__, "Reader", (None, "/data"), {}))
    doing.tell(None, who)
    [found] = unmet.found()
    assert found["identity"] == who and found["seen"]["made"]["arguments"] == {"path": "/data"}
    doing.tell(None, {**who, "rank": 3})  # it knows that now
    assert [each["identity"]["rank"] for each in unmet.found()] == [3]
    hub = Wire()
    doing.tell(hub, {**who, "rank": 5})
    assert [each["identity"]["rank"] for each in unmet.found()] == [5], "a hub that is busy starting may hear nothing"
    monkeypatch.setattr("devkit.debug.inworker.doing.EVERY_SECONDS", 0.0)
    doing.tell(hub, who)
    assert unmet.found() == []


def test_what_a_young_hub_is_told_is_in_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devkit.debug.inworker.hub_place.log_folder", lambda: tmp_path / "devkit")
    hub = Wire()
    Doing().tell(hub, identity("w1"))
    assert len(hub.sent) == 1 and [each["identity"]["worker_id"] for each in unmet.found()] == ["w1"]


def test_where_objects_are_put(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = iter(bytes([number]) * 4 for number in range(9))
    module = SimpleNamespace(put=lambda value, **_: next(made_up))
    monkeypatch.setattr(ray, "put", module.put)
    monkeypatch.setattr(ownership, "_sites", {})
    new: list[int] = []
    ownership.watch(module, lambda: new.append(1))
    for number in range(3):
        ray.put(number)
    ray.put("another place")
    sites = ownership.puts()
    assert [(len(each["objects"]), each["function"]) for each in sites] == [
        (3, "test_where_objects_are_put"),
        (1, "test_where_objects_are_put"),
    ]
    assert len(new) == 2 and sites[0]["line"] < sites[1]["line"]


def test_whose_object_it_was_is_read_from_rays_error() -> None:
    from ray.core.generated.common_pb2 import Address
    from ray.exceptions import OwnerDiedError, RayTaskError

    address = Address(worker_id=b"\x0a" * 28, node_id=b"\x0b" * 28)
    error = OwnerDiedError("00" * 28, address.SerializeToString(), "")
    found = {"object": "00" * 28, "owner": "0a" * 28, "node": "0b" * 28}
    assert ownership.lost(error) == found
    outer = RayTaskError("use", "", error).as_instanceof_cause()
    assert ownership.lost(outer) == found
    assert ownership.lost(ValueError("another")) is None


def test_names_that_are_looked_for_in_vain_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    there = threading.Event()

    def get_actor(name: str, namespace: str | None = None) -> str:
        if not there.is_set():
            raise ValueError("no such actor")
        return name

    module = SimpleNamespace(get_actor=get_actor, global_worker=SimpleNamespace(namespace="mine"))
    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(lookups, "_failed", {})
    lookups.watch(module)
    for _ in range(3):
        with pytest.raises(ValueError, match="no such actor"):
            ray.get_actor("store")
    [found] = lookups.in_vain()
    assert (found["name"], found["namespace"], found["count"]) == ("store", "mine", 3)
    assert found["at"]["function"] == "test_names_that_are_looked_for_in_vain_are_counted"
    there.set()
    assert ray.get_actor("store") == "store"  # found at last: it is looked for no more
    assert lookups.in_vain() == []


def test_lists_of_names_are_counted_while_they_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a"]
    module = SimpleNamespace(global_worker=SimpleNamespace(namespace="mine"))
    monkeypatch.setattr(ray.util, "list_named_actors", lambda all_namespaces=False: list(names))
    monkeypatch.setattr(lookups, "_failed", {})
    lookups.watch(module)
    for each in (False, False, True):  # who asks for all namespaces looks everywhere
        assert ray.util.list_named_actors(each) == ["a"]
    [found] = lookups.in_vain()
    assert (found["name"], found["namespace"], found["count"]) == ("", "mine", 2)
    names.append("b")
    ray.util.list_named_actors()
    assert [each["count"] for each in lookups.in_vain()] == [1]


def test_before_ray_ends_what_is_missing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Ray is still there, and once."""
    order: list[str] = []
    module = SimpleNamespace(disconnect=lambda: order.append("disconnected"))
    monkeypatch.setattr(core, "_core", core._Core())
    core.watch(module)
    core.at_end(lambda: order.append(f"asked, open: {core._core.is_open}"))
    module.disconnect()
    module.disconnect()  # `ray.shutdown`, and then once more as Python ends
    assert order == ["asked, open: True", "disconnected", "disconnected"]
