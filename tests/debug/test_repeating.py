"""Loops whose variables come back to the same values, in threads that compute."""

from __future__ import annotations

import ast
import ctypes
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from devkit.debug.inworker import locks, pure_functions, repeating, self_contained, turning
from tests.debug.conftest import eventually

Document = dict[str, Any]
OVER = threading.Event()
RULES = [(re.compile(r"\s+"), ""), (re.compile(r"(?<![\d.])0+(?=[\d.])"), ""), (re.compile(r"(?<!\d)\.(?=\d)"), "0.")]
PAIRS = (("aa", "b"), ("b", "aa"))
BRACKETS = re.compile(r"\((.)\)")
STOP = [0]
ASKED = False


class Enough(BaseException):
    """Ends a loop from outside."""


def undoes(expr: str = "0.5") -> str:
    changed = True
    while changed:
        changed = False
        for pattern, repl in RULES:
            new = pattern.sub(repl, expr)
            if new != expr:
                expr, changed = new, True
                break
    return expr


def undoes_words(text: str = "aa c") -> str:
    while True:
        before = text
        for old, new in PAIRS:
            text = text.replace(old, new)
        words = text.split()
        text = " ".join(words[::-1])
        if text == before[:0]:
            return text


def oscillates(x: float = 1.0) -> float:
    step = 2.0
    while abs(x) > 0.1:
        x = x - step * x
    return x


def matches(text: str = "a(b)") -> str:
    while found := BRACKETS.search(text):
        inner = found.group(1)
        text = text[: found.start()] + "[" + inner + "]" + text[found.end() :]
        if text == "a[b]":
            text = text.replace("[", "(").replace("]", ")")
    return text


def stays(n: int = 6) -> int:
    while n % 4:
        n = n + n % 2
    return n


def power_iteration() -> None:
    matrix, v, gap = torch.eye(2), torch.ones(2), 1.0
    while gap > -1.0:
        w = matrix @ v
        gap = float((w - v).norm())
        v = w / w.norm()


def parses(text: str = "x" * 10**7) -> int:
    at = 0
    while at < len(text):
        at = at + 1 if text[at] == "x" else len(text)
    return at


def collatz_like(n: int = 1) -> int:
    seen = 0
    while seen >= 0:
        n = 1 if n > 10**6 else n + 1
        seen += 1
    return seen


def counts_for_nobody() -> None:
    odd, seen = 0, 0
    while True:
        odd = 1 - odd
        seen += 1


def searches_broadly() -> None:
    queue, at = deque([0]), 0
    while queue:
        at = queue.popleft()
        queue.append((at + 1) % 3)


class Job:
    done = False

    def polls(self) -> None:
        count = 0
        while not self.done:
            count = 1 - count


def samples_until_accepted() -> None:
    rng, kept = Random(0), 0.0
    while kept < 2.0:
        kept = round(rng.random())


def reads_a_file() -> None:
    with Path(__file__).open() as file:
        line = "x"
        while line != "never":
            line = file.readline()[:1] or str(file.seek(0))[:0]


def waits_for_the_time() -> None:
    end, odd = time.time() + 600.0, 0
    while time.time() < end:
        odd = 1 - odd


def tokenizes(rest: str = "ab " * 3000) -> None:
    word = re.compile(r"[ab]+|\s+")
    while rest:
        found = word.match(rest)
        rest = rest[found.end() :] if found else ""
        if len(rest) < 100:
            rest = "ab " * 3000


def spins_on_a_shared_list() -> None:
    turn = 0
    while not STOP[0]:
        turn = 1 - turn


def spins_through_a_shared_list() -> None:
    found = False
    while not found:
        for each in STOP:
            if each:
                found = True


def spins_on_a_global() -> None:
    turn = 0
    while not ASKED:
        turn = 1 - turn


def spins_on_a_variable_of_two() -> None:
    done = False

    def end() -> None:
        nonlocal done
        done = True

    threading.Thread(target=lambda: (OVER.wait(), end()), daemon=True).start()
    while not done:
        pass


def tries_again(most: int = 10**9) -> None:
    tries, ok = 0, False
    while not ok and tries < most:
        tries += 1
        ok = tries < 0


def goes_through_much() -> None:
    found = False
    while not found:
        for _ in range(10**9):
            found = not found


