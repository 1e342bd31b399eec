"""MATH: finding the boxed answer, deciding equality, and bounding the time that it takes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pace import stretched
from trainer.errors import RewardError
from trainer.rewards import math
from trainer.rewards.checker import Checker

ENDLESS = "10^{10^{10^{10}}}"  # one C call that no Python signal handler can interrupt


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    """One for all that ask it something: its child takes a second to start, and whoever ends that leaves another."""
    checker = Checker(cpu_seconds=0.7)
    yield checker
    checker.close()


@pytest.fixture
def fresh() -> Iterator[Checker]:
    """One that has no child yet."""
    checker = Checker(cpu_seconds=0.7)
    yield checker
    checker.close()


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),  # escaped braces need no partner
        (r"\boxed {7}", "7"),
        ("$\\boxed 5$, yes", "5"),
        (r"\fbox{3}", "3"),
        (r"\boxed{4} \fbox{3}", "4"),
        (r"\boxed{1} then \boxed{\frac{1}{2}", None),  # cut off: the last answer never came
        (r"\boxedness", None),
        ("5", None),
        ("", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert math.last_boxed(text) == content


balanced = st.recursive(
    st.text(alphabet="ab1+ \n$", max_size=5) | st.sampled_from([r"\{", r"\}", r"\\", r"\frac"]),
    lambda inner: st.lists(inner, max_size=3).map("".join) | inner.map(lambda text: f"{{{text}}}"),
)


@settings(max_examples=50)
@given(balanced, st.text(alphabet="ab{}$ \n"), st.text(alphabet="ab{}$ \n"))
def test_last_boxed_finds_any_balanced_content(content: str, before: str, after: str) -> None:
    assert math.last_boxed(f"{before}\\boxed{{{content}}}{after}") == content


@given(st.text(alphabet="\\boxedf{} $5"))
def test_last_boxed_takes_any_text(text: str) -> None:
    math.last_boxed(text)


@given(st.text(alphabet="\\left dfrac{}^circ%$.,!~10"))
def test_equal_text_is_equivalent(text: str) -> None:
    assert math.equivalent(text, text) == (math.clean(text) != "")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("10{,}000", "10,\\!000"),
        (r"\dfrac{3}{4}", r"\frac{3}{4}"),
        (r"90^\circ", "90"),
        (r"50\%", "50"),
        (r"\text{Evelyn}", "Evelyn"),
        ("7", "007"),
        # these go to math-verify
        (r"\frac{1}{2}", "0.5"),
        (r"\frac34", "3/4"),
        ("x^2+2x+1", "(x+1)^2"),
        ("10000", "10,000"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        ("(1,2)", "( 1 , 2 )"),
        ("5", r"5\text{ cm}"),
    ],
)
def test_equivalent(gold: str, answer: str) -> None:
    assert math.equivalent(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", "6"),
        ("5", "-5"),
        (r"\frac{1}{2}", "0.6"),
        ("(1,2)", "(2,1)"),
        ("x+1", "x-1"),
        ("5", ""),
        ("", ""),
        ("5", "}{"),
    ],
)
def test_not_equivalent(gold: str, answer: str) -> None:
    assert not math.equivalent(gold, answer)


def test_a_very_long_answer_is_wrong_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "_verified", lambda gold, answer: pytest.fail("asked"))

    assert not math.equivalent("x", "x" + "+0" * math.MAX_ANSWER_CHARS)


@pytest.mark.parametrize(("text", "score"), [(r"thus \boxed{0.5}", 1.0), (r"thus \boxed{0.6}", 0.0), ("thus 0.5", 0.0)])
def test_math_score(text: str, score: float) -> None:
    assert math.compute_score(solution_str=text, ground_truth=r"\frac{1}{2}") == score


def test_works_in_many_threads_at_once(checker: Checker) -> None:
    wrong: list[int] = []

    def work(n: int) -> None:
        for i in range(n, n + 5):
            if not checker.equal(f"{i}+1", str(i + 1)) or checker.equal(f"{i}+1", str(i)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(0, 40, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=stretched(60))

    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)


def test_an_endless_comparison_is_wrong_and_the_next_one_is_served(checker: Checker) -> None:
    start = time.monotonic()

    assert not checker.equal("2", ENDLESS)
    assert checker.equal("2", r"\frac{4}{2}")
    assert time.monotonic() - start < 30  # 0.7 s of processor time, and a child that starts anew


def test_a_stalled_child_is_ended(checker: Checker) -> None:
    assert checker.equal("1", "1")
    child = checker._child
    assert child is not None
    checker._wall_seconds = 0.2

    os.kill(child.pid, signal.SIGSTOP)

    assert not checker.equal("1", "1")
    assert child.returncode == -signal.SIGKILL
    checker._wall_seconds = 60.0
    assert checker.equal("1", "1")


def test_a_child_that_was_ended_while_idle_is_replaced(checker: Checker) -> None:
    assert checker.equal("1", "1")
    child = checker._child
    assert child is not None

    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert checker.equal("1", "1")


def test_a_child_that_cannot_work_is_an_error_and_not_a_wrong_answer(
    fresh: Checker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainer.rewards.checker._PROGRAM", "import sys; sys.exit(3)")

    with pytest.raises(RewardError, match="exit code 3"):
        fresh.equal("1", "1")


def test_without_the_library_there_is_a_hint(fresh: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.rewards.checker.importlib.util.find_spec", lambda name: None)

    with pytest.raises(RewardError) as caught:
        fresh.equal("1", "1")

    assert caught.value.hint == "pip install math-verify"


def _score_in_child() -> bool:
    return math.equivalent("x+x", "2x") and not math.equivalent("x+x", "3x")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12: threads are up
def test_works_after_a_fork_with_the_parents_child_running() -> None:
    assert math.equivalent("y+y", "2y")  # the parent's child is up

    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = [pool.apply_async(_score_in_child) for _ in range(4)]
        assert all(result.get(timeout=stretched(60)) for result in results)

    assert math.equivalent("z+z", "2z")  # and still serves the parent


def test_close_ends_the_child(checker: Checker) -> None:
    checker.equal("1", "1")
    child = checker._child
    assert child is not None

    checker.close()

    assert child.returncode is not None
