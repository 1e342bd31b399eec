"""Which statement a line, or a name, stands for: pure, on a parsed file.

A place is given by its path from the module: `(("body", 3), ("orelse", 0), ("body", 1))` is the second statement in the
`else` of the fourth.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .specs import SpecError

Path = tuple[tuple[str, int | None], ...]  # None: the field is no list
Expression = tuple[int, int, int, int]  # first and last line, first and last column

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SILENT = (ast.Global, ast.Nonlocal)
_NEAR = 200  # lines in which a neighbour with code is looked for
_NOT_THE_ONE = {"overload", "setter", "deleter", "getter"}  # decorators of definitions that share another one's name


@dataclass(frozen=True)
class Site:
    """The statement that a breakpoint stands before."""

    path: Path
    line: int  # its first line, decorators included
    last: int  # its last line; of a compound statement, the last line of its head
    column: int
    function: str  # as in co_qualname; "<module>" outside of functions
    chain: tuple[tuple[str, int], ...]  # name and first line of the functions and classes around it, outermost first
    class_name: str  # whose private names are mangled here
    is_in_function: bool
    expression: Expression | None = None  # of a place inside of a statement: `path` leads to an expression
    is_element: bool = False  # of a comprehension


@dataclass(frozen=True)
class _Spot:
    """A node on the way down."""

    node: ast.AST
    path: Path = ()
    chain: tuple[tuple[str, int], ...] = ()
    scopes: tuple[str, ...] = ()
    class_name: str = ""

    def child(self, field: str, index: int) -> _Spot:
        node, inside = self.node, self
        if isinstance(node, _Function | ast.ClassDef) and field == "body":
            inside = self._entered(node)
        return _Spot(
            getattr(node, field)[index], (*self.path, (field, index)), inside.chain, inside.scopes, inside.class_name
        )

    def _entered(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> _Spot:
        is_class = isinstance(node, ast.ClassDef)
        scopes = (*self.scopes, node.name) if is_class else (*self.scopes, node.name, "<locals>")
        class_name = node.name if is_class else self.class_name
        return _Spot(node, self.path, (*self.chain, (node.name, start_of(node))), scopes, class_name)

    def children(self) -> Iterator[_Spot]:
        for field in _BLOCKS:
            for index in range(len(getattr(self.node, field, ()))):
                yield self.child(field, index)

    def first_of_body(self) -> _Spot | None:
        """The first statement of the body that does something."""
        spots = (self.child("body", index) for index in range(len(self.node.body)))  # type: ignore[attr-defined]
        return next((spot for spot in spots if _is_code(self.node, spot.node)), None)

    def site(self) -> Site:
        node = self.node
        assert isinstance(node, ast.stmt)
        function = ".".join(self.scopes).removesuffix(".<locals>") or "<module>"
        line, last = start_of(node), (_head_end(node) if _inner(node) else node.end_lineno or node.lineno)
        return Site(
            self.path,
            line,
            max(line, last),
            node.col_offset,
            function,
            self.chain,
            self.class_name,
            "<locals>" in self.scopes,
        )


def site_of_line(tree: ast.Module, text: str, filename: str, line: int) -> Site:
    """Raises `SpecError` for a line without code; its hint names the nearest lines that have some."""
    lines = re.split(r"\r\n|\r|\n", text)
    if line > len(lines):
        raise SpecError(
            f"{filename} has {len(lines)} lines; there is no line {line}", "is it the version that is running?"
        )
    spot = _at(_Spot(tree), lines, line)
    if spot is None:
        raise SpecError(f"line {line} of {filename} holds no code", _neighbours(tree, lines, line))
    return spot.site()


def site_of_name(tree: ast.Module, filename: str, qualname: str) -> Site:
    """The first statement of a function; of a class, that of its `__init__`. Raises `SpecError`."""
    spot = _Spot(tree)
    names = [name for name in qualname.split(".") if name != "<locals>"]
    for name in names:
        spot = _definition(spot, name, f"{filename} defines no {qualname}")
    if isinstance(spot.node, ast.ClassDef):
        spot = _definition(spot, "__init__", f"{qualname} is a class without an __init__")
    first = spot.first_of_body()
    if first is None:
        raise SpecError(f"{qualname} in {filename} holds no code", "its body is empty")
    return first.site()


def _definition(spot: _Spot, name: str, problem: str) -> _Spot:
    named = [each for each in _definitions(spot) if each.node.name == name]  # type: ignore[attr-defined]
    if not named:
        known = sorted({each.node.name for each in _definitions(spot)})  # type: ignore[attr-defined]
        raise SpecError(problem, f"it has {', '.join(known[:12])}" if known else "nothing is defined there")
    return ([each for each in named if not _decorators(each.node) & _NOT_THE_ONE] or named)[-1]


def _definitions(spot: _Spot) -> Iterator[_Spot]:
    """Functions and classes of this scope, also those inside of `if`, `try` and the like."""
    for child in spot.children():
        if isinstance(child.node, _Function | ast.ClassDef):
            yield child
        else:
            yield from _definitions(child)


def _decorators(node: ast.AST) -> set[str]:
    found = getattr(node, "decorator_list", ())
    return {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in found}


def _at(spot: _Spot, lines: Sequence[str], line: int) -> _Spot | None:
    """The statement for a line of the block `spot`; None if it holds no code."""
    child = next((each for each in spot.children() if start_of(each.node) <= line <= _end(each.node)), None)
    if child is None:
        return None
    node = child.node
    if not _inner(node):
        return child if _is_code(spot.node, node) else None
    if line > _head_end(node):
        return _at(child, lines, line)
    if not _is_text(lines[line - 1]):
        return None
    if isinstance(node, _Function) and line < node.lineno:
        return child  # a decorator
    if isinstance(node, _Function | ast.ExceptHandler | ast.match_case):
        return child.first_of_body()
    if isinstance(node, ast.Try | ast.TryStar):
        return _at(child, lines, line) if start_of(node.body[0]) == line else None
    return child


def _inner(node: ast.AST) -> list[ast.AST]:
    """The first block of a compound statement."""
    return getattr(node, "body", None) or getattr(node, "cases", None) or []


def _head_end(node: ast.AST) -> int:
    """The last line that belongs to the head of a compound statement."""
    return max(start_of(_inner(node)[0]) - 1, getattr(node, "lineno", start_of(node)))


def start_of(node: ast.AST) -> int:
    if isinstance(node, ast.match_case):
        return int(node.pattern.lineno)
    lines: list[int] = [each.lineno for each in getattr(node, "decorator_list", ())]
    lines.append(node.lineno)  # type: ignore[attr-defined]
    return min(lines)


def _end(node: ast.AST) -> int:
    if isinstance(node, ast.match_case):
        return _end(node.body[-1])
    end: int = node.end_lineno  # type: ignore[attr-defined]
    return end


def _is_text(line: str) -> bool:
    text = line.strip()
    return bool(text) and not text.startswith("#")


def _is_code(parent: ast.AST, node: ast.AST) -> bool:
    if isinstance(node, _SILENT) or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
        return False
    if not isinstance(parent, ast.Module | _Function | ast.ClassDef) or node is not parent.body[0]:
        return True
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not (is_docstring and isinstance(node.value.value, str))  # type: ignore[attr-defined]


def _neighbours(tree: ast.Module, lines: Sequence[str], line: int) -> str:
    before = _nearest(tree, lines, range(line - 1, max(0, line - _NEAR), -1))
    after = _nearest(tree, lines, range(line + 1, min(len(lines), line + _NEAR) + 1))
    found = [str(each) for each in (before, after) if each]
    if not found:
        return "there is no code nearby"
    return f"the nearest lines with code are {' and '.join(found)}" if len(found) > 1 else f"line {found[0]} has code"


def _nearest(tree: ast.Module, lines: Sequence[str], candidates: range) -> int:
    return next((each for each in candidates if _at(_Spot(tree), lines, each) is not None), 0)
