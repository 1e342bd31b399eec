"""Code inside of a statement: a lambda's body, and what a comprehension computes for each element. Pure.

A line that has both stands for the statement and for the lambdas: they run at other times. A condition or a logpoint
that names a lambda's parameter or a comprehension's variable stands where that name is known, and nowhere else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from .places import Path, Site, start_of
from .specs import SpecError

_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_IN_LOG = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class _Around:
    """What is around a node on the way down."""

    path: Path = ()
    chain: tuple[tuple[str, int], ...] = ()
    scopes: tuple[str, ...] = ()
    class_name: str = ""
    functions: tuple[ast.AST, ...] = ()  # and lambdas, outermost first
    inner: _Inner | None = None  # the innermost lambda or comprehension


@dataclass(frozen=True)
class _Inner:
    """A lambda or a comprehension, and which names are known in it."""

    node: ast.Lambda | _Comprehension
    around: _Around
    bound: frozenset[str]
    known: frozenset[str] = field(default=frozenset())  # with those of the lambdas and comprehensions around it

    def misses(self, names: frozenset[str]) -> str:
        """A variable of a function around a lambda that the lambda does not use, and so does not have."""
        if not isinstance(self.node, ast.Lambda):
            return ""
        used = {each.id for each in ast.walk(self.node) if isinstance(each, ast.Name)}
        outside = {name for function in self.around.functions for name in _variables(function)}
        return next(iter(sorted((names & outside) - used - self.bound)), "")

    def site(self, line: int, wanted: frozenset[str]) -> Site:
        """Where a breakpoint at `line` stands that looks at the names `wanted`."""
        node, around = self.node, self.around
        if isinstance(node, ast.Lambda):
            steps: Path = (("body", None),)
            there: ast.expr = node.body
        else:
            steps, there = next_of(list(_evaluated(node, wanted & self.bound)), line)
        is_lambda = isinstance(node, ast.Lambda)
        name = "<lambda>" if is_lambda else f"<{type(node).__name__.lower().replace('generatorexp', 'genexpr')}>"
        return Site(
            path=(*around.path, *steps),
            line=there.lineno,
            last=there.end_lineno or there.lineno,
            column=there.col_offset,
            function=".".join((*around.scopes, name)),
            chain=around.chain,
            class_name=around.class_name,
            is_in_function=is_lambda or "<locals>" in around.scopes,
            expression=(there.lineno, there.end_lineno or 0, there.col_offset, there.end_col_offset or 0),
            is_element=not is_lambda,
        )


def sites_within(tree: ast.Module, line: int, condition: str, log: str = "") -> tuple[tuple[Site, ...], bool]:
    """The places inside of statements that a breakpoint at `line` has, and whether it has the statement, too.

    Raises `SpecError` for a condition whose names are known nowhere together.

    >>> tree = ast.parse("squares = [i * i for i in xs]; twice = lambda v: 2 * v")
    >>> sites_within(tree, 1, "")[0][0].function, sites_within(tree, 1, "i == 3")[0][0].function
    ('<lambda>', '<listcomp>')
    >>> sites_within(tree, 1, "n == 3")[1], sites_within(tree, 1, "v == 3")[1]
    (True, False)
    """
    found = list(_covering(tree, line, _Around()))
    if not found:
        return (), True
    names = names_in(condition, log)
    wanted = frozenset(name for name in names if any(name in each.bound for each in found))
    if wanted:
        return tuple(each.site(line, wanted) for each in _fitting(found, names, wanted)), False
    lambdas = [each for each in found if isinstance(each.node, ast.Lambda) and _is_of(each, found, line)]
    return tuple(each.site(line, wanted) for each in lambdas if not each.misses(names)), True


def _fitting(found: list[_Inner], names: frozenset[str], wanted: frozenset[str]) -> list[_Inner]:
    """The outermost of those in which all wanted names are known."""
    fit = [each for each in found if wanted <= each.known]
    if not fit:
        told = ", ".join(sorted(wanted))
        raise SpecError(f"no code on this line can see all of {told}", "set a separate breakpoint for each lambda")
    outermost = [each for each in fit if not any(_is_around(other, each) for other in fit)]
    missed = next((name for each in outermost if (name := each.misses(names))), "")
    if missed:
        raise SpecError(
            f"the lambda on this line does not use {missed}, so it is not visible there",
            "a condition there may use its parameters, its own variables, and globals",
        )
    return outermost


def _is_around(outer: _Inner, inner: _Inner) -> bool:
    each = inner.around.inner
    while each is not None and each is not outer:
        each = each.around.inner
    return each is outer


def _is_of(each: _Inner, found: list[_Inner], line: int) -> bool:
    """Whether the line is this lambda's: it begins there, or no lambda inside of it has the line."""
    assert isinstance(each.node, ast.Lambda)
    inside = (other for other in found if isinstance(other.node, ast.Lambda) and _is_around(each, other))
    return each.node.body.lineno == line or not any(inside)


