"""`devkit crashes`: the list, and one crash as a person reads it, from snapshots that were really taken."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.debug import crashes
from devkit.debug.crash_page import chain_of, crash_page
from devkit.debug.crash_table import crash_table, first_like
from devkit.debug.inworker import snapshot
from devkit.debug.inworker.records import CrashRecord, Identity
from devkit.debug.inworker.vanished import vanished
from devkit.debug.kept_values import value_text
from devkit.errors import UsageError
from tests.debug.hub_fake import FakeHub, printed

WHO = Identity("02000000", "w1", "node", "10.0.0.5", "host", 4001, "Worker", rank=1, python="3.11.7")
HERE = str(Path(__file__).parent)


def parse(text: str, limit: int) -> int:
    parsed = json.loads(text)  # @library: what raises is not ours
    return int(parsed) + limit


def train(step: int) -> None:
    config = {"lr": 1e-5, "secret_token": "hunter2"}
    try:
        parse("{", len(config))  # @inner
    except ValueError as error:
        raise RuntimeError(f"step {step} failed") from error  # @outer


def take(**changes: Any) -> dict[str, Any]:
    try:
        train(17)
    except RuntimeError as error:
        return {**snapshot.take(error, WHO, "task", budget=5.0), **changes}
    raise AssertionError("it did not fail")


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# @{mark}"))


def shown(document: dict[str, Any], width: int | None = None, **options: Any) -> str:
    return printed(crash_page(document, [], document["time"] + 12, width=width, cwd=HERE, **options))


def test_the_first_cause_stands_on_top() -> None:
    text = shown(take())
    cause, led, raised = (text.index(part) for part in ("JSONDecodeError: ", "which led to", "RuntimeError: step 17"))
    raised = text.index("RuntimeError: step 17", led)
    assert cause < led < raised


def test_a_users_frame_has_its_line_and_its_variables() -> None:
    text = shown(take())
    outer = line_of("outer")
    assert f"test_crashes_view.py:{outer} in train" in text
    assert f"->{outer:>5}          raise RuntimeError" in text
    assert "step = 17" in text and "config = {'lr': 1e-05, 'secret_token': '<redacted>'}" in text
    assert "text = '{'" in text and "limit = 2" in text


def test_frames_of_libraries_are_folded_to_the_call_into_them() -> None:
    folded, everything = shown(take()), shown(take(), everything=True)
    assert "json/__init__.py" in folded and "in loads  (+1 more)" in folded and "in JSONDecoder.decode" not in folded
    assert "in JSONDecoder.raw_decode" in folded and "self.scan_once(s, idx)" in folded, "the line that raised it"
    assert "raw_decode" in everything and "thread MainThread" in everything


def test_the_head_says_who_where_and_when() -> None:
    lines = shown(take(attempt=2)).splitlines()
    assert lines[0] == "RuntimeError: step 17 failed"
    assert lines[1] == "Worker[1] · task · 10.0.0.5 pid 4001 · job 02000000 · 12 s ago · attempt 3"


def test_no_line_is_wider_than_the_terminal_and_a_long_value_goes_on_below() -> None:
    document = take()
    document["frames"][0]["locals"]["grads"] = {
        "tensor": {
            "dtype": "float32",
            "shape": [4, 8],
            "device": "cpu",
            "min": -1.8,
            "max": 2.1,
            "nan": 1,
            "hash": "0a1b",
        }
    }
    document["frames"][0]["locals"]["a_longer_name"] = [f"item {number}" for number in range(30)]
    text = shown(document, width=70)
    # What an exception says is its own words: it is not cut, and goes on where the terminal ends.
    assert max(len(line) for line in text.splitlines() if "Error: " not in line) <= 70
    assert "nan=1 #0a1b" in " ".join(text.split())


def test_calls_from_one_line_again_and_again_are_shown_once() -> None:
    frame = {"file": "/job/tree.py", "line": 7, "function": "Node.__repr__"}
    words = {"kind": "signal", "signal": "SIGSEGV", "message": "Segmentation fault", "frames": [frame] * 100}
    task = {"task_id": "t1", "name": "deep", "attempt": 0}
    document = vanished(WHO, words, "died", task=task)
    page = printed(crash_page(document, [], document["time"]))
    assert page.count("tree.py:7 in Node.__repr__") == 2 and "(+98 more at this line)" in page, page
    assert "it may have run out of stack: it was 100 or more calls deep, of which 100 are Node.__repr__" in page
    assert "in deep; its arguments" in page, "a dump has the innermost calls alone"
    few = vanished(WHO, {**words, "frames": [frame] * 3}, "died", task=task)
    assert "more at this line" not in printed(crash_page(few, [], few["time"]))


def test_a_follower_names_its_root_and_the_root_its_followers() -> None:
    document = take()
    root = CrashRecord.from_json(document)
    follower = replace(root, id="f0", role="driver", rank=None, root=root.id)
    page = printed(crash_page({**document, "id": "f0", "root": root.id, "light": True}, [root, follower], 0))
    assert f"caused by crash {root.id} in Worker[1], which alone has variables: devkit crashes show" in page
    assert "then came: f0 (driver)" in printed(crash_page(document, [root, follower], 0))
    supposed = {**document, "id": "f0", "root": root.id, "supposed": True}
    page = printed(crash_page(supposed, [root, follower], 0))
    assert f"may follow from crash {root.id} in Worker[1]" in page and "caused by" not in page


def test_what_failed_before_it_in_the_same_job_is_named() -> None:
    """A program that goes on without what has died fails later, of something else."""
    document = take()
    own = CrashRecord.from_json(document)
    gone = {"type": "SystemExit", "message": "None"}
    dead = replace(own, id="d0", role="Grader", rank=None, exception=gone, time=own.time - 2)
    again = replace(dead, id="d1", time=own.time - 1)
    other = replace(dead, id="d2", job_id="another")
    follower = replace(dead, id="d3", role="driver", root="d0")
    page = printed(crash_page(document, [dead, again, other, follower, own], 0))
    assert "before it, in the same job: d0 (Grader, SystemExit)\n" in page
    assert "before it" not in printed(crash_page(document, [own, other], 0))


def test_a_process_that_vanished_has_a_page_too() -> None:
    document = vanished(WHO, None, "killed: out of memory")
    text = shown(document)
    assert "ProcessDied: killed: out of memory" in text


def test_the_chain_has_the_frames_of_every_exception() -> None:
    for each in chain_of(take()):
        assert each["frames"] and all("user" in frame for frame in each["frames"])


def hub_with(*documents: dict[str, Any]) -> FakeHub:
    records = [CrashRecord.from_json(each).to_json() for each in documents]
    by_id = {each["id"]: each for each in documents}
    return FakeHub(crashes={"crashes": records}, crash=lambda id: by_id[id])  # noqa: A006 - the operation's own word


def test_json_of_the_list_has_the_promised_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert crashes.run_list(hub_with(take()), json=True) == 0
    [record] = json.loads(capsys.readouterr().out)["crashes"]
    promised = {"id", "role", "rank", "node_ip", "pid", "time", "exception", "file", "line", "function", "root"}
    assert promised <= set(record)


def test_json_of_one_has_frames_with_source_and_locals(capsys: pytest.CaptureFixture[str]) -> None:
    document = take(id="abcdef")
    hub = hub_with(document)
    assert crashes.run_show(hub, "abc", json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"file", "line", "function", "source", "locals"} <= set(told["frames"][0])
    assert told["root"] is None and hub.asked[-1] == ("crash", {"id": "abcdef"})


def test_the_one_that_is_shown_may_be_a_job_s(capsys: pytest.CaptureFixture[str]) -> None:
    hub = hub_with(take(id="abc1", job_id="01"), take(id="abc2", job_id="02"), take(id="ffff", job_id="03"))
    assert crashes.run_show(hub, "", job="01", json=True) == crashes.run_show(hub, "abc", job="02", json=True) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["abc1", "abc2"]


def test_an_unknown_id_is_a_usage_error_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no crash has the id 'abx'") as caught:
        crashes.run_show(hub_with(take(id="abc1"), take(id="ffff")), "abx")
    assert "abc1" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        crashes.run_show(hub_with(), "abx")
    assert caught.value.hint == "there is no crash"


def test_the_list_puts_followers_below_their_cause(capsys: pytest.CaptureFixture[str]) -> None:
    root = CrashRecord.from_json(take(id="root", time=50.0))
    follower = replace(root, id="next", role="driver", rank=None, root="root", time=51.0)
    other = replace(root, id="other", rank=2, time=60.0)
    lines = printed(crash_table([root, follower, other], 100.0, width=None, cwd=HERE)).splitlines()
    assert lines[0].startswith("other  Worker[2]"), "the newest cause comes first"
    assert lines[2] == "root  Worker[1]  RuntimeError: step 17 failed"
    assert lines[3].startswith(f"      test_crashes_view.py:{line_of('outer')} in train · 50 s ago")
    assert lines[4] == "      then next  driver  RuntimeError"


def test_what_came_after_the_drivers_end_is_marked_and_of_one_kind_with_its_cause_stands_below_it() -> None:
    """The end of a `with` of the driver takes away what later calls need: they fail as the first one did."""
    own = CrashRecord.from_json(take(time=100.0))

    def crash(name: str, time: float, **changes: Any) -> CrashRecord:
        said = {"type": "RuntimeError", "message": f"step {name} failed"}
        return replace(own, **{"id": name, "time": time, "exception": said, "kind": "actor", **changes})

    driver = crash("end", 101.0, kind="driver", role="driver", rank=None, root="c1", pid=1)
    seen = [crash("c1", 100.0), crash("c2", 100.5), driver, crash("c3", 101.1), crash("c4", 102.0), crash("c5", 103.0)]
    ids = [line.split()[0] for line in listed(seen) if line.startswith("c")]
    assert ids == ["c3", "c2", "c1", "c5", "c4"]
    late = [line for line in listed(seen) if " · after the driver had failed · " in line]
    assert len(late) == 2, "what fails at the same time may be kept a little later"
    assert crashes._newest(seen) == "c1"
    page = printed(crash_page(take(id="c5", time=103.0), seen, 0))
    assert "after the driver had failed by RuntimeError in Worker[1]: devkit crashes show c1\n" in page
    assert "after the driver" not in printed(crash_page(take(id="c1", time=100.0), seen, 0))
    # Of another kind it is marked, and stays the newest.
    other = crash("c6", 104.0, line=own.line + 1)
    assert crashes._newest([*seen, other]) == "c6"
    assert listed([*seen, other])[0].startswith("c6 ") and "after the driver had failed" in listed([*seen, other])[1]


def listed(seen: list[CrashRecord]) -> list[str]:
    return printed(crash_table(seen, 110.0, width=None, cwd=HERE)).splitlines()


@pytest.mark.parametrize(
    "changes",
    [{"node_ip": "10.0.0.9"}, {"kind": "exit"}, {"job_id": "another"}, {"time": 100.9}],
    ids=lambda changes: next(iter(changes)),
)
def test_nothing_is_said_to_be_after_the_drivers_end_that_may_not_be(changes: dict[str, Any]) -> None:
    own = replace(CrashRecord.from_json(take(time=100.0)), id="c1", kind="actor")
    driver = replace(own, id="end", time=101.0, kind="driver", role="driver", rank=None, root="c1", pid=1)
    later = replace(own, **{"id": "c2", "time": 103.0, **changes})
    seen = sorted([own, driver, later], key=lambda each: each.time)
    assert "after the driver" not in "".join(listed(seen))
    left = replace(driver, exception={"type": "SystemExit", "message": "1"})  # which it may have caught itself
    assert "after the driver" not in "".join(listed([own, left, replace(own, id="c2", time=103.0)]))


def test_a_crash_is_of_the_moment_at_which_it_was_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read for its snapshot takes a while, in which others fail."""
    clock = iter(range(100, 100000))
    monkeypatch.setattr(snapshot.time, "time", lambda: float(next(clock)))
    assert take()["time"] == 100.0


