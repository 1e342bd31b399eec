"""Source text compiled again with breakpoints: on every kind of line, and with nothing else changed."""

from __future__ import annotations

import argparse
import ast
import asyncio
import builtins
import contextlib
import functools
import importlib.util
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

from devkit.debug.inworker import hits
from devkit.debug.inworker.conditions import Condition
from devkit.debug.inworker.finding import codes_below
from devkit.debug.inworker.instrument import Build, Mark, Source, key_of, same
from devkit.debug.inworker.specs import SpecError

# `# @n` marks the lines that hold code; n is the line, counted from here, of the statement that they belong to.
LINES = '''\
"""Docstring."""
from __future__ import annotations

import os  # @4


class A:  # @7
    """Docstring."""

    x: int = 3  # @10

    @staticmethod  # @12
    @functools.cache  # @12
    def f(  # @23
        a,  # @23
        # words

        b=1,  # @23
    ):  # @23
        """Doc
        string."""
        global os
        if a and (  # @23
            # words
            b  # @23
        ):  # @23

            return 1  # @28
        elif a:  # @29
            pass  # @30
        else:

            return [  # @33
                lambda: (  # @33
  # @33
                    a  # @33
                )  # @33
            ]  # @33
        try:
            x = 1; y = 2  # @40
        except ValueError:  # @42
            x = 2  # @42
        except (  # @47
            TypeError,  # @47
            KeyError,  # @47
        ):  # @47
            x = 3  # @47
        else:
            x = 4  # @49
        finally:
            x = 5  # @51
        while x:  # @52
            x -= 1  # @53
        for y in (  # @54
            1,  # @54
        ):  # @54
            print(y)  # @57
        else:
            print(x)  # @59
        with open(  # @60
            y  # @60
        ) as z, open(y):  # @60
            z = 1  # @63
        match x:  # @64
            case 1 | (  # @68
                2  # @68
            ):  # @68
                y = 1  # @68
            case _:  # @71

                y = 2  # @71
        async def g(): return 1  # @72
        def h(): "only a docstring"
        if x: y = 3  # @74
        for y in x: print(y)  # @75
        class B: z = 1  # @76
        """text that is no
        docstring"""
        try: y = 5  # @79
        finally: y = 6  # @80


if os.name == "posix":  # @83

    def k():  # @87
        # words
        return 3  # @87
'''


def lines_with_code() -> dict[int, int]:
    marks = enumerate((line.partition("# @")[2] for line in LINES.splitlines()), 1)
    return {number: int(mark) for number, mark in marks if mark} | {77: 77, 78: 77}


def test_each_line_has_its_statement_or_none() -> None:
    source, expected = Source(LINES, "x.py"), lines_with_code()
    found: dict[int, int] = {}
    for line in range(1, LINES.count("\n") + 1):
        with contextlib.suppress(SpecError):
            found[line] = source.sites(Mark("b", line))[0].line
    assert found == expected


def test_each_statement_can_hold_a_breakpoint() -> None:
    for line, target in lines_with_code().items():
        build = Source(LINES, "x.py").build([Mark("b", line, condition="x == 3")], "x.py", whole=True)
        calls = [number for code in codes_below(build.module.marked) for number in _lines_of_calls(code)]
        assert set(calls) == {target}, line  # twice in a `finally`: it is compiled twice


def _lines_of_calls(code: CodeType) -> Iterator[int]:
    import dis

    lines = {offset: line for start, end, line in code.co_lines() for offset in range(start, end, 2)}
    for each in dis.get_instructions(code):
        if each.argval in ("__devkit_hit__", "__devkit_here__"):
            yield lines[each.offset] or 0


def test_a_refusal_names_the_nearest_lines_with_code() -> None:
    with pytest.raises(SpecError) as caught:
        Source(LINES, "x.py").sites(Mark("b", 31))
    assert caught.value.message == "line 31 of x.py holds no code"
    assert caught.value.hint == "the nearest lines with code are 30 and 33"
    assert Source("", "x.py").build([Mark("b", 1)], "x.py").errors["b"].hint == "there is no code nearby"


def test_names_find_the_first_statement() -> None:
    text = """\
    def f():
        '''Doc.'''
        if 1:
            def g():
                return 2
    class C:
        def __init__(self):
            self.x = 1
        @property
        def p(self):
            return 1
        @p.setter
        def p(self, value):
            self.x = value
        def empty(self):
            '''Doc.'''
    try:
        def late(): return 1
    except E:
        def late(): return 2
    class D: pass
    """
    source = Source(textwrap.dedent(text), "x.py")
    names = ["f", "f.g", "f.<locals>.g", "C", "C.__init__", "C.p", "late"]
    assert [source.sites(Mark("b", qualname=name))[0].line for name in names] == [3, 5, 5, 8, 8, 11, 20]
    for name, message in {
        "q": "defines no q",
        "f.q": "defines no f.q",
        "C.empty": "holds no code",
        "D": "without an __init__",
    }.items():
        with pytest.raises(SpecError, match=message):
            source.sites(Mark("b", qualname=name))