def _covering(node: ast.AST, line: int, around: _Around) -> Iterator[_Inner]:
    """Lambdas and comprehensions that have the line, outermost first."""
    for name, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(child, ast.AST) or not _has(child, line):
                continue
            below = replace(around, path=(*around.path, (name, index)))
            yield from _at(child, line, below if name != "body" else _entered(node, below))


def _at(node: ast.AST, line: int, around: _Around) -> Iterator[_Inner]:
    if isinstance(node, ast.Lambda | _Comprehension):
        bound = frozenset(_parameters(node) if isinstance(node, ast.Lambda) else _targets(node))
        before = around.inner.known if around.inner else frozenset()
        mine = _Inner(node, around, bound, bound | before)
        if not isinstance(node, ast.Lambda) or _has(node.body, line):
            yield mine
        functions = (*around.functions, node) if isinstance(node, ast.Lambda) else around.functions
        around = replace(around, functions=functions, inner=mine)
    yield from _covering(node, line, around)


def _entered(node: ast.AST, around: _Around) -> _Around:
    """In the body of a function, a class or a lambda."""
    if isinstance(node, ast.Lambda):
        return replace(around, scopes=(*around.scopes, "<lambda>", "<locals>"))
    if not isinstance(node, _Function | ast.ClassDef):
        return around
    chain = (*around.chain, (node.name, start_of(node)))
    if isinstance(node, ast.ClassDef):
        return replace(around, chain=chain, scopes=(*around.scopes, node.name), class_name=node.name)
    scopes, functions = (*around.scopes, node.name, "<locals>"), (*around.functions, node)
    return replace(around, chain=chain, scopes=scopes, functions=functions)


def _has(node: ast.AST, line: int) -> bool:
    if getattr(node, "end_lineno", None) is None:
        return True  # `arguments`, a generator of a comprehension, a `case`
    first: int = start_of(node)
    last: int = node.end_lineno  # type: ignore[attr-defined]
    return first <= line <= last


def _evaluated(node: _Comprehension, wanted: frozenset[str]) -> Iterator[tuple[Path, ast.expr]]:
    """What is evaluated once all wanted variables are set, in its order; with the way to it."""
    missing = set(wanted)
    for number, generator in enumerate(node.generators):
        here: tuple[tuple[str, int | None], ...] = (("generators", number),)
        if number and not missing:
            yield (*here, ("iter", None)), generator.iter
        missing -= {each.id for each in ast.walk(generator.target) if isinstance(each, ast.Name)}
        if not missing:
            yield from (((*here, ("ifs", index)), each) for index, each in enumerate(generator.ifs))
    last = "key" if isinstance(node, ast.DictComp) else "elt"
    yield ((last, None),), getattr(node, last)


def next_of(parts: list[tuple[Path, ast.expr]], line: int) -> tuple[Path, ast.expr]:
    """The first that has the line, else the first."""
    return next((each for each in parts if _has(each[1], line)), parts[0])


# ---- names


def names_in(condition: str, log: str = "") -> frozenset[str]:
    """What a condition and a logpoint ask for.

    >>> sorted(names_in("x and any(k < y for k in xs)", "step {n}: {f(m)}"))
    ['any', 'f', 'm', 'n', 'x', 'xs', 'y']
    """
    texts = [condition] if condition.strip() else []
    texts += _IN_LOG.findall(log) if _tree(log) is None else [log]
    return frozenset(name for text in texts if (tree := _tree(text)) is not None for name in _free(tree, frozenset()))


def _tree(text: str) -> ast.AST | None:
    try:
        return ast.parse(text.strip(), "<condition>", "eval")
    except (SyntaxError, ValueError):
        return None


def _free(node: ast.AST, bound: frozenset[str]) -> Iterator[str]:
    if isinstance(node, ast.Name) and node.id not in bound:
        yield node.id
    if isinstance(node, ast.Lambda):
        bound |= frozenset(_parameters(node))
    elif isinstance(node, _Comprehension):
        bound |= frozenset(_targets(node))
    for child in ast.iter_child_nodes(node):
        yield from _free(child, bound)


def _parameters(node: ast.Lambda | _Function) -> Iterator[str]:
    every = (*node.args.posonlyargs, *node.args.args, node.args.vararg, *node.args.kwonlyargs, node.args.kwarg)
    return (each.arg for each in every if each is not None)


def _targets(node: _Comprehension) -> Iterator[str]:
    for generator in node.generators:
        yield from (each.id for each in ast.walk(generator.target) if isinstance(each, ast.Name))


def _variables(function: ast.AST) -> Iterator[str]:
    """Parameters of a function or lambda, and what it sets; not those of the functions in it."""
    if isinstance(function, _Function | ast.Lambda):
        yield from _parameters(function)
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        each = waiting.pop()
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id
        if not isinstance(each, _Function | ast.ClassDef | ast.Lambda | _Comprehension):
            waiting += ast.iter_child_nodes(each)