def goes_through_many(n: int = 10**12) -> None:
    found = False
    while not found:
        for _ in range(n):
            found = not found


def spins_on_an_argument_of_two(done: int = 0) -> None:
    def end() -> None:
        nonlocal done
        done = 1

    threading.Thread(target=lambda: (OVER.wait(), end()), daemon=True).start()
    while not done:
        pass


def goes_through_a_generator() -> None:
    rows, found = (each % 2 for each in iter(int, 1)), 0
    while found < 2:
        for each in rows:
            found = each


def is_in_a_for() -> None:
    for _ in range(10**12):
        n = 3
        while n:
            n -= 1


def calls_again() -> None:
    """Many calls, each of which comes to its end."""
    while not OVER.is_set():
        three(3)


def three(n: int) -> int:
    while n > 0:
        n = n - 1
    return n


def rows() -> Iterator[int]:
    n = 0
    while n < 2:
        yield n
        n = 1 - n


def is_asked_by_another() -> None:
    for _ in rows():
        pass


def own(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with suppress(Enough):
            call()

    return run


def found_in(call: Callable[[], object], wanted: int) -> list[list[Document]]:
    """What so many looks at a thread bring; it is ended by an exception."""
    thread = threading.Thread(target=own(call), daemon=True)
    thread.start()
    _, names = locks.innermost("devkit")

    def one() -> list[Document]:
        return [each for each in turning.describe(names, "MainThread") if "states" in each]

    try:
        return [eventually(one, "it comes back") if wanted else one() for _ in range(wanted or 2)]
    finally:
        OVER.set()
        ident = ctypes.c_ulong(thread.ident or 0)
        while thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Enough))
            thread.join(0.01)


@pytest.fixture(autouse=True)
def over() -> Iterator[None]:
    OVER.clear()
    yield
    OVER.set()
    repeating._held.clear()


@pytest.mark.parametrize(
    ("call", "loop", "name", "values"),
    [
        (undoes, "while changed", "expr", {"'0.5'", "'.5'"}),
        (undoes_words, "while True", "text", {"'aa c'", "'b c'", "'c aa'", "'c b'"}),
        (oscillates, "while abs(x) > 0.1", "x", {"1.0", "-1.0"}),
        (matches, "while (found := BRACKETS.search(text))", "text", {"'a(b)'", "'a[b]'"}),
        (stays, "while n % 4", "n", {"6"}),
    ],
)
def test_what_comes_back_to_the_same_values_is_known_again(call: Any, loop: str, name: str, values: set[str]) -> None:
    [[first], [second]] = found_in(call, 2)
    assert (first["loop"], first["at"]["function"]) == (loop, call.__name__)
    assert next(iter(first["states"])) == name and set(second["states"][name]) <= values, second
    assert first["whole"] == second["whole"], "the same call"


def test_another_call_is_another_one() -> None:
    [[first]], [[second]] = found_in(undoes, 1), found_in(undoes, 1)
    assert first["whole"] != second["whole"]


@pytest.mark.parametrize(
    "call",
    [
        *(power_iteration, parses, collatz_like, searches_broadly, Job().polls, samples_until_accepted, reads_a_file),
        *(waits_for_the_time, tokenizes, spins_on_a_shared_list, spins_through_a_shared_list, spins_on_a_global),
        *(spins_on_a_variable_of_two, tries_again, goes_through_much, goes_through_a_generator, is_in_a_for),
        *(calls_again, is_asked_by_another, counts_for_nobody),
        *(goes_through_many, spins_on_an_argument_of_two),
    ],
)
def test_of_what_may_get_on_nothing_is_said(call: Any) -> None:
    assert found_in(call, 0) == [[], []]


def test_a_frame_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeating, "KEPT", 0.0)
    found_in(undoes, 1)
    eventually(lambda: not repeating._held, "it is let go")


