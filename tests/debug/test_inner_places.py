"""Breakpoints inside of statements: in lambdas and comprehensions, in functions called anew and in old frames."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from devkit.debug.breaks import make
from devkit.debug.inworker.inner_places import names_in, sites_within
from devkit.errors import UsageError
from tests.debug.armory import DEADLINE, Armory

PROGRAM = """
import functools

square = lambda v: v * v  # @square
pair = (lambda a: a + 1, lambda b: b + 2)  # @pair

def deco(make):
    def wrap(function):
        return functools.wraps(function)(lambda *given: make(function(*given)))  # @wrap
    return wrap

class Point:
    scale = 3
    key = lambda self, n: n * self.scale  # @key
    table = [n * n for n in range(3)]  # @table

@deco(lambda got: got + 1)  # @deco
def decorated(x): return [i + x for i in range(3)][-1]  # @one

def loops(xs, scale):
    step = 7
    first = sorted(xs, key=lambda v: -v)  # @sorted
    spread = sorted(
        xs,
        key=lambda v: (  # @spread
            v * 2  # @body
        ),
    )
    nested = (lambda a: lambda b: a + b + scale)(1)(2)  # @nested
    squares = [i * i for i in xs]  # @list
    kept = [i for i in xs if i > 1]  # @kept
    lines = [
        i + 10  # @element
        for i in xs
        if i != 2  # @filter
    ]
    total = sum(i * scale for i in xs)  # @sum
    table = {k: [k + j for j in xs] for k in xs}  # @table_of
    crossed = {(i, j) for i in xs for j in range(i)}  # @crossed
    many = [x for x in xs] + [y for y in xs]  # @many
    return first, spread, nested, squares, kept, lines, total, table, crossed, many

async def waits(xs):
    async def each():
        for x in xs:
            yield x
    return [x async for x in each()]  # @async
