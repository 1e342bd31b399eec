"""What keeps something from being pickled: the way to it, without running the program's code."""

from __future__ import annotations

import contextlib
import pickle
import threading
from types import ModuleType
from typing import Any

import pytest
from ray import cloudpickle as rays
from ray.exceptions import UnserializableException

from devkit.debug.crash_page import crash_page
from devkit.debug.inworker import snapshot, unpicklable
from tests.debug.hub_fake import printed
from tests.debug.test_crashes_view import WHO

JOB = """
import threading

class Normal:
    def __init__(self):
        self.words = ["a", "b"]
        self.guard = threading.RLock()

class Vocabulary:
    def __init__(self):
        self.normal = Normal()

vocabulary = Vocabulary()

def reward(text):
    return text in vocabulary.normal.words

def score(text):
    return [reward(each) for each in text.split()]
"""


@pytest.fixture
def job() -> ModuleType:
    """A program's own script: nobody can import it."""
    module = ModuleType("the_job")
    exec(compile(JOB, "/job/job.py", "exec"), module.__dict__)
    return module


def failure(value: Any, pickler: Any = rays) -> TypeError:
    with pytest.raises(TypeError) as caught:
        pickler.dumps(value)
    return caught.value


def test_the_way_over_functions_globals_and_attributes(job: ModuleType) -> None:
    assert unpicklable.way_of(failure(job.score)) == "score -> reward -> vocabulary.normal.guard, of type RLock"


def test_closures_containers_and_objects() -> None:
    held = {"locks": [1, threading.Lock()]}

    def task() -> Any:
        return held

    assert unpicklable.way_of(failure(task)) == "task -> held['locks'][1], of type lock"
    assert unpicklable.way_of(failure([held])) == "a list[0]['locks'][1], of type lock"
    assert unpicklable.way_of(failure(each for each in ())) == "a generator, of type generator"


def test_it_is_found_behind_what_ray_says_of_it(job: ModuleType) -> None:
    def send() -> None:
        try:
            rays.dumps(job.score)
        except TypeError as error:
            raise TypeError("Could not serialize the function the_job.score. Check ...") from error

    with pytest.raises(TypeError) as caught:
        send()
    assert unpicklable.way_of(caught.value).startswith("score -> reward -> ")
    document = snapshot.take(caught.value, WHO, "driver", budget=5.0)
    shown = printed(crash_page(document, [], document["time"]))
    assert "what cannot be pickled: score -> reward -> vocabulary.normal.guard, of type RLock" in shown


def test_no_code_of_the_program_runs_and_an_end_is_found() -> None:
    ran: list[str] = []

    class Hostile:
        def __init__(self) -> None:
            self.lock, self.me = threading.Lock(), self

        def __getattr__(self, name: str) -> Any:
            ran.append(name)
            raise AttributeError(name)

        @property
        def other(self) -> Any:
            ran.append("other")

    found = failure(Hostile())
    ran.clear()
    assert unpicklable.way_of(found) == "a Hostile.lock, of type lock" and ran == []


def test_other_errors_have_none(job: ModuleType) -> None:
    assert unpicklable.way_of(ValueError("cannot pickle 'lock' object")) == ""
    assert unpicklable.way_of(TypeError("cannot pickle 'lock' object")) == "", "nobody has pickled anything"


class ToolError(Exception):
    """As people write them: pickle makes it again with one argument."""

    def __init__(self, tool: str, code: int) -> None:
        super().__init__(f"{tool} ended with {code}")


class KeptError(ToolError):
    def __reduce__(self) -> Any:
        return KeptError, ("bash", 1)


def test_why_an_exception_of_a_task_could_not_be_made_again() -> None:
    def asks(name: str) -> BaseException:
        """What Ray raises where a task's exception could not be read: it has the text of it."""
        text = (
            f"Failed to deserialize exception.\nOriginal exception:\nray::run()\n  File ...\n{name}: bash ended with 1"
        )
        with pytest.raises(UnserializableException) as caught:
            raise UnserializableException(text)
        return caught.value

    why = unpicklable.remade(asks("test_unpicklable.ToolError"))
    assert why == (
        "ToolError is made again with the arguments that it passed to super().__init__, and its own __init__ wants 2: "
        "tool, code; define a __reduce__ that returns all of them"
    )
    document = snapshot.take(asks("ToolError"), WHO, "actor", budget=5.0)
    assert why in printed(crash_page(document, [], document["time"]))
    assert unpicklable.remade(asks("KeptError")) == "" == unpicklable.remade(asks("UnknownError"))
    assert unpicklable.remade(ToolError("bash", 1)) == "", "this one is here"


class NamedError(Exception):
    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message)


class RateLimited(Exception):
    def __init__(self, query: str, retry_after: float) -> None:
        super().__init__(f"429 for {query}")


class Reduced(RateLimited):
    def __reduce__(self) -> Any:
        return Reduced, ("q", 0.1)


@pytest.mark.parametrize(
    ("error", "kind", "is_told"),
    [
        (RateLimited("q", 0.1), "actor", True),
        (RateLimited("q", 0.1), "driver", False),  # nobody awaits it
        (Reduced("q", 0.1), "actor", False),
        (NamedError("x", status=1), "task", True),
        (ToolError("bash", 1), "task", True),
        (ValueError("no"), "task", False),
        (KeyError(), "task", False),
        (OSError(2, "no such file", "/x"), "task", False),
    ],
)
def test_one_that_is_lost_on_its_way_to_who_awaits_it_says_so_where_it_is_raised(
    error: Exception, kind: str, is_told: bool
) -> None:
    with pytest.raises(type(error)) as caught:
        raise error
    found = str(snapshot.take(caught.value, WHO, kind, budget=5.0).get("remade"))
    with contextlib.suppress(TypeError):  # what it is about
        pickle.loads(pickle.dumps(error))
        assert not is_told
    wanted = f"in its place, which no `except {type(error).__name__}` catches; define a __reduce__ that returns all of"
    assert (wanted in found) is is_told, found


def test_what_is_wanted_by_name_is_told_too() -> None:
    with pytest.raises(UnserializableException) as caught:
        raise UnserializableException("Original exception:\nray::run()\nNamedError: bad")
    assert "wants 2: message, status by name;" in unpicklable.remade(caught.value)