@pytest.mark.parametrize(
    ("values", "comes_back"),
    [
        ("ABABABABABABAB", True),
        ("AAAABBBBAAAABBBBAAAA", True),
        ("AAAAAAABBBBBBBCCCCCC", False),  # it gets on, slowly
        ("ABAB", False),  # hardly seen
        ("ABCDEFGHIJABCDEFGHIJ", False),  # many
        ("AAAAAAAAAAAAAAA", True),
        ("ABABABABABABA?", False),  # once something of it could not be seen
    ],
)
def test_few_values_again_and_again(values: str, comes_back: bool) -> None:
    sights = [
        None if each == "?" else repeating.Sight(-number, each, (), each, alone=True)
        for number, each in enumerate(values)
    ]
    loop = next(node for node in ast.walk(ast.parse("while x: pass")) if isinstance(node, ast.While))
    assert repeating.Seen(sys._getframe(), loop, list(sights)).comes_back is comes_back


def strips(text: str) -> str:
    return re.sub(r"\((\w)\)", r"\1", text)


def wraps(text: str) -> str:
    found = re.search(r"\w", text)
    parts = [text]
    if found is not None:
        parts.append(f"({found.group()})")
    size = 0
    size += len(parts)
    return text if text.startswith("(") else parts[-1]


def counts_calls(text: str) -> str:
    STOP.append(1)
    STOP.pop()
    return text


def reads_the_clock(text: str) -> str:
    return text if time.time() > 0 else ""


def adds_to_what_is_given(texts: list[str], more: str = "") -> str:
    texts += [more]
    return texts[0]


def tells(text: str) -> str:
    return strips(reads_the_clock(text))


WORDS = [strips, wraps]
UNSURE = [strips, wraps, counts_calls]


def undoes_by_functions(expr: str = "(a)") -> str:
    changed = True
    while changed:
        changed = False
        for rule in WORDS:
            new = rule(expr)
            if new != expr:
                expr, changed = new, True
    return expr


def undoes_by_unsure_functions(expr: str = "(a)") -> None:
    while True:
        for rule in UNSURE:
            expr = rule(expr)


def undoes_by_name(expr: str = "(a)") -> None:
    while expr:
        expr = strips(expr)
        expr = wraps(expr)


def test_functions_that_follow_from_what_they_are_given() -> None:
    assert all(map(pure_functions.is_pure, (strips, wraps)))
    others = (counts_calls, reads_the_clock, adds_to_what_is_given, tells, len, Job.polls, lambda text: text)
    assert not any(map(pure_functions.is_pure, others))


@pytest.mark.parametrize("call", [undoes_by_functions, undoes_by_name])
def test_rules_that_are_functions_come_back_to_the_same_values_too(call: Any) -> None:
    [[first], [second]] = found_in(call, 2)
    assert set(second["states"]["expr"]) == {"'(a)'", "'a'"} and first["whole"] == second["whole"]


def test_of_functions_that_may_bring_something_from_outside_nothing_is_said() -> None:
    assert found_in(undoes_by_unsure_functions, 0) == [[], []]


def planned(text: str) -> self_contained.Plan | None:
    scope: dict[str, Any] = {}
    body = "\n    ".join(text.splitlines())
    source = f"def f(x, y, q):\n    {body}\n"
    exec(source, scope)
    loop = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.While))
    return self_contained.plan(loop, scope["f"].__code__)


@pytest.mark.parametrize(
    "text",
    [
        "while x: x = next(y)",
        "while x: x = self.x",
        "while x: y.x = x",
        "while x: x[0] = 1",
        "f = y\nwhile x: x = f(y)",
        "while x: x = open(y)",
        "while x: x = q.get_nowait()",
        "while x: x = (lambda: y)()",
        "while x:\n    with y: x = 1",
        "while x: x = yield",
        "while x: x = [each for each in y]",
        "while x: print(x)",
        "while x:\n    global z\n    z = x",
        "while x:\n    for each in [0] * y: x = each",
        "while x: x = len(*y)",
        "while x: x = re.compile",
        "len = y\nwhile x: x = len(x)",
        "while 1: pass",
    ],
)
def test_what_may_bring_something_from_outside_is_not_looked_at(text: str) -> None:
    assert planned(text) is None


def test_what_one_turn_has_from_the_one_before() -> None:
    known = planned("while x:\n    z = y\n    if z: x = z\n    for each in q: y = max(y, each)")
    assert known is not None and known.carried == {"x", "y"} and known.gone_through == {"q"} and known.depth == 1
    known = planned("while x > 0:\n    n = 0\n    while n < 3: n += 1\n    x = n")
    assert known is not None and known.carried == {"x", "n"}, "the inner one has it from its turn before"