"""
XS = [1, 2, 3]


@pytest.fixture
def armory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_objects: None) -> Iterator[Armory]:
    monkeypatch.syspath_prepend(tmp_path)
    made = Armory(tmp_path)
    made.write(PROGRAM, "inside")
    yield made
    made.close()


def play(module: Any) -> list[Any]:
    import asyncio

    point = module.Point()
    return [
        [module.square(n) for n in XS],
        module.pair[0](1),
        module.pair[1](1),
        point.key(2),
        module.decorated(1),
        module.loops(XS, 2),
        asyncio.run(module.waits(XS)),
    ]


# mark, condition, where it stops: the function's name and what the condition's variables were
STOPS: list[tuple[str, str, list[str]]] = [
    ("square", "", ["<lambda>"] * 3),
    ("square", "v == 2", ["<lambda> v=2"]),
    ("square", "v > 1 and functools is None", []),
    ("pair", "", ["<lambda>"] * 2),
    ("pair", "b == 1", ["<lambda> b=1"]),
    ("wrap", "", ["<lambda>"]),
    ("wrap", "given == (1,)", ["<lambda> given=(1,)"]),
    ("wrap", "function.__name__ == 'decorated'", ["<lambda> function"]),
    ("key", "n == 2 and self.scale == 3", ["<lambda> n=2"]),
    ("deco", "got == 3", ["<lambda> got=3"]),
    ("one", "", ["decorated"]),
    ("one", "i == 1", ["<listcomp> i=1"]),
    ("one", "x == 1", ["decorated x=1"]),
    ("sorted", "", ["loops"] + ["<lambda>"] * 3),
    ("sorted", "v == 3", ["<lambda> v=3"]),
    ("sorted", "step == 7", ["loops step=7"]),  # the lambda does not have it
    ("spread", "", ["loops"]),  # the body begins a line below
    ("body", "v == 2", ["<lambda> v=2"]),
    ("body", "", ["loops"] + ["<lambda>"] * 3),
    ("nested", "", ["loops", "<lambda>", "<lambda>"]),
    ("nested", "a == 1", ["<lambda> a=1"]),
    ("nested", "b == 2 and a == 1", ["<lambda> a=1 b=2"]),
    ("nested", "scale == 2", ["loops scale=2", "<lambda> scale=2", "<lambda> scale=2"]),
    ("list", "", ["loops"]),
    ("list", "i == 2", ["<listcomp> i=2"]),
    ("list", "i > 1", ["<listcomp> i=2", "<listcomp> i=3"]),
    ("list", "i == step - 5", ["<listcomp> i=2"]),  # a variable that the comprehension does not use itself
    ("list", "any(i == n for n in xs)", ["<listcomp> i=1", "<listcomp> i=2", "<listcomp> i=3"]),
    ("kept", "i == 1", ["<listcomp> i=1"]),  # before the filter
    ("element", "i == 2", []),  # behind it
    ("element", "i == 3", ["<listcomp> i=3"]),
    ("filter", "i == 2", ["<listcomp> i=2"]),
    ("sum", "i == 2", ["<genexpr> i=2"]),
    ("sum", "i == 2 and step == 7", ["<genexpr> i=2"]),
    ("table_of", "k == 2", ["<dictcomp> k=2"]),
    ("table_of", "j == 2", ["<listcomp> j=2"] * 3),
    ("table_of", "j == 2 and k == 3", ["<listcomp> j=2 k=3"]),
    ("crossed", "i == 2", ["<setcomp> i=2"]),
    ("crossed", "j == 1", ["<setcomp> j=1"] * 2),
    ("many", "y == 2", ["<listcomp> y=2"]),
    ("async", "x == 2", ["<listcomp> x=2"]),
]


def told(frame: FrameType, wanted: list[str], condition: str) -> str:
    names = [part.partition("=")[0] for part in wanted[0].split()[1:]] if wanted else []
    found = {**frame.f_locals}
    known = [f"{name}={found[name]!r}" if name != "function" else name for name in names if name in found]
    return " ".join([frame.f_code.co_name, *known])


@pytest.mark.parametrize(("mark", "condition", "wanted"), STOPS, ids=[f"{mark} if {cond}" for mark, cond, _ in STOPS])
def test_where_a_line_stops(armory: Armory, mark: str, condition: str, wanted: list[str]) -> None:
    import sys

    seen: list[str] = []
    armory.arming._on_hit = lambda _names, frame: seen.append(told(frame, wanted, condition))  # type: ignore[assignment]
    module = armory.load()
    before = play(module)
    armory.arm(mark, condition=condition)
    assert armory.places(mark) > 0, armory.note(mark)
    assert play(module) == before
    if sys.version_info >= (3, 12):  # these are part of the function since then
        functions = {"one": "decorated", "async": "waits"}
        inlined = ("<listcomp>", "<setcomp>", "<dictcomp>")
        wanted = [f"{functions.get(mark, 'loops')} {each.partition(' ')[2]}" if each.startswith(inlined) else each
                  for each in wanted]  # fmt: skip
    assert seen == wanted and not armory.errors
    armory.arming.remove(mark)
    seen.clear()
    assert play(module) == before and not seen


REFUSED = [
    ("sorted", "v == 1 and step == 7", "does not use step"),
    ("pair", "a == b", "no code on this line can see all of a, b"),
    ("nested", "b == 1 and step == 7", "does not use step"),
]


@pytest.mark.parametrize(("mark", "condition", "reason"), REFUSED)
def test_what_cannot_be_seen_is_refused_when_it_is_set(armory: Armory, mark: str, condition: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        make(f"{armory.path}:{armory.lines[mark]} if {condition}")
    assert caught.value.hint
    armory.arm(mark, condition=condition)  # by an editor
    armory.load()
    assert armory.places(mark) == 0 and reason in armory.note(mark)


def test_a_logpoints_names_say_where_it_stands(armory: Armory) -> None:
    module = armory.load()
    seen: list[str] = []
    armory.arming._on_hit = lambda _names, frame: seen.append(told(frame, ["x i="], ""))  # type: ignore[assignment]
    armory.arm("list", log="i is {i}")
    module.loops(XS, 2)
    assert [each.partition(" ")[2] for each in seen] == ["i=1", "i=2", "i=3"]


def test_a_module_that_comes_later(armory: Armory) -> None:
    armory.arm("square", condition="v == 2")
    armory.arm("table", condition="n == 2")  # the body of a class runs once, now
    module = armory.load()
    play(module)
    assert armory.marks() == ["table", "square"]


OLD = """
def loop(world):
    found = []
    while world.go:
        world.tick()
        found = [i * 10 for i in range(4)]  # @element
        total = sum(i for i in range(4))  # @sum
        key = lambda v: v + 1  # @late
        key(3)
    return found
"""


class World:
    def __init__(self) -> None:
        self.go = True
        self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)

    def tick(self) -> None:
        self.done.release()
        assert self.turn.acquire(timeout=DEADLINE)

    def next(self) -> None:
        self.turn.release()
        assert self.done.acquire(timeout=DEADLINE)


@pytest.mark.parametrize(
    ("mark", "condition", "wanted"),
    [("element", "i == 2", {"i": 2}), ("sum", "i == 3", {"i": 3}), ("late", "v == 3", {"v": 3})],
)
def test_in_a_loop_that_runs_already(armory: Armory, mark: str, condition: str, wanted: dict[str, int]) -> None:
    armory.write(OLD, "old")
    world, module = World(), armory.load()
    thread = threading.Thread(target=module.loop, args=(world,), daemon=True)
    thread.start()
    assert world.done.acquire(timeout=DEADLINE)
    armory.arm(mark, condition=condition)
    for _ in range(2):
        world.next()
    assert [{name: armory.seen.get_nowait()[name] for name in wanted} for _ in range(2)] == [wanted] * 2
    assert armory.seen.empty() and not armory.errors
    armory.arming.remove(mark)
    world.next()
    assert armory.seen.empty()
    world.go = False
    world.turn.release()
    thread.join(DEADLINE)


def test_names_that_a_condition_asks_for() -> None:
    assert names_in("x") == {"x"} and names_in("", "plain words {a.b}") == {"a"}
    assert names_in("(lambda q, *r, s=t, **u: q + v)(1)") == {"t", "v"}
    assert names_in("[a for a in b if c for d in a]") == {"b", "c"}
    tree = ast.parse("f(lambda: 1)\nx = 2")
    assert sites_within(tree, 2, "") == ((), True)
