"""Why an exception of a task cannot be made again by who awaits it, and that the way out is one."""

from __future__ import annotations

import contextlib
import pickle
import re
from types import ModuleType
from typing import Any

import pytest
from ray import cloudpickle as rays
from ray.exceptions import RayTaskError, UnserializableException

from devkit.debug.crash_page import crash_page
from devkit.debug.inworker import snapshot
from devkit.debug.inworker.remade import lost_on_the_way, remade
from tests.debug.hub_fake import printed
from tests.debug.test_crashes_view import WHO


class ToolError(Exception):
    """As people write them: pickle makes it again with one argument."""

    def __init__(self, tool: str, code: int) -> None:
        super().__init__(f"{tool} ended with {code}")


class KeptError(ToolError):
    def __reduce__(self) -> Any:
        return KeptError, ("bash", 1)


def asks(*kinds: str, lines: str = "") -> BaseException:
    """What Ray raises where a task's exception could not be read: it has the text of it."""
    frame = '  File "/job/job.py", line 7, in run\n    raise told(\n          ^^^^^\n'
    told = "".join(f"{frame}{kind}: bash ended with 1\n" for kind in kinds)
    with pytest.raises(UnserializableException) as caught:
        raise UnserializableException(f"ray.exceptions.RayTaskError: ray::run() (pid=1)\n{told}{lines}")
    return caught.value


def test_why_an_exception_of_a_task_could_not_be_made_again() -> None:
    why = remade(asks("test_remade.ToolError"))
    assert why == (
        "ToolError is made again with the arguments that it passed to super().__init__, and its own __init__ wants 2: "
        "tool, code; define a __reduce__ that returns all of them, with tool and code kept as attributes: "
        "`ToolError, (self.tool, self.code)`"
    )
    document = snapshot.take(asks("ToolError"), WHO, "actor", budget=5.0)
    assert why in printed(crash_page(document, [], document["time"]))
    assert remade(asks("KeptError")) == "" == remade(asks("UnknownError"))
    assert remade(ToolError("bash", 1)) == "", "this one is here"
    assert remade(asks("ToolError", lines="Hint: NamedError\nNamedError: no\n")) == why
    assert remade(asks("NamedError", "test_remade.ToolError")) == why
    assert remade(asks("ToolError", "UnknownError")) == "", "it is not about what lies behind it"


def test_no_class_of_rays_or_a_librarys_is_to_be_changed() -> None:
    lost = NamedError("x", status=1)
    raised = RayTaskError("run", "trace", lost)
    assert lost_on_the_way(raised) == "" == remade(asks("ray.exceptions.RayTaskError"))
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument"):
        pickle.loads(pickle.dumps(raised))
    httpx = pytest.importorskip("httpx")
    found = lost_on_the_way(httpx.HTTPStatusError("429", request=None, response=None))
    assert found.endswith("catch it where it is raised, and raise an exception of your own in its place"), found


def test_two_classes_of_one_name_are_not_guessed_between() -> None:
    class ToolError(Exception):
        def __init__(self, *, other: str) -> None:
            super().__init__(other)

    assert remade(asks("ToolError")) == ""
    assert "wants 2: tool, code" in remade(asks("tests.debug.test_remade.ToolError")), "this name is of one"
    assert lost_on_the_way(ToolError(other="x"))


# ---- the way out
SENT = """
import functools

class SentError(RuntimeError):
    def __init__(self, message, *, request_id, status_code):
        super().__init__(message)
        self.request_id = request_id
        self.status_code = status_code

def fail():
    raise SentError("bad", request_id=3, status_code=429)
"""


def test_a_class_that_was_sent_whole_is_found_though_no_global_names_it_and_the_way_out_is_one() -> None:
    """As of a script's own, which no worker can import, and whose names the one that awaits does not use."""
    module = ModuleType("the_sent_job")
    exec(compile(SENT, "/job/job.py", "exec"), module.__dict__)
    with pytest.raises(RuntimeError) as caught:
        module.fail()
    why = remade(asks("the_sent_job.SentError"))
    assert "wants 3: message, request_id by name, status_code by name; define a __reduce__" in why
    assert lost_on_the_way(caught.value).endswith(why.partition("; ")[2])
    [offered] = re.findall(r"`(functools.*)`$", why)
    exec(f"SentError.__reduce__ = lambda self: ({offered})", module.__dict__)
    again = pickle.loads(rays.dumps(caught.value))
    assert (again.args, again.request_id, again.status_code) == (("bad",), 3, 429)
    assert lost_on_the_way(caught.value) == ""


def test_what_it_offers_works_as_it_stands() -> None:
    class Overflow(Exception):
        def __init__(self, uid: str, length: int, limit: int = 8) -> None:
            self.uid = uid
            self._length = int(length)
            self.length, self.limit = length, limit
            super().__init__(f"{uid}: {length} tokens, the limit is {limit}")

    class Odd(Exception):
        def __init__(*parts: Any, code: int) -> None:
            super(Odd, parts[0]).__init__(*parts[1:])

    error = Overflow("q7", 60, 48)
    found = lost_on_the_way(error)
    wanted = "define a __reduce__ that returns all of them: `Overflow, (self.uid, self.length, self.limit)`"
    assert found.endswith(wanted), found
    assert "with code kept as an attribute: `functools.partial(Odd, code=self.code), ()`" in lost_on_the_way(
        Odd("a", code=3)
    )


class NamedError(Exception):
    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message)


class RateLimited(Exception):
    def __init__(self, query: str, retry_after: float) -> None:
        super().__init__(f"429 for {query}")


class Reduced(RateLimited):
    def __reduce__(self) -> Any:
        return Reduced, ("q", 0.1)


class Timeless(Exception):
    def __init__(self) -> None:
        super().__init__("it took too long")


class Kept(Exception):
    def __init__(self, tool: str, code: int) -> None:
        self.args = (tool, code)


class Any3(Exception):
    def __init__(self, *parts: str) -> None:
        super().__init__(*parts, "and", "more")


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
        (Timeless(), "task", True),
        (Kept("bash", 1), "task", False),
        (Any3("bash"), "task", False),
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
    wanted = f"in its place, which no `except {type(error).__name__}` catches; define a __reduce__ that returns "
    assert (wanted in found) is is_told, found


def test_what_its_args_are_is_not_guessed() -> None:
    assert remade(asks("Kept")) == ""
    assert "made again with the 1 argument in its `args`, and its own __init__ takes none" in lost_on_the_way(
        Timeless()
    )
