"""What keeps something from being pickled: the way to it, without running the program's code."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import pytest
from ray import cloudpickle as rays

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
