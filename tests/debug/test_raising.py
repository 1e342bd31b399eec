"""Exceptions as they are raised: which of them the program has caught itself, and where it can be stopped at them.

In processes of their own, under each Python of this machine: 3.11 traces for it, later ones tell by themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker.caught import Caught, Flight, Place, handled, kept_at
from devkit.debug.inworker.sources import is_users, source_of

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYTHONS = [sys.executable, *map(str, sorted(Path.home().glob(".pyenv/versions/3.1[1-9]*/bin/python")))]
LINE = (HERE / "programs/raises.py").read_text().splitlines().index("    raise KeyError(n)") + 1
RAISED = "abcdefghij"  # by `inner`, in this order of its callers; swallows ten times


@pytest.fixture(params=PYTHONS, ids=lambda path: "this" if path == sys.executable else Path(path).parts[-3])
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(python: str, *arguments: str, program: str = "raises.py") -> dict[str, Any]:
    done = subprocess.run(
        [python, f"programs/{program}", *arguments],
        cwd=HERE,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_is_caught_is_counted_where_it_is_caught_and_nothing_else(python: str) -> None:
    caught = {(kind, by): (count, text) for count, kind, text, by in run(python, "count")["counted"]}
    in_main = {key: caught.pop(key) for key in list(caught) if key[1] == "main"}
    assert caught == {
        ("KeyError", "swallows"): (10, "'a'"),
        ("KeyError", "suppresses"): (1, "'b'"),
        ("JSONDecodeError", "catches_a_librarys"): (1, caught["JSONDecodeError", "catches_a_librarys"][1]),
        ("KeyError", "generates"): (1, "'c'"),
        ("KeyError", "awaits"): (1, "'d'"),
        ("TimeoutError", "awaits"): (1, ""),
        ("KeyError", "in_a_thread"): (1, "'j'"),
    }
    # Those that went on came to main. On 3.11 the last one of a frame that goes on is not counted yet.
    assert in_main["ValueError", "main"] == (1, "translated")
    assert in_main["KeyError", "main"][0] in (3, 4)


def test_what_only_passes_a_with_or_a_finally_is_not_caught_there(python: str) -> None:
    """While they stand, and afterwards: what goes on is caught where `call` suppresses it."""
    standing, after = {}, {}
    for name, (first, last) in run(python, program="passes.py").items():
        standing[name], after[name] = first, last
    ends = ("closes_a_generator", "closes_an_async_generator", "ends_a_loop", "raises_another")
    for name in standing:
        others = name in ("in_finally_that_returns", "raises_again_in_a_branch", "goes_on")
        assert standing[name] == ([[1, name]] if others else [[1, "guard"]] * (name == "in_with_of_a_generator")), name
    swallow = {
        "in_with_that_swallows",
        "in_async_with_that_swallows",
        "in_finally_that_returns",
        "goes_on",
        "suppresses",
    }
    for name in standing:
        by = name if name in swallow else "guard" if name == "in_with_of_a_generator" else "call"
        assert after[name] == ([] if name in ends else [[1, by]]), name
    assert len(standing) == 20


def test_a_loop_under_way_is_counted_in_and_stopped_in(python: str) -> None:
    found = run(python, program="watches.py")
    first, (before, after) = found["hits"][0], found["counted"]
    assert found["hits"] == list(range(first, first + 5))
    assert after > before  # of those the breakpoint is gone, and the counting goes on


def test_what_a_future_keeps_that_nobody_asks_is_counted(python: str) -> None:
    kept = [each for each in run(python, "count", "future")["counted"] if each[2] == "'k'"]
    assert [each[:3] for each in kept] == [[1, "KeyError", "'k'"]] and kept[0][3].endswith("run")


def test_what_a_future_keeps_is_counted_where_nothing_else_is(python: str) -> None:
    found = run(python, "future")
    assert found["counted"] == [[1, "KeyError", "'k'", found["counted"][0][3]]] and not found["traced"]
    assert found["counted"][0][3].endswith("run")


@pytest.mark.parametrize("counts", [["count"], []])
def test_what_a_task_keeps_that_nobody_asks_is_counted(python: str, counts: list[str]) -> None:
    """`gather` gives it as a result. What a task is asked for is raised again, and counted where that is caught."""
    found = run(python, *counts, "tasks")["counted"]
    assert [each for each in found if each[2] == "'l'"] == [[3, "KeyError", "'l'", "Task"]]
    assert [each[0] for each in found if each[1] == "JSONDecodeError" and each[3] == "Task"] == [3]
    assert {each[3] for each in found if each[2] == "'m'"} == ({"keeps_in_tasks"} if counts else set())
    assert not [each for each in found if each[1] == "CancelledError"]


def test_what_a_pool_is_asked_for_is_counted_where_that_is_caught(python: str) -> None:
    found = run(python, "count", "asked")["counted"]
    assert {each[3] for each in found if each[1] == "ValueError" and "'n'" in each[2]} == {"in_a_future_that_is_asked"}


@pytest.mark.parametrize(
    ("source", "said"),
    [("None.group", "object has no attribute 'group'"), ("nowhere", "name 'nowhere' is not defined")],
)
def test_what_python_itself_says_of_an_error_is_told(source: str, said: str) -> None:
    try:
        eval(source)
    except (AttributeError, NameError):
        assert said in handled()[threading.get_ident()]["said"]
    else:
        raise AssertionError


def test_rays_wrapper_of_a_method_is_no_handler() -> None:
    """Ray wraps every method of an actor's class, also one that the actor calls itself."""
    space: dict[str, Any] = {}
    exec(compile("def wraps(call):\n    return call()", "/v/ray/util/tracing/tracing_helper.py", "exec"), space)
    pool = ThreadPoolExecutor(1)
    place = pool.submit(space["wraps"], lambda: kept_at(sys._getframe())).result()
    assert place is not None and place.file.endswith("concurrent/futures/thread.py")
    assert pool.submit(lambda: (lambda: kept_at(sys._getframe()))()).result() is None, "its caller may catch it"
    pool.shutdown()


