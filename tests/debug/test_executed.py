"""What runs in the place of what Ray executes in a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from devkit.debug.inworker import executed


class Info(NamedTuple):
    function: Callable[..., Any]
    function_name: str


class Manager:
    """As Ray's own, as far as it is looked at."""

    def __init__(self) -> None:
        self._loaded_actor_classes = {"id": Info}
        self.info = Info(int, "job.int")

    def get_execution_info(self, _job: str, _descriptor: object) -> Info:
        return self.info


def test_a_cover_that_raises_leaves_the_others() -> None:
    class Own(Manager):
        pass

    asked: list[tuple[Any, str, list[type]]] = []

    def fails(_function: executed.Function, _name: str, _kinds: list[type]) -> executed.Function:
        raise TypeError("a function of somebody's own make")

    def covers(function: executed.Function, name: str, kinds: list[type]) -> executed.Function:
        asked.append((function, name, kinds))
        return lambda *arguments: -function(*arguments)

    executed._watch(Own, "fails", fails)
    for _ in range(2):
        executed._watch(Own, "covers", covers)
    manager = Own()
    first, second = (manager.get_execution_info("job", object()) for _ in range(2))
    assert first.function("7") == -7 and second.function is first.function
    assert asked == [(int, "job.int", [Info])], "once, though it was wanted twice"
    assert Own.get_execution_info.__name__ == "get_execution_info"


def test_another_rays_manager_and_what_it_gives_stay_as_they_are() -> None:
    class Empty:
        pass

    class Own(Manager):
        def get_execution_info(self, _job: str, _descriptor: object) -> Any:
            return None

    for each in (Empty, Own):
        executed._watch(each, "any", lambda function, _name, _kinds: function)
    assert not hasattr(Empty, "get_execution_info") and Own().get_execution_info("job", object()) is None