# ---- what a program does with breakpoints on each of its lines

PROGRAM = '''
from __future__ import annotations
import asyncio, contextlib, functools

def deco(f):
    @functools.wraps(f)
    def wrapper(*a, **k):
        """Doc."""
        return f(*a, **k)
    return wrapper

class Base:
    def __init__(self): self.seen = []
    def go(self, x): return x

class K(Base):
    table = {n: n * n for n in range(3)}
    @deco
    def go(self, x: int, *, __private=2):
        self.__hidden = __private
        y = super().go(x) + self.__hidden
        return __class__.__name__, y
    @property
    def p(self):
        return [v for v in self.table if v
                > 0]
    @classmethod
    def c(cls): return cls.__name__

def outer(n):
    total = 0
    def inner(i):
        nonlocal total
        total += i + n
        return total
    class Local:
        size = n
        def get(self):
            return n + self.size
    return inner, Local

def gen(n):
    try:
        for i in range(n):
            got = yield i
            if got: yield got
    finally:
        yield "end"

async def agen(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i

async def co(n):
    async with contextlib.AsyncExitStack() as stack:
        found = [x async for x in agen(n)]
    async for x in agen(1):
        found.append(x)
    return found

def errors():
    log = []
    for step in range(4):
        try:
            if step == 1:
                raise ValueError(step)
            elif step == 2:
                raise KeyError(step)
        except ValueError as error:
            log.append(str(error))
            try:
                raise TypeError
            except TypeError as inner:
                log.append(inner.__context__ is error)
        except KeyError:
            log.append("key")
            continue
        else:
            log.append("else")
        finally:
            log.append(step)
    with contextlib.suppress(ZeroDivisionError):
        1 / 0
    return log

def shapes(x):
    match x:
        case [a, b]:
            return a + b
        case {"k": v}:
            return v
        case _:
            pass
    while x > 0:
        x -= 1
        if x == 2:
            break
    else:
        return "none"
    return (lambda q:
            q + x)(1)

def generator_of_pairs(n):
    yield from ((i, j) for i in range(n) for j in range(i))
    return "done"

def run():
    found = [K().go(1), K().p, K.c(), K.table]
    inner, Local = outer(3)
    found += [inner(1), inner(2), Local().get()]
    g = gen(3)
    found += [next(g), g.send(7), list(g)]
    found += [asyncio.run(co(3)), errors(), shapes([1, 2]), shapes({"k": 3}), shapes(5), shapes(0)]
    found.append(list(generator_of_pairs(3)))
    return found
'''


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    found = Hooks()
    hits.install(found.reached, lambda name, error: found.failed.append((name, error)), found.conditions.get)
    yield found
    for name in hits.NAMES:
        delattr(builtins, name)


class Hooks:
    def __init__(self) -> None:
        self.hits: list[tuple[str, int]] = []
        self.stops: list[tuple[str, ...]] = []
        self.frames: list[FrameType] = []
        self.failed: list[tuple[str, BaseException]] = []
        self.conditions: dict[str, Condition] = {}

    def reached(self, names: tuple[str, ...], frame: FrameType) -> None:
        self.hits += [(name, frame.f_lineno) for name in names]
        self.stops.append(names)
        self.frames.append(frame)

    def run(self, build: Build) -> dict[str, Any]:
        """The names of a module that was compiled with breakpoints."""
        for mark in build.marks:
            if mark.condition and mark.id in build.sites:
                self.conditions[mark.id] = Condition(mark.condition, build.sites[mark.id][0].class_name)
        return run(build.module.marked)


def run(code: CodeType) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "made"}
    exec(code, names)
    return names


def program(text: str, *marks: Mark) -> Build:
    return Source(textwrap.dedent(text), "/made.py").build(marks, "/made.py", whole=True)


CONDITIONS = ["", "False", "1 == 2", "[x for x in (1, 2)] == []", "undefined_name", "1 / 0"]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_breakpoints_on_each_line_change_nothing(condition: str, hooks: Hooks) -> None:
    expected = run(compile(PROGRAM, "/made.py", "exec", dont_inherit=True))["run"]()
    source = Source(PROGRAM, "/made.py")
    marks = [Mark(f"b{line}", line, condition=condition) for line in range(1, PROGRAM.count("\n") + 1)]
    build = source.build(marks, "/made.py", whole=True)
    assert len(build.sites) > 70 and build.errors
    assert hooks.run(build)["run"]() == expected
    if condition == "":
        # Each statement but those that never run was hit, and its frame showed its own line.
        reached = dict(hooks.hits)
        lines = {name: {site.line for site in sites} for name, sites in build.sites.items()}
        assert all(line in lines[name] for name, line in reached.items())
        assert len(build.sites) - len(reached) < 5
    else:
        assert not hooks.hits
        assert bool(hooks.failed) == (condition in CONDITIONS[4:])