@pytest.mark.parametrize(("file", "mine"), [("/job/train.py", True), (json.__file__, False), (None, True)])
def test_code_made_of_a_text_belongs_to_the_file_that_made_it(file: str | None, mine: bool) -> None:
    space: dict[str, Any] = {"__file__": file} if file else {}
    exec("import sys\ndef made():\n    return sys._getframe()", space)
    assert is_users(source_of(space["made"]())) is mine


def test_nothing_of_ours_is_raised_into_the_program(python: str) -> None:
    """At its limit of recursion, or because a look fails."""
    found = run(python, program="at_the_limit.py")
    own = str(HERE / "programs/at_the_limit.py")
    assert len(found["seen"]) == len(found["before"]) > 15
    for name, depth, kind, _, files in found["seen"]:
        assert (kind, files) == ("RecursionError", [own]), (name, depth)
    assert found["failed"] == [["KeyError", [own]]] * 2


def test_it_stops_where_an_exception_of_the_type_is_raised_once_each(python: str) -> None:
    hits = run(python, "KeyError")["hits"]
    names = [error for _, function, line, error in hits if (function, line) == ("inner", LINE)]
    assert len(hits) == len(names) == 19
    assert [name for name in names if name != "KeyError('a')"] == [f"KeyError('{letter}')" for letter in "bcdefghij"]


def test_kinds_of_a_type_full_names_and_conditions(python: str) -> None:
    assert [hit[:2] for hit in run(python, "ValueError")["hits"]] == [
        ["b0", "catches_a_librarys"],  # a library's own error: at the program's line that it comes to
        ["b0", "translates"],
    ]
    assert len(run(python, "json.decoder.JSONDecodeError")["hits"]) == 1
    assert len(run(python, "LookupError if n == 'b'")["hits"]) == 1
    found = run(python, "KeyError if nothing > 1")
    assert found["hits"] == [] and found["failed"][0] == ["b0", "NameError"]


def test_what_ends_loops_is_no_exception_but_to_who_asks_for_it(python: str) -> None:
    assert not any("StopIteration" in hit[-1] for hit in run(python, "Exception")["hits"])


def test_without_a_breakpoint_and_a_count_nothing_is_traced(python: str) -> None:
    assert run(python) == {"counted": [], "hits": [], "failed": [], "traced": False}


def test_what_is_caught_for_the_first_time_is_news() -> None:
    news: list[int] = []
    caught, place = Caught(lambda: news.append(1)), Place("/job/reward.py", 12, "score")
    for _ in range(3):
        caught.add(Flight("KeyError", "'x'", place, place))
    assert len(news) == 1
    caught.add(Flight("OSError", "", place, place))
    assert len(news) == 2


def test_the_list_has_the_most_frequent_first_and_what_is_being_handled() -> None:
    caught = Caught()
    place = Place("/job/reward.py", 12, "score")
    once, often = Flight("KeyError", "'x'", place, place), Flight("ValueError", "", place, place._replace(line=20))
    caught.add(once)
    for _ in range(3):
        caught.add(often)
    caught.add(gone := Flight("OSError", "", place, place))
    caught.take_back(gone)
    before = time.time()
    listed = caught.listed([once, Flight("TypeError", "", place, place)])
    assert [(each["kind"], each["count"]) for each in listed] == [("ValueError", 3), ("KeyError", 2), ("TypeError", 1)]
    assert listed[1]["text"] == "'x'" and listed[1]["at"] == {"file": "/job/reward.py", "line": 12, "function": "score"}
    assert 0 <= listed[0]["ago"] <= time.time() - before + 1


def test_where_it_was_caught_is_the_handlers_line(python: str) -> None:
    """3.11 does not tell where a function went on: what cannot be known is the line from which it came."""
    lines = enumerate((HERE / "programs/handles.py").read_text().splitlines(), 1)
    marks = {mark.strip(): number for number, text in lines if "@" in text for mark in [text.partition("@")[2]]}
    is_old = "3.11" in subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout
    found = run(python, program="handles.py")
    assert len(found) > 10
    for name, caught in found.items():
        line = marks.get(f"{name} 3.11", marks[name]) if is_old else marks[name]
        assert caught == [[3, name, line]], name


def test_those_of_one_handler_are_one(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("def f(row):\n  try:\n    one(row)\n    two(row)\n  except Exception:\n    pass\n")
    caught, at = Caught(), Place("/job/score.py", 7, "score")
    for line, times in ((3, 4), (4, 5)):
        for _ in range(times):
            caught.add(Flight("KeyError", "", at, Place(str(path), line, "f")))
    [row] = caught.listed()
    assert (row["count"], row["by"]["line"], row["how"]) == (9, 5, "any")


def test_a_secret_in_a_message_is_hidden() -> None:
    caught = Caught()
    place = Place("/job/reward.py", 12, "score")
    caught.add(Flight("ValueError", "no such url https://me:hunter2@host/", place, place))
    assert "hunter2" not in json.dumps(caught.listed())
