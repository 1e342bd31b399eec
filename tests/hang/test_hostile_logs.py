"""Logs in which anything may stand: they are read in a time that grows with them, and never end the reader."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devkit.debug.rows import JobRow
from devkit.logs import parse, view
from devkit.logs.collect import Left, LogFile, of_log
from devkit.logs.events import Event, Raised
from devkit.logs.follows import weigh
from devkit.logs.order import first_error
from tests.growth import assert_linear

HEAD = "Traceback (most recent call last):\n"
PIECES = st.sampled_from(
    [
        *(HEAD, '  File "/job/a.py", line 7, in f\n', '  File "<string>", line 99999999999999999999\n', "    x[9]\n"),
        *("ValueError: bad\n", "KeyboardInterrupt\n", "a.b.C\n", "\n", "\x1b[31m", "[rank 1]: ", "(raylet) "),
        *("(Worker rank=3 pid=7, ip=10.0.0.1) ", "ray::f() (pid=9, ip=10.0.0.2)\n", "RayTaskError(\n", "  | "),
        "ray.exceptions.RayTaskError(KeyError): ray::g() (pid=1)\n",
        "\nThe above exception was the direct cause of the following exception:\n\n",
        "During handling of the above exception, another exception occurred:\n",
        *("*** SIGSEGV received\n", "error: no\n", "bash: line 3: foo: command not found\n", "  + Exception Group "),
        *("2026-11-23 05:20:44,5 ERROR ", "2026-99-99 99:99:99 ", "CUDA error: x\n", "Fatal Python error: \n"),
        *("\u2028", "\r", "\0"),
    ]
)
LOGS = st.lists(PIECES | st.text(max_size=6), max_size=25).map("".join)


def left(text: str) -> Left:
    name = "worker-" + "ab" * 28 + "-01000000-77.err"
    file = LogFile("n" * 56, "10.0.0.1", name, text)
    return Left(JobRow(job_id="01000000", status="FAILED"), tuple(of_log(file)), (file,), ())


@settings(max_examples=300, deadline=None)
@given(LOGS)
@example(HEAD)
@example(HEAD + HEAD)
@example(HEAD + '  File "a", line 1\n' + "ray::" * 50)
@example("ray.exceptions.RayTaskError(: ray::() (pid=0")
@example("(x pid=" + "9" * 5000 + ") error: x\n")
@example('  File "a", line ' + "9" * 5000 + "\n")
def test_any_log_can_be_read(text: str) -> None:
    """Each error stands in one of its lines, and what is found can be shown."""
    lines = text.splitlines()
    for found in parse.find(text):
        assert 0 <= found.line < len(lines) and found.raised.type
    parse.innermost(text)
    all_of_it = left(text)
    found = first_error(all_of_it.events)
    assert view.page(all_of_it, found).plain.strip() and view.record(all_of_it, found)["status"] == "FAILED"


LONG: dict[str, Callable[[int], str]] = {
    "names of tasks": lambda n: HEAD + "  x\n" + "ray::" * 10 * n,
    "a prefix without an end": lambda n: "(" + "a pid" * 10 * n,
    "words before a colon": lambda n: "a/" * 20 * n + ": x",
    "one word": lambda n: "a" * 40 * n,
    "colours": lambda n: "\x1b[" * 20 * n,
    "tracebacks": lambda n: (HEAD + "  x\nE: x\n") * n,
    "heads": lambda n: HEAD * n,
    "blank lines": lambda n: HEAD + "  x\nValueError: x\n" + "\n" * 20 * n + "x",
    "a chain": lambda n: (
        (HEAD + "  x\nE: x\n\nDuring handling of the above exception, another exception occurred:\n\n") * n
    ),
    "errors that differ": lambda n: "".join(f"error: number {number}\n" for number in range(n)),
    "one error in many places": lambda n: "".join(
        f'{HEAD}  File "/job/a.py", line {number}, in f\n    x\nE: x\n' for number in range(n)
    ),
    "what is said over and over": lambda n: "error: " + "placement group name already " * n,
    "waits": lambda n: "error: " + "store wait socket " * 2 * n,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_log_is_read_in_a_time_that_grows_with_it(name: str) -> None:
    def read(size: int) -> None:
        all_of_it = left(LONG[name](size))
        found = first_error(all_of_it.events)
        assert len(view.page(all_of_it, found).plain) < 1_000_000

    assert_linear(read, 500)


def test_of_many_errors_at_one_time_some_are_shown() -> None:
    events = [Event("log", Raised("ValueError", f"number {number}"), 10.0, pid=number) for number in range(1, 200)]
    found = first_error(events)
    text = view.page(left(""), found).plain
    assert text.count("at the same time") < 12 and "and 190 more errors at the same time" in text
    assert len(view.record(left(""), found)["others"]) == 198


@pytest.mark.parametrize(
    "said", ["placement group name already " * 5000, "wait " * 5000, "peer " * 5000, "actor name " * 5000]
)
def test_a_long_message_is_weighed_by_its_beginning(said: str) -> None:
    assert (
        weigh(Event("log", Raised("RuntimeError", f"Connection closed by peer {said}"))).why
        == "a peer that closed its connection"
    )