def test_a_second_attempt_is_listed_below_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = take(id="a1", task_id="t", time=1.0), take(id="a2", task_id="t", time=2.0)
    crashes.run_list(hub_with(second, first), json=True)
    told = json.loads(capsys.readouterr().out)["crashes"]
    assert [(each["id"], each["root"]) for each in told] == [("a1", None), ("a2", "a1")]


def test_a_follower_whose_root_is_not_kept_is_still_listed() -> None:
    orphan = replace(CrashRecord.from_json(take()), id="orphan", root="lost")
    assert "orphan" in printed(crash_table([orphan], 0, width=80))


def test_no_crashes_is_said_and_what_would_be_here() -> None:
    text = printed(crash_table([], 0, width=200))
    assert text.startswith("no crashes\n") and "deaths of processes that nobody has asked for appear here" in text
    assert "devkit hang" in text and "devkit hang" not in printed(crash_table([], 0, width=200, over=True))


def leave() -> None:
    try:
        parse("{", 0)
    except ValueError:
        sys.exit(1)


def test_of_an_exit_in_a_handler_the_list_says_what_was_handled() -> None:
    try:
        leave()
    except SystemExit as error:
        left = CrashRecord.from_json(snapshot.take(error, WHO, "exit", budget=5.0))
    text = printed(crash_table([left], left.time, width=None, cwd=HERE))
    handled = "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    at = f"test_crashes_view.py:{line_of('library: what raises is not ours')}"
    assert f"SystemExit: 1, while {handled} ({at}) was handled\n" in text, text
    with pytest.raises(SystemExit) as plain:
        sys.exit(2)
    assert snapshot.take(plain.value, WHO, "exit")["handled"] == ""


