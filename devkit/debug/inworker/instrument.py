"""Compiles source text again with breakpoints inlined: pure, from text to code objects.

In front of the statement that a breakpoint names stands, with that statement's own place in the file:

    try:
        if CONDITION: __devkit_hit__(ID)
    except:
        if __devkit_failed__(ID): raise

which costs a function what its condition costs, and everybody else nothing. A condition that can't stand in the
function without changing its variables is evaluated by `__devkit_cond__(ID)` instead.
"""

from __future__ import annotations

import ast
import copy
import opcode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from .conditions import needs_helper, parse_expression
from .places import Path, Site, site_of_line, site_of_name
from .specs import SpecError

FILE = "<devkit>"  # compiled under this name: one filter keeps the warnings of a second compilation quiet
HIT, FAILED, COND = "__devkit_hit__", "__devkit_failed__", "__devkit_cond__"

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Key = tuple[str, int]  # co_qualname and co_firstlineno


@dataclass(frozen=True)
class Mark:
    """A breakpoint of one file: before the statement at `line`, or at the beginning of `qualname`."""

    id: str
    line: int = 0
    qualname: str = ""
    condition: str = ""


@dataclass(frozen=True)
class Pair:
    """A code object as it is without and with breakpoints."""

    plain: CodeType
    marked: CodeType
    ids: frozenset[str]  # the breakpoints that stand in this code itself or in one that it holds

    @property
    def key(self) -> Key:
        return key_of(self.plain)


@dataclass(frozen=True)
class Build:
    """A file, or those of its functions that hold breakpoints, compiled both ways. `Source.build` makes it."""

    text: str
    marks: tuple[Mark, ...]
    module: Pair
    pairs: dict[Key, Pair]  # of all that differs, outermost first; without the module
    holders: dict[str, Pair]  # id -> the code that the breakpoint itself stands in
    sites: dict[str, Site]
    errors: dict[str, SpecError]  # of the breakpoints that have no place in this source


class Source:
    """One version of a file's text.

    >>> Source("def f(x):\\n    return x\\n", "x.py").site(2).function
    'f'
    """

    def __init__(self, text: str, filename: str) -> None:
        self.text = text
        self.filename = filename
        self._tree: ast.Module | None = None

    @property
    def tree(self) -> ast.Module:
        """Raises `SpecError` if the text is no Python; the tree is never changed."""
        if self._tree is None:
            try:
                self._tree = ast.parse(self.text, FILE)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise SpecError(
                    f"{self.filename} does not parse: {error}", "is it Python, and of this version?"
                ) from None
        return self._tree

    def site(self, line: int) -> Site:
        """The statement that a breakpoint at `line` stands before; raises `SpecError` if there is no code."""
        return site_of_line(self.tree, self.text, self.filename, line)

    def site_by_name(self, qualname: str) -> Site:
        """The first statement of a function or a class; raises `SpecError` if there is no such name."""
        return site_of_name(self.tree, self.filename, qualname)

    def build(self, marks: Sequence[Mark], filename: str, *, whole: bool = False) -> Build:
        """Compiles both versions; without `whole` only those functions of the file that hold a mark."""
        sites, errors = self._sites(marks)
        placed = [mark for mark in marks if mark.id in sites and (whole or sites[mark.id].chain)]
        plain = self._compile([], sites, filename, whole)
        helped = {mark.id for mark in placed if mark.condition and needs_helper(parse_expression(mark.condition))}
        marked = self._compile(placed, sites, filename, whole, helped)
        chains = {mark.id: list(_chain(plain, marked, sites[mark.id])) for mark in placed}
        suspects = [mark for mark in placed if _changes_scopes(chains[mark.id])]
        if suspects:
            helped |= {mark.id for mark in suspects if self._is_tangled(mark, sites, filename, helped)}
            marked = self._compile(placed, sites, filename, whole, helped)
            chains = {mark.id: list(_chain(plain, marked, sites[mark.id])) for mark in placed}
        ids: dict[Key, set[str]] = {}
        for name, chain in chains.items():
            for inner, _ in chain:
                ids.setdefault(key_of(inner), set()).add(name)
        codes = {key_of(pair[0]): pair for chain in chains.values() for pair in chain}
        pairs = {key: Pair(*pair, frozenset(ids[key])) for key, pair in codes.items()}
        module = Pair(plain, marked, frozenset(chains))
        holders = {name: pairs[key_of(chain[-1][0])] if chain else module for name, chain in chains.items()}
        return Build(self.text, tuple(marks), module, pairs, holders, sites, errors)

    def _is_tangled(self, mark: Mark, sites: dict[str, Site], filename: str, helped: set[str]) -> bool:
        """Whether the condition, inlined, would make a variable one that is shared between functions."""
        only = {mark.id: sites[mark.id]}
        plain = self._compile([], only, filename, whole=False)
        marked = self._compile([mark], only, filename, False, helped)
        return _changes_scopes(_chain(plain, marked, sites[mark.id]))

    def _sites(self, marks: Iterable[Mark]) -> tuple[dict[str, Site], dict[str, SpecError]]:
        sites: dict[str, Site] = {}
        errors: dict[str, SpecError] = {}
        for mark in marks:
            try:
                sites[mark.id] = self.site_by_name(mark.qualname) if mark.qualname else self.site(mark.line)
            except SpecError as error:
                errors[mark.id] = error
        return sites, errors

    def _compile(
        self,
        marks: Sequence[Mark],
        sites: dict[str, Site],
        filename: str,
        whole: bool,
        helped: set[str] | frozenset[str] = frozenset(),
    ) -> CodeType:
        inserts = [(sites[mark.id].path, _statement(mark, sites[mark.id], mark.id in helped)) for mark in marks]
        kept = None if whole else [site.path for site in sites.values()]
        tree = _rebuild(self.tree, inserts, kept)
        code = renamed(compile(tree, FILE, "exec", dont_inherit=True), filename)
        return shortened(code) if marks and _SKIP is not None else code


