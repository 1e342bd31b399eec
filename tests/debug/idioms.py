"""What people type at a debugger's prompt, and the method that they type it in: one table for pdb and for us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OUTSIDE = [10, 20]
COUNT = 0


def bump() -> int:
    global COUNT
    COUNT += 1
    return COUNT


class Base:
    def name(self) -> str:
        return "base"


class Scene(Base):
    """`step` stops once, in its middle."""

    limit = 7

    def __init__(self) -> None:
        self.rank = 3
        self.__inner = 11

    def name(self) -> str:
        return "scene"

    def step(self, stop: Callable[[], None], xs: list[int], *args: int, scale: int = 2, **options: int) -> Any:
        offset, x, text, loss = 100, 5, "abc", None

        def cell(k: int) -> int:
            return k + offset

        stop()
        return {"x": x, "offset": cell(0), "xs": xs, "text": text, "loss": loss, "scale": scale, "left": self.__inner}


def play(stop: Callable[[], None]) -> Any:
    """The frame that all idioms are tried in; what became of its variables."""
    global COUNT, OUTSIDE
    COUNT, OUTSIDE = 0, [10, 20]
    for name in ("MADE", "last", "new", "x"):
        globals().pop(name, None)
    done = Scene().step(stop, [1, 2, 3], 8, 9, scale=4, deep=1)
    return {**done, "COUNT": COUNT, "OUTSIDE": OUTSIDE, "MADE": globals().get("MADE")}


@dataclass(frozen=True)
class Idiom:
    """Lines as they are typed: statements, and an expression whose value is looked at, or which fails.

    `more`: what we give where pdb can't do it. A name that a comprehension can't find is an old complaint of pdb's.
    """

    lines: tuple[str, ...]
    more: str = ""
    less: str = ""  # what pdb shows where it does not fail, and is wrong

    @property
    def last(self) -> str:
        return self.lines[-1]


def _of(*lines: str, more: str = "", less: str = "") -> Idiom:
    return Idiom(lines, more, less)


LOOKS = (
    _of("x"),
    _of("self.rank + x"),
    _of("locals()['x']"),
    _of("sorted(locals())"),
    _of("len(locals())"),
    _of("type(locals()).__name__"),
    _of("'x' in locals(), 'OUTSIDE' in locals(), 'gone' in locals()"),
    _of("locals() is vars()"),
    _of("locals().get('loss', 'none')"),
    _of("{**locals()}['scale']"),
    _of("sorted(locals().items(), key=str)[0][0]"),
    _of("dir()"),
    _of("'loss' in dir()"),
    _of("1 if 'loss' in dir() else 2"),
    _of("1 if 'gone' in dir() else 2"),
    _of("dir(text)[-1]"),
    _of("vars()['text']"),
    _of("vars(self)['rank']"),
    _of("type(globals()).__name__"),
    _of("globals()['OUTSIDE']"),
    _of("'x' in globals()"),
    _of("globals() is locals()"),
    _of("globals()['__name__'] == __name__"),
    _of("(lambda: globals()['OUTSIDE'])()"),
    _of("(lambda: sorted(locals()))()"),
    _of("eval('x + 1')"),
    _of("eval('x', {'x': 9})"),
    _of("eval('x + y', {'x': 9}, {'y': 1})"),
    _of("eval('x', globals(), locals())"),
    _of("eval('OUTSIDE', globals())"),
    _of("eval('sorted(locals())') == sorted(locals())"),
    _of("eval('dir()') == dir()"),
    _of("eval('[x for _ in xs]')", more="[5, 5, 5]"),
    _of("exec('1')"),
    _of("[k for k in xs]"),
    _of("[k * scale for k in xs]", more="[4, 8, 12]"),
    _of("{k: k + x for k in xs}", more="{1: 6, 2: 7, 3: 8}"),
    _of("sorted({k + x for k in xs})", more="[6, 7, 8]"),
    _of("sum(k * scale for k in xs)", more="24"),
    _of("all(k < x for k in xs)", more="True"),
    _of("[[a + b + x for a in xs] for b in xs][0]", more="[7, 8, 9]"),
    _of("[k for k in xs if k < x if k > 1]", more="[2, 3]"),
    _of("[self.rank for _ in xs]", more="[3, 3, 3]"),
    _of("[OUTSIDE for _ in xs][0]"),
    _of("next(k for k in (1, 2))"),
    _of("(lambda k: k + 1)(1)"),
    _of("(lambda k: k + x)(1)", more="6"),
    _of("(lambda k: (lambda: k + x)())(1)", more="6"),
    _of("max(xs, key=lambda k: -k * scale)", more="1"),
    _of("list(map(cell, xs))"),
    _of("list(map(lambda k: k + offset, xs))", more="[101, 102, 103]"),
    _of("offset"),
    _of("args, options, scale"),
    _of("[*xs, *args]"),
    _of("{**options, 'y': x}"),
    _of("*xs, 1"),
    _of("*xs"),
    _of("f'{x=}'"),
    _of("f'{x!r:>4}|{xs[0]:>{scale}}'"),
    _of("f'{self.rank=} {text!r}'"),
    _of("x if text else None"),
    _of("x < 6 < scale"),
    _of("not x"),
    _of("xs[1:]"),
    _of("..."),
    _of("x if x else (yield)"),
    _of("await x"),
    _of("x = 3"),
    _of("x =="),
    _of("nope"),
    _of("1 / 0"),
    _of("__name__"),
    _of("__debug__"),
    _of("len(xs), abs(-1)"),
    _of("type(self).__name__, self.limit"),
    _of("isinstance(self, Base)"),
    _of("self.__inner", more="11"),
    _of("self._Scene__inner"),
    _of("__class__.__name__", more="'Scene'"),
    _of("super().name()", more="'base'"),
    _of("super(Scene, self).name()"),
    _of("(bump(), COUNT)"),
)
"""Expressions: for `p`, `eval`, conditions and logpoints alike."""

CHANGES = (
    _of("x = 6", "x"),
    _of("x += 1", "x"),
    _of("x: int = 4", "x"),
    _of("(x := 8)", "x"),
    _of("(new := x + 1)", "new"),
    _of("x = 6", "[x for _ in xs]", more="[6, 6, 6]"),
    _of("[(last := k) for k in xs]", "last"),
    _of("any((last := k) > 1 for k in xs)", "last"),
    _of("any((x := k) > 1 for k in xs)", "x", more="2", less="5"),
    _of("xs[0] = 9", "xs"),
    _of("xs.append(4)", "xs"),
    _of("self.rank = 9", "self.rank"),
    _of("a, b = 1, 2", "a + b"),
    _of("first, *rest = xs", "rest"),
    _of("offset = 200", "cell(1)", more="201", less="101"),
    _of("new = 1", "new"),
    _of("new = 1", "'new' in locals()"),
    _of("new = 1; del new", "new"),
    _of("del nope", "x"),
    _of("for k in xs: total = k", "total"),
    _of("for k in xs: x = k", "x"),
    _of("import math", "math.pi"),
    _of("from math import pi", "pi"),
    _of("from math import *", "floor(pi)"),
    _of("global MADE; MADE = 3", "MADE"),
    _of("global OUTSIDE; OUTSIDE = 3", "OUTSIDE"),
    _of("OUTSIDE = 4", "OUTSIDE"),
    _of("globals()['MADE'] = 1", "MADE"),
    _of("locals()['x'] = 9", "x"),
    _of("locals()['new'] = 9", "new"),
    _of("locals().update(text='z')", "text"),
    _of("vars()['x'] = 2", "x"),
    _of("exec('x = 7')", "x"),
    _of("exec('new = x')", "new"),
    _of("exec('new = x'); new += 1", "new"),
    _of("exec('global MADE; MADE = 2')", "MADE"),
    _of("exec('MADE = 2', globals())", "MADE"),
    _of("eval('xs.append(x)')", "xs"),
    _of("d = locals(); x = 7; new = d['x']", "new"),
    _of("def f(): return 4", "f()"),
    _of("def f(): return x", "f()", more="5"),
    _of("def f(k): return k and k * f(k - 1) or 1", "f(3)", more="6"),
    _of("def f(): return OUTSIDE", "f()"),
    _of("f = lambda: x", "f()", more="5"),
    _of("class A: y = 3", "A.y"),
    _of("class A: y = x", "A.y", more="5"),
    _of("class A: y = OUTSIDE", "A.y"),
    _of("class A: pass", "A.__module__ == __name__"),
    _of("g = (k * x for k in xs)", "list(g)", more="[5, 10, 15]"),
    _of("y = bump(); z = COUNT", "(y, z)"),
    _of("nonlocal x; x = 3", "x"),
    _of("return 3", "x"),
    _of("x = yield", "x"),
    _of("assert x == 6", "x"),
    _of("if x: new = 2", "new"),
    _of("with open('/dev/null') as file: new = file.name", "new"),
    _of("raise ValueError(x)", "x"),
    _of("print(x)", "x"),
    _of("*xs, new = xs", "(xs, new)"),
    _of("scale **= 2", "scale"),
)
"""Statements at the prompt, and what is to be seen after them."""