@pytest.mark.parametrize("condition", ["", "undefined_name"])
def test_a_breakpoint_alone_changes_nothing(condition: str, hooks: Hooks) -> None:
    expected = run(compile(PROGRAM, "/made.py", "exec", dont_inherit=True))["run"]()
    source = Source(PROGRAM, "/made.py")
    for line in range(1, PROGRAM.count("\n") + 1):
        build = source.build([Mark("b", line, condition=condition)], "/made.py", whole=True)
        assert hooks.run(build)["run"]() == expected, line


def test_what_is_compiled_without_breakpoints_is_what_python_compiles() -> None:
    """Of a few large modules: each function, pruned of all that is around it."""
    modules: list[ModuleType] = [argparse, ast, asyncio.base_events, functools, textwrap]
    for module in modules:
        path = module.__file__ or ""
        text = Path(path).read_text()
        module_code = compile(text, path, "exec", dont_inherit=True)
        codes: dict[Any, list[CodeType]] = {}
        for code in codes_below(module_code):
            codes.setdefault(key_of(code), []).append(code)
        source = Source(text, path)
        marks = [Mark(f"b{line}", line, condition="x == 1") for line in range(1, text.count("\n") + 1, 11)]
        build = source.build(marks, path)
        checked = 0
        for name in build.sites:
            for holder in build.holders(name) if build.is_in_function(name) else ():
                assert any(same(holder.plain, each) for each in codes[holder.key]), (path, build.sites[name])
                assert not same(holder.marked, holder.plain)
                checked += 1
        assert checked > 10, path
        assert same(source.build(marks, path, whole=True).module.plain, module_code)


def test_other_text_is_not_the_same() -> None:
    text = "def f(a, b=1):\n    x = a\n    return x, 1, 'text', (1, 2)\n"
    code = Source(text, "x.py").build([Mark("b", 2)], "x.py").pairs[0].plain
    for before, after in [
        ("return x, 1", "return x, 2"),
        ("return x, 1", "return x, 1.0"),
        ("return x, 1", "return x, True"),
        ("    x = a", "\n    x = a"),
        ("x = a", "y = a"),
        ("'text'", "'other'"),
        ("(1, 2)", "(1, 2.0)"),
        ("a, b", "b, a"),
    ]:
        other = Source(text.replace(before, after), "x.py").build([Mark("b", qualname="f")], "x.py").pairs[0].plain
        assert not same(code, other), after
    again = Source(text + "# words\n", "y.py").build([Mark("b", 2)], "y.py").pairs[0].plain
    assert same(code, again)


# ---- conditions


def test_a_condition_is_inlined_where_it_can_be(hooks: Hooks) -> None:
    text = """
    def f(n):
        for i in range(n):
            x = i  # 4
        return x
    """
    build = program(text, Mark("b", 4, condition="i == 2"))
    assert "__devkit_here__" not in build.pairs[0].marked.co_names
    hooks.run(build)["f"](4)
    assert hooks.hits == [("b", 4)] and not hooks.failed


@pytest.mark.parametrize(
    "condition",
    ["any(v == i for v in seen)", "(lambda: i == 2)()", "seen and max([v for v in seen]) == i", "self._A__n + i == 5"],
)
def test_a_condition_with_a_scope_of_its_own_sees_the_functions_variables(condition: str, hooks: Hooks) -> None:
    text = """
    class A:
        def __init__(self):
            self.__n = 3
        def f(self):
            seen = [2]
            for i in range(4):
                x = i  # 8
            return x
    """
    hooks.run(program(text, Mark("b", 8, condition=condition)))["A"]().f()
    assert hooks.hits == [("b", 8)] and not hooks.failed


@pytest.mark.parametrize("condition", ["self.__n == 3", "[1 for _ in (1,) if self.__n == 3]", "__n == 4"])
def test_private_names_are_the_classs(condition: str, hooks: Hooks) -> None:
    text = """
    _A__n = 4
    class A:
        def f(self):
            self.__n = 3
            return 1  # 6
    """
    hooks.run(program(text, Mark("b", 6, condition=condition)))["A"]().f()
    assert hooks.hits == [("b", 6)] and not hooks.failed