def test_what_came_of_equal_crashes_is_counted_together() -> None:
    one = CrashRecord.from_json(take(time=100.0))
    twice = [replace(one, id="a1"), replace(one, id="a2")]
    then = [replace(one, id=f"b{at}", root=f"a{at % 2 + 1}", role="Other", time=101.0) for at in range(6)]
    page = printed(crash_page(take(id="a1", time=100.0), [*twice, *then], 102.0))
    assert "then came: b0 (Other[1]), b1 (Other[1]), b2 (Other[1]), b3 (Other[1]) and 2 more\n" in page, page
    earlier = replace(then[0], id="c0", root="a2", time=90.0)  # of the other one, and before this one
    assert "c0" not in printed(crash_page(take(id="a1", time=100.0), [*twice, earlier], 102.0))


def test_one_line_of_output_is_a_line() -> None:
    assert "the last line of its output:\n  one\n" in shown(take(wrote=["one"]))
    assert "the last lines of its output:\n  one\n  two\n" in shown(take(wrote=["one", "two"]))


def test_equal_crashes_are_one_row_with_their_number() -> None:
    once = CrashRecord.from_json(take(time=100.0))
    again = [replace(once, id=f"again{at:02}", time=70 + at / 2, pid=at) for at in range(43)]
    elsewhere = replace(once, id="elsewhere", line=once.line + 1, time=40.0)
    follower = replace(once, id="follower", root="again03", role="driver", rank=None, kind="driver")
    page = printed(crash_table([*again, elsewhere, follower], 100.0, width=None, cwd=HERE))
    rows = [line for line in page.splitlines() if line.startswith(("again", "elsewhere"))]
    assert [row.partition(" ")[0] for row in rows] == ["again42", "elsewhere"], page
    assert page.count(" · 43 times in 21 s in 43 processes · 9 s ago") == 1 and page.count(" times in ") == 1, page
    assert "then follower  driver" in page


