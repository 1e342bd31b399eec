"""What a run has caught itself, after its end: which of it nobody may have meant to catch, and what is said of it."""

from __future__ import annotations

import json
import stat
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from devkit.debug import caught_view
from devkit.debug.inworker.caught import LOOKED_AT, MOST_LISTED, Caught, Flight, Place, flight
from devkit.debug.inworker.swallowing import ANY, NAMED, NONE, UNKNOWN, handler
from devkit.debug.rows import JobRow
from devkit.logs import view
from devkit.logs.collect import Left
from devkit.logs.events import Event, Raised
from devkit.logs.order import first_error
from devkit.logs.parse import Frame
from tests.debug.hubs import FakeAgent, identity, running_hub
from tests.pace import stretched

CODE = """\
try:
    raises()  # @any
except Exception:
    pass
try:
    raises()  # @bare
except:
    pass
try:
    raises()  # @key
except KeyError:
    pass
except Exception:
    pass
try:
    raises()  # @lookup
except (OSError, LookupError):
    pass
with contextlib.suppress(KeyError):
    raises()  # @suppress
with contextlib.suppress(Exception), open(path):
    raises()  # @suppress_all
try:
    try:
        raises()  # @inner
    except OSError:
        pass
    finally:
        tidy()
except Exception:
    pass
try:
    pass
except Exception:
    raises()  # @handling
try:
    raises()  # @theirs
except job.RewardError:
    pass
except Exception:
    pass
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code") / "reward.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize(
    ("mark", "kind", "how"),
    [
        ("any", "KeyError", ANY),
        ("any", "RewardError", ANY),
        ("bare", "KeyError", ANY),
        ("key", "KeyError", NAMED),
        ("key", "TypeError", ANY),
        ("lookup", "KeyError", NAMED),
        ("lookup", "TypeError", UNKNOWN),
        ("suppress", "KeyError", NAMED),
        ("suppress_all", "KeyError", ANY),
        ("inner", "KeyError", ANY),
        ("inner", "ConnectionResetError", NAMED),
        ("handling", "KeyError", UNKNOWN),
        ("theirs", "RewardError", NAMED),
        ("theirs", "TypeError", ANY),
        ("theirs", "OtherError", UNKNOWN),  # it may be derived from the one that is named
    ],
)
def test_a_handler_that_names_what_it_catches_means_it(code: Path, mark: str, kind: str, how: str) -> None:
    line = next(at for at, text in enumerate(CODE.splitlines(), 1) if text.endswith(f"# @{mark}"))
    assert handler(str(code), line, kind).how == how


def test_of_a_file_that_is_no_python_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("try:\n  f(\nexcept")
    assert handler(str(tmp_path / "x.py"), 2, "KeyError") == handler("<string>", 2, "KeyError") == NONE


def test_what_is_swallowed_is_listed_though_other_things_are_caught_more_often(code: Path) -> None:
    caught = Caught()
    for number in range(MOST_LISTED):
        named = Flight("KeyError", "", Place(str(code), 10, "f"), Place(str(code), 10, f"cached_{number}"))
        for _ in range(100):
            caught.add(named)
    rare, once = (Flight(kind, "", Place(str(code), 2, "f"), Place(str(code), 2, "g")) for kind in ("TypeError", "E"))
    for _ in range(LOOKED_AT):
        caught.add(rare)
    caught.add(once)
    assert [(each["count"], each["how"]) for each in caught.listed()] == [(100, NAMED)] * MOST_LISTED + [(3, ANY)]


def test_of_several_that_say_different_things_the_last_one_is_told_as_that(code: Path) -> None:
    caught = Caught()
    for tokens in (514, 514, 518):
        caught.add(Flight("TooLong", f"{tokens} tokens", Place(str(code), 2, "f"), Place(str(code), 2, "g")))
    assert [each["text"] for each in caught.listed()] == ["518 tokens (the last one)"]
    rows = [worker(rank, one(2, text=text)) for rank, text in enumerate(("514 tokens", "516 tokens"))]
    assert [each.said for each in caught_view.rows(rows)] == ["TypeError: 516 tokens (the last one)"]
    assert [each.said for each in caught_view.rows(rows[:1])] == ["TypeError: 514 tokens"]


def one(count: int, kind: str = "TypeError", how: str = "any", **changes: Any) -> dict[str, Any]:
    at, by = ({"file": "/job/reward.py", "line": line, "function": "f"} for line in (30, 41))
    return {"kind": kind, "text": "no api_key=abcdefgh1234", "at": at, "by": by, "count": count, "how": how} | changes


def worker(rank: int, *caught: dict[str, Any]) -> dict[str, Any]:
    return {**identity(f"w{rank}", rank), "caught": list(caught)}


TASK = {"by": {"file": "/v/lib/python3.12/asyncio/__init__.py", "line": 0, "function": "Task"}}
NOT_YET = (one(99, "Empty"), one(99, "TimeoutError"), one(99, "CancelledError"))
USUAL = (*NOT_YET, one(99, "KeyError", "named"), one(9, "ValueError"))
WELL = JobRow(job_id="01000000", status="SUCCEEDED", entrypoint="python w.py")


def test_of_a_run_without_an_error_what_it_swallowed_is_told() -> None:
    left = Left(WELL, (), (), (), caught=(worker(0, one(200), *USUAL), worker(1, one(184))))
    page = view.page(left, first_error([]), "/job").plain
    head, line = page.splitlines()
    assert head.startswith("no error was found in job 01000000") and head.endswith("the program caught these itself:")
    assert line.startswith("  384 x TypeError: no api_key="), "equal ones of all processes together"
    assert "abcdefgh1234" not in page
    assert line.endswith(", raised at reward.py:30 and caught at reward.py:41, which goes on (Worker ranks 0,1)")
    [told] = view.record(left, first_error([]))["caught"]
    assert (told["count"], told["at"], told["who"]) == (384, "/job/reward.py:30", ["Worker[0]", "Worker[1]"])


def test_of_a_process_that_was_killed_it_is_at_least_what_it_told() -> None:
    """One of several is enough: their sum may be more."""
    killed = {**worker(0, one(16)), "partial": True}
    for others, times in (((), 16), ((worker(1, one(184)),), 200)):
        left = Left(WELL, (), (), (), caught=(killed, *others))
        assert f"\n  at least {times} x TypeError" in view.page(left, first_error([]), "/job").plain


def test_what_a_task_keeps_is_told_as_that() -> None:
    kept = one(12, how="kept", **TASK)
    left = Left(WELL, (), (), (), caught=(worker(0, kept),))
    page = view.page(left, first_error([]), "/job").plain
    assert "raised at reward.py:30 and kept by asyncio tasks (Worker rank 0)" in page
    assert "but tasks or Futures of the program kept these:\n" in page and "caught" not in page
    both = Left(WELL, (), (), (), caught=(worker(0, kept, one(20)),))
    page = view.page(both, first_error([]), "/job").plain
    assert "but the program caught these itself, or tasks or Futures of it kept them:\n  20 x" in page


def test_what_failed_like_the_first_error_is_told_once() -> None:
    raised = Raised("TypeError", "no", (Frame("/job/reward.py", 30, "f"),))
    found = first_error([Event("crash", raised, 9.9, "Worker", 0, "10.0.0.1", 1, id="c1", kind="actor")])
    caught = (worker(0, one(12, how="kept", **TASK)),)
    crash = {"id": "c1", "frames": [], "unasked": ["12 other tasks of asyncio failed likewise at reward.py:30 in f"]}
    page = view.page(Left(WELL, (), (), (), crashes=(crash,), caught=caught), found, "/job").plain
    assert "12 other tasks" in page and "kept by" not in page, page
    page = view.page(Left(WELL, (), (), (), crashes=({**crash, "unasked": []},), caught=caught), found, "/job").plain
    assert "kept by asyncio tasks" in page, page


def test_usual_control_flow_is_no_trouble() -> None:
    left = Left(WELL, (), (), (), caught=(worker(0, *USUAL),))
    assert view.page(left, first_error([])).plain.splitlines() == [
        "no error was found in job 01000000 (SUCCEEDED): python w.py"
    ]
    assert caught_view.swallowed([worker(0)]) == caught_view.swallowed([identity("w")]) == []


@pytest.mark.parametrize("counted", [True, False])
def test_where_nothing_was_counted_how_to_count_is_told(counted: bool) -> None:
    page = view.page(Left(WELL, (), (), (), is_uncounted=not counted), first_error([])).plain
    assert ("devkit run --count-caught" in page) is not counted


def test_a_driver_that_ends_leaves_what_its_job_has_caught(tmp_path: Path) -> None:
    """Each process is asked once more: it has told of the first time at once, and of the others every two seconds."""
    full = {"seconds": 1.0, "ago": 0.0}
    with running_hub(tmp_path / "devkit/crashes") as hub:
        driver = FakeAgent(hub, {**identity("d1"), "role": "driver"})
        living = FakeAgent(hub, identity("w1"), {"caught": {"caught": [one(300, **full)]}})
        living.connection.send({**living.report_of(), "caught": [one(1, **full)]})
        dead = FakeAgent(hub, identity("w2", 1))
        dead.connection.send({**dead.report_of(), "caught": [one(84, **full)]})
        dead.connection.send({"type": "bye", "reason": "it has ended"})
        ended = FakeAgent(hub, identity("w3", 2))
        ended.connection.send({**ended.report_of(), "caught": [one(16, **full)]})
        ended.connection.send({"type": "caught", "caught": [one(384, **full)]})
        ended.connection.send({"type": "bye", "reason": "it has ended"})
        with hub.client() as client:
            end = time.monotonic() + stretched(10)
            while len(client.call("caught", job_id="01")["workers"]) < 3 or len(client.call("ps")["workers"]) > 2:
                assert time.monotonic() < end
        driver.connection.send({"type": "leaving", "caught": [one(2, **full)], "counted": True})
        assert driver.settled.wait(stretched(20))
    assert driver.requests == [], "an interpreter that ends starts no thread to answer"
    path = tmp_path / "devkit/caught-01.json"
    document = json.loads(path.read_text())
    assert document["counted"] and stat.S_IMODE(path.stat().st_mode) == 0o600
    told = {each["worker_id"]: (each["caught"][0]["count"], each["partial"]) for each in document["workers"]}
    assert told == {"d1": (2, False), "w1": (300, False), "w2": (84, True), "w3": (384, False)}


def test_a_process_that_ends_with_its_driver_is_asked_before_that_has_found_out_the_rest(tmp_path: Path) -> None:
    """An actor whose last handle was the driver's ends just then: it is asked at once, not when all else is known."""
    full = {"seconds": 1.0, "ago": 0.0}
    with running_hub(tmp_path / "devkit/crashes") as hub:
        none = {"kept": {"documents": []}}  # crashes, of which a process that is gone may have left some
        driver = FakeAgent(hub, {**identity("d1"), "role": "driver"}, none)
        lost = FakeAgent(hub, identity("w1"))
        ending = FakeAgent(hub, identity("w2", 1), {"caught": {"caught": [one(384, **full)]}, **none})
        ending.connection.send({**ending.report_of(), "caught": [one(16, **full)]})
        looks = count()

        async def fate(worker_id: str, _node_id: str, _job_id: str) -> dict[str, Any] | None:
            if not hub.hub.leaving.is_set() or next(looks) < LATE:
                return None
            ending.close()
            return {"reason": "it has ended"}

        hub.hub.surroundings.fate = fate  # type: ignore[method-assign]
        lost.close()
        with hub.client() as client:
            end = time.monotonic() + stretched(10)
            while not client.call("caught", job_id="01")["workers"] or all(
                each["connected"] for each in client.call("ps")["workers"]
            ):
                assert time.monotonic() < end
        driver.connection.send({"type": "leaving", "caught": [], "counted": True})
        assert driver.settled.wait(stretched(20))
    [told] = json.loads((tmp_path / "devkit/caught-01.json").read_text())["workers"]
    assert (told["caught"][0]["count"], told["partial"]) == (384, False)


LATE = 5  # looks for what became of a process, while a driver waits for that


def test_an_actor_that_is_not_found_is_told_without_rays_guesses() -> None:
    message = "Failed to look up actor with name 'store'. This could because 1. You are trying to look up a named actor"
    try:
        raise ValueError(f"{message} you didn't create. 2. The named actor died. 3. ...")
    except ValueError as error:
        found = flight(error, error.__traceback__)
    assert found is not None and found.text == "Failed to look up actor with name 'store'"