def test_a_condition_never_makes_a_variable_a_shared_one(hooks: Hooks) -> None:
    """`k` belongs to `outer`; naming it in `inner` would make it a closure's."""
    text = """
    def outer(k):
        j = 1
        def inner(i):
            z = i + j
            return z  # 6
        return inner
    """
    build = program(text, Mark("far", 6, condition="k == 3"), Mark("near", 6, condition="i == 5 and j == 1"))
    [marked] = [pair.marked for pair in build.holders("far")]
    assert marked.co_freevars == ("j",) and marked.co_name == "inner"
    assert hooks.run(build)["outer"](3)(5) == 6
    assert hooks.hits == [("near", 6)]
    assert [(name, type(error)) for name, error in hooks.failed] == [("far", NameError)]


def test_the_programs_own_exceptions_pass(hooks: Hooks) -> None:
    """Ctrl-C in a condition is the program's, and so is what a signal handler raises during a stop."""
    text = """
    def interrupt(): raise KeyboardInterrupt
    def f():
        return 1  # 4
    """
    build = program(text, Mark("b", 4, condition="interrupt()"))
    with pytest.raises(KeyboardInterrupt) as caught:
        hooks.run(build)["f"]()
    assert [each.name for each in caught.traceback][-2:] == ["f", "interrupt"] and not hooks.failed

    def alarm(_names: tuple[str, ...], _frame: FrameType) -> None:
        run(compile("raise TimeoutError", "/a/program.py", "exec"))

    hits.install(alarm, lambda name, error: None, hooks.conditions.get)
    with pytest.raises(TimeoutError):
        run(program(text, Mark("b", 4)).module.marked)["f"]()


def test_a_stop_that_itself_fails_harms_nobody(hooks: Hooks) -> None:
    def broken(_names: tuple[str, ...], frame: FrameType) -> None:
        Condition("1 / 0").holds(frame)

    hits.install(broken, lambda name, error: hooks.failed.append((name, error)), hooks.conditions.get)
    # This test's own frame is between ours and the condition: only what is all ours is taken back.
    broken.__code__ = broken.__code__.replace(co_filename=hits.__file__)
    assert run(program("def f():\n    return 1\n", Mark("b", 2)).module.marked)["f"]() == 1
    assert [type(error) for _, error in hooks.failed] == [ZeroDivisionError]


def test_an_exception_in_flight_stays(hooks: Hooks) -> None:
    text = """
    import sys
    def f():
        try:
            raise ValueError("first")
        except ValueError:
            held = sys.exc_info()[1]
            again = sys.exc_info()[1]  # 8
            return held is again
        finally:
            x = 1  # 11
    """
    build = program(text, Mark("b", 8, condition="1 / 0"), Mark("c", 11, condition="1 / 0"), Mark("d", 7))
    assert hooks.run(build)["f"]() is True
    assert len(hooks.failed) == 2 and hooks.hits == [("d", 7)]


def test_several_breakpoints_of_one_statement_are_hit_in_their_order(hooks: Hooks) -> None:
    text = """
    def f(x):
        return [
            x,
        ]
    """
    hooks.run(program(text, Mark("b", 3), Mark("c", 4, condition="x == 1"), Mark("d", 5, condition="x == 2")))["f"](1)
    assert hooks.hits == [("b", 3), ("c", 3)] and hooks.stops == [("b", "c")]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_generic_functions_and_classes(hooks: Hooks) -> None:
    text = """
    class C[T]:
        def get[U: int](self, x: U) -> U:
            return x  # 4
    def f[T](x: T) -> T:
        def g():
            return x  # 7
        return g()
    """
    for whole in (False, True):
        build = Source(textwrap.dedent(text), "/made.py").build([Mark("b", 4), Mark("c", 7)], "/made.py", whole=whole)
        assert [[pair.plain.co_name for pair in build.holders(name)] for name in "bc"] == [["get"], ["g"]]
    names = hooks.run(build)
    assert names["C"]().get(1) == 1 and names["f"](2) == 2
    assert hooks.hits == [("b", 4), ("c", 7)]


def test_only_what_is_needed_is_compiled() -> None:
    """A breakpoint in a large module: none of its other functions is compiled again."""
    path = argparse.__file__ or ""
    text = Path(path).read_text()
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "self._negative_number_matcher" in each)
    build = Source(text, path).build([Mark("b", line)], path)
    assert len(list(codes_below(build.module.plain))) < 5 < len(list(codes_below(compile(text, path, "exec"))))


def test_a_file_whose_name_has_no_module() -> None:
    assert importlib.util.find_spec("made") is None
    build = program("x = 1\n", Mark("b", 1))
    assert build.module.marked.co_filename == "/made.py" and build.holders("b") == [build.module]