def key_of(code: CodeType) -> Key:
    return code.co_qualname, code.co_firstlineno


def renamed(code: CodeType, filename: str) -> CodeType:
    """The same code, all nested ones included, under another file name."""
    consts = tuple(renamed(each, filename) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=filename, co_consts=consts)


# What Python 3.11 jumps with if a condition is false, and when a `try` is done. Later versions jump once by themselves.
_CONDITIONAL = {opcode.opmap.get(f"POP_JUMP_FORWARD_IF_{kind}") for kind in ("FALSE", "TRUE", "NONE", "NOT_NONE")}
_SKIP = opcode.opmap["JUMP_FORWARD"] if None not in _CONDITIONAL else None


def shortened(code: CodeType) -> CodeType:
    """With one jump instead of two behind a condition of ours that is false, in all nested code objects too."""
    ops = bytearray(code.co_code)
    for at, (_, _, column, end) in zip(range(0, len(ops), 2), code.co_positions(), strict=True):
        ours = column is not None and column == end  # what stands in the text has some width
        target = at + 2 + 2 * ops[at + 1]
        if ours and ops[at] in _CONDITIONAL and ops[at - 2] != opcode.EXTENDED_ARG and ops[target] == _SKIP:
            distance = ops[at + 1] + 1 + ops[target + 1]
            if distance < 256 and ops[target - 2] != opcode.EXTENDED_ARG:
                ops[at + 1] = distance
    consts = tuple(shortened(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_code=bytes(ops), co_consts=consts)


def nested(code: CodeType) -> Iterator[CodeType]:
    """The code objects that this one holds, in order."""
    return (each for each in code.co_consts if isinstance(each, CodeType))


def same(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects come from the same text: what runs, its names, and the line of each instruction."""
    if one is other:
        return True
    if _shape(one) != _shape(other) or _lines(one) != _lines(other) or len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else _constant(a) == _constant(b)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


def _shape(code: CodeType) -> tuple[object, ...]:
    return (code.co_qualname, code.co_firstlineno, code.co_names, code.co_varnames, *_scopes(code), code.co_code)


def _constant(value: object) -> object:
    """Tells 1 from 1.0 and True, and 0.0 from -0.0, at any depth."""
    if isinstance(value, tuple):
        return tuple, tuple(map(_constant, value))
    if isinstance(value, frozenset):
        return frozenset, frozenset(map(_constant, value))
    return type(value), repr(value)


def _lines(code: CodeType) -> list[tuple[int, int, int | None]]:
    """Runs of instructions that have one line; the table itself also depends on whether columns are kept."""
    runs: list[tuple[int, int, int | None]] = []
    for start, end, line in code.co_lines():
        if runs and runs[-1][2] == line and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end, line)
        else:
            runs.append((start, end, line))
    return runs


def _scopes(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return code.co_freevars, code.co_cellvars


def _changes_scopes(chain: Iterable[tuple[CodeType, CodeType]]) -> bool:
    return any(_scopes(plain) != _scopes(marked) for plain, marked in chain)


def _chain(plain: CodeType, marked: CodeType, site: Site) -> Iterator[tuple[CodeType, CodeType]]:
    """Both versions of each code around the site, from outside to inside."""
    for name, line in site.chain:
        inner = _find(plain, marked, name, line)
        if inner is None:
            return
        plain, marked = inner
        yield inner


def _find(plain: CodeType, marked: CodeType, name: str, line: int) -> tuple[CodeType, CodeType] | None:
    """Breakpoints add no code objects, so both versions hold theirs in the same order."""
    both = list(zip(nested(plain), nested(marked), strict=True))
    for pair in both:
        if pair[0].co_name == name and pair[0].co_firstlineno == line:
            return pair
    # A generic function stands in a scope of its type parameters.
    scopes = (pair for pair in both if pair[0].co_name.startswith("<generic"))
    return next((found for pair in scopes if (found := _find(*pair, name, line))), None)


def _statement(mark: Mark, site: Site, helped: bool) -> ast.stmt:
    condition = parse_expression(mark.condition) if mark.condition else None
    if helped:
        condition = _call(COND, mark.id)
    hit: ast.stmt = ast.Expr(_call(HIT, mark.id))
    if condition is not None:
        hit = ast.If(test=condition, body=[hit], orelse=[])
    failed = ast.If(test=_call(FAILED, mark.id), body=[ast.Raise()], orelse=[])
    handler = ast.ExceptHandler(type=None, name=None, body=[failed])
    whole = ast.Try(body=[hit], handlers=[handler], orelse=[], finalbody=[])
    column = site.column
    for node in ast.walk(whole):
        node.lineno = node.end_lineno = site.line  # type: ignore[attr-defined]
        node.col_offset = node.end_col_offset = column  # type: ignore[attr-defined]
    return whole


def _call(function: str, name: str) -> ast.expr:
    return ast.Call(func=ast.Name(id=function, ctx=ast.Load()), args=[ast.Constant(name)], keywords=[])


def _rebuild(node: ast.Module, inserts: Sequence[tuple[Path, ast.stmt]], kept: Sequence[Path] | None) -> ast.Module:
    tree = _rebuilt(node, list(inserts), kept)
    assert isinstance(tree, ast.Module)
    return tree


def _rebuilt(node: ast.AST, inserts: list[tuple[Path, ast.stmt]], kept: Sequence[Path] | None) -> ast.AST:
    """A copy of `node` with the statements inserted; it shares with the original what doesn't change.

    `kept` are the paths without which nothing of a module or a class needs to be compiled; None: all of it.
    """
    result = copy.copy(node)
    prunes = kept is not None and isinstance(node, ast.Module | ast.ClassDef)
    fields = {path[0][0] for path, _ in inserts} | ({"body"} if prunes else set())
    for field in fields:
        children: list[ast.AST] = []
        for index, child in enumerate(getattr(node, field)):
            tails = [(path[1:], new) for path, new in inserts if path[0] == (field, index)]
            below = [path[1:] for path in kept or () if path[:1] == ((field, index),) and path[1:]]
            if prunes and not below:
                children += _imports(child) if isinstance(node, ast.Module) else []
                continue
            inside = below if prunes and isinstance(child, ast.ClassDef) else None
            children += [new for path, new in tails if not path]
            deeper = [(path, new) for path, new in tails if path]
            children.append(_rebuilt(child, deeper, inside) if deeper or inside else child)
        setattr(result, field, children or [ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)])
    return result


def _imports(node: ast.AST) -> list[ast.AST]:
    """The imports of a module, also those in its `if` and `try`: they decide how a call of `name.f()` is compiled."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [node]
    if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case) or isinstance(node, _SCOPES):
        return []
    return [found for child in ast.iter_child_nodes(node) for found in _imports(child)]