def test_of_processes_that_fail_together_the_first_stands_for_all() -> None:
    """As `devkit logs --first-error` names it; the newest may be any of a hundred ranks."""
    once = CrashRecord.from_json(take(time=100.0))
    ranks = [replace(once, id=f"rank{at}", time=100 + at / 10, pid=at) for at in range(4)]
    page = printed(crash_table(ranks, 110.0, width=None, cwd=HERE))
    assert page.startswith("rank0 ") and " · 4 times within a second in 4 processes · 9 s ago" in page, page
    assert first_like(ranks[2], ranks).id == "rank0"


def test_a_list_fits_its_terminal() -> None:
    record = CrashRecord.from_json(take())
    long = replace(record, exception={"type": "ValueError", "message": "no " * 200 + "\nsecond line"})
    assert max(map(len, printed(crash_table([long], 0, width=80)).splitlines())) <= 80


def test_what_a_sentence_of_the_list_leads_to_goes_on_below() -> None:
    said = "the object 0040 is lost with its owner: it was killed by ray.kill, called at c05.py:54 in generate"
    record = replace(CrashRecord.from_json(take()), exception={"type": "OwnerDiedError", "message": said})
    first, second, third, *_ = printed(crash_table([record], record.time, width=90, cwd=HERE)).splitlines()
    assert second.startswith(" " * 14) and second.endswith("c05.py:54 in generate") and "…" not in first + second
    assert "test_crashes_view.py:" in third


class Loader:
    def __init__(self) -> None:
        self.items = [f"problem {number}" for number in range(40)]
        self.resume_at = 48

    def begin(self) -> None:
        for _ in range(self.resume_at):
            raise KeyError(self)


class Sample:
    def __init__(self, index: int) -> None:
        self.index, self.tokens = index, list(range(100 * index, 100 * index + 90))


def convert(samples: list[Sample]) -> None:
    for sample in samples:
        raise ValueError(sample.index)


def outer(samples: list[Sample]) -> None:
    convert(samples)


def failed() -> dict[str, Any]:
    try:
        outer([Sample(1), Sample(2)])
    except ValueError as error:
        return snapshot.take(error, WHO, "task", budget=5.0)
    raise AssertionError


def test_what_the_line_looks_at_stands_first_and_what_is_left_out_is_no_item() -> None:
    try:
        Loader().begin()
    except KeyError as error:
        document = snapshot.take(error, WHO, "task", budget=5.0)
    text = " ".join(shown(document, width=90).split())
    assert "self = Loader(resume_at=48, items=['problem 0', " in text, text
    text = shown(document, everything=True)
    assert "'problem 19', ... 20 more], resume_at=48)" in text, "whole, and as the program has it"


def test_a_long_value_is_shown_once() -> None:
    document = failed()
    text = shown(document)
    assert "sample = (reads as samples[0] above)" in text and text.count("samples = (reads as samples above)") == 1, (
        text
    )
    assert text.count("tokens=[100, ") == 1 and "reads as" not in shown(document, everything=True)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@given(plain)
def test_plain_values_read_as_python_writes_them(value: Any) -> None:
    import ast

    assert ast.literal_eval(value_text(value)) == value
