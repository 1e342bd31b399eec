"""What a process tells of itself while it lives: its actor, its call, the objects it puts, what it looks for."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray._private.function_manager as rays

from devkit.debug.inworker import lookups, made, ownership
from devkit.debug.inworker.doing import Doing


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
    made.watch(told.append)
    return Manager(None)._make_actor_method_executor, told


def test_with_what_an_actor_is_made(executors: tuple[Any, list[made.Call]]) -> None:
    make, told = executors
    actor = Reader.__new__(Reader)
    executor = make("__init__", Reader.__init__)
    executor(actor, "/data/part-7", rank=3, api_token="sk-1234567890")
    assert (executor.name, executor.method) == ("__init__", Reader.__init__)
    assert actor.path == "/data/part-7"
    assert made.told(told[0]) == {
        "name": "Reader", "arguments": {"path": "/data/part-7", "rank": 3, "api_token": "<redacted>"},
    }  # fmt: skip


def test_which_call_an_actor_is_at(executors: tuple[Any, list[made.Call]]) -> None:
    make, told = executors
    found = make("read", Reader.read)(Reader("/data"), "late")
    assert found == {"name": "read", "arguments": {"how": "late"}} and not told
    assert made.current_call(sys._getframe()) is None


def test_what_is_told_once_is_told_again_to_another_hub() -> None:
    doing = Doing()
    first = doing.news()
    assert first is not None and first["memory"]["own"] > 0
    assert doing.news() is None  # just now
    doing.making((Reader.__init__, "Reader", (None, "/data"), {}))
    news = doing.news()
    assert news is not None and news["made"] == {"name": "Reader", "arguments": {"path": "/data"}}
    doing.forget_told()
    again = doing.news()
    assert again is not None and again["made"] == news["made"]


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

    address = Address(worker_id=b"\x0a" * 28)
    error = OwnerDiedError("00" * 28, address.SerializeToString(), "")
    assert ownership.lost(error) == {"object": "00" * 28, "owner": "0a" * 28}
    outer = RayTaskError("use", "", error).as_instanceof_cause()
    assert ownership.lost(outer) == {"object": "00" * 28, "owner": "0a" * 28}
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
