"""Compiles source text again with breakpoints inlined (`inlining.py`): pure, from text to code objects."""

from __future__ import annotations

import ast
import opcode
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from .conditions import needs_helper, parse_expression
from .inlining import HERE, HIT, rebuilt, replaced, statement
from .inner_places import sites_within
from .places import Path, Site, site_of_line, site_of_name
from .specs import SpecError

FILE = "<devkit>"  # compiled under this name: one filter keeps the warnings of a second compilation quiet

Key = tuple[str, int]  # co_qualname and co_firstlineno


@dataclass(frozen=True)
class Mark:
    """A breakpoint of one file: before the statement at `line`, or at the beginning of `qualname`."""

    id: str
    line: int = 0
    qualname: str = ""
    condition: str = ""
    log: str = ""


@dataclass(frozen=True)
class Pair:
    """A code object as it is without and with breakpoints."""

    plain: CodeType
    marked: CodeType
    ids: frozenset[str]  # the breakpoints that stand in this code itself or in one that it holds
    own: frozenset[str] = frozenset()  # those that stand in this code itself

    @property
    def key(self) -> Key:
        return key_of(self.plain)


@dataclass(frozen=True)
class Build:
    """A file, or those of its functions that hold breakpoints, compiled both ways. `Source.build` makes it."""

    text: str
    marks: tuple[Mark, ...]
    module: Pair
    pairs: tuple[Pair, ...]  # of all that differs, outermost first; without the module
    sites: dict[str, tuple[Site, ...]]
    errors: dict[str, SpecError]  # of the breakpoints that have no place in this source

    def holders(self, name: str) -> list[Pair]:
        """The code that a breakpoint itself stands in: several for a line with lambdas."""
        return [pair for pair in (self.module, *self.pairs) if name in pair.own]

    def pair(self, plain: CodeType) -> Pair | None:
        """What there is for a code object of the program, if it is made from the same text."""
        if plain.co_name == "<module>":
            return self.module if same(self.module.plain, plain) else None
        key = key_of(plain)
        return next((pair for pair in self.pairs if pair.key == key and same(pair.plain, plain)), None)

    def is_in_function(self, name: str) -> bool:
        """Whether any of its places runs again after the module was loaded."""
        return any(site.is_in_function for site in self.sites[name])


class Source:
    """One version of a file's text.

    >>> Source("def f(x):\\n    return x\\n", "x.py").sites(Mark("b", 2))[0].function
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
                raise SpecError(f"{self.filename} does not parse: {error}", "is it Python, for this version?") from None
        return self._tree

    def sites(self, mark: Mark) -> tuple[Site, ...]:
        """Where a breakpoint stands: before a statement, and in lambdas or comprehensions of its line.

        Raises `SpecError` if there is no code, or no such name.
        """
        if mark.qualname:
            return (site_of_name(self.tree, self.filename, mark.qualname),)
        first = site_of_line(self.tree, self.text, self.filename, mark.line)
        inner, with_statement = sites_within(self.tree, mark.line, mark.condition, mark.log)
        return (first, *inner) if with_statement else inner

    def build(self, marks: Sequence[Mark], filename: str, *, whole: bool = False) -> Build:
        """Compiles both versions; without `whole` only those functions of the file that hold a mark."""
        sites, errors = self._all_sites(marks)
        placed = [mark for mark in marks if mark.id in sites and (whole or any(map(_is_inside, sites[mark.id])))]
        plain = self._compile([], sites, filename, whole)
        helped = {mark.id for mark in placed if mark.condition and needs_helper(parse_expression(mark.condition))}
        module, pairs = _pairs(plain, self._compile(placed, sites, filename, whole, helped), placed)
        suspects = {name for pair in pairs if _scopes(pair.plain) != _scopes(pair.marked) for name in pair.ids}
        if suspects:
            helped |= {mark.id for mark in placed if mark.id in suspects and self._is_tangled(mark, sites, filename)}
            module, pairs = _pairs(plain, self._compile(placed, sites, filename, whole, helped), placed)
        return Build(self.text, tuple(marks), module, pairs, sites, errors)

    def _is_tangled(self, mark: Mark, sites: dict[str, tuple[Site, ...]], filename: str) -> bool:
        """Whether the condition, inlined, would make a variable one that is shared between functions."""
        only = {mark.id: sites[mark.id]}
        plain = self._compile([], only, filename, whole=False)
        _, pairs = _pairs(plain, self._compile([mark], only, filename, False), [mark])
        return any(_scopes(pair.plain) != _scopes(pair.marked) for pair in pairs)

    def _all_sites(self, marks: Iterable[Mark]) -> tuple[dict[str, tuple[Site, ...]], dict[str, SpecError]]:
        sites: dict[str, tuple[Site, ...]] = {}
        errors: dict[str, SpecError] = {}
        for mark in marks:
            try:
                sites[mark.id] = self.sites(mark)
            except SpecError as error:
                errors[mark.id] = error
        return sites, errors

    def _compile(
        self,
        marks: Sequence[Mark],
        sites: dict[str, tuple[Site, ...]],
        filename: str,
        whole: bool,
        helped: Collection[str] = frozenset(),
    ) -> CodeType:
        groups: dict[Path, list[tuple[Site, Mark]]] = {}  # breakpoints of one place are hit as one
        for mark in marks:
            for site in sites[mark.id]:
                groups.setdefault(site.path, []).append((site, mark))
        inner = [(group[0][0], _ids(group)) for group in groups.values() if group[0][0].expression]
        inserts = [
            (path, statement(group[0][0], _ids(group), _inlined(group, helped)))
            for path, group in groups.items()
            if not group[0][0].expression
        ]
        kept = None if whole else [site.path for every in sites.values() for site in every]
        tree = rebuilt(replaced(self.tree, inner), inserts, kept)
        code = renamed(compile(tree, FILE, "exec", dont_inherit=True), filename)
        return shortened(code) if marks and _SKIP is not None else code


def _is_inside(site: Site) -> bool:
    return bool(site.chain) or site.is_in_function


def _ids(group: Sequence[tuple[Site, Mark]]) -> list[str]:
    return [mark.id for _, mark in group]


def _inlined(group: Sequence[tuple[Site, Mark]], helped: Collection[str]) -> str | None:
    """The condition that is compiled into the function; None: it can't be, or there are several breakpoints."""
    [(_, mark), *others] = group
    return None if others or mark.id in helped else mark.condition


def _pairs(plain: CodeType, marked: CodeType, marks: Sequence[Mark]) -> tuple[Pair, tuple[Pair, ...]]:
    """The module's codes, and all that differ below. Breakpoints add no code objects: both hold theirs in one order."""
    names = frozenset(mark.id for mark in marks)
    below = list(_below(plain, marked, names))
    own = _own(marked, names)
    return Pair(plain, marked, own.union(*(pair.ids for pair in below)), own), tuple(below)


def _below(plain: CodeType, marked: CodeType, names: frozenset[str]) -> Iterator[Pair]:
    for one, other in zip(nested(plain), nested(marked), strict=True):
        inner = list(_below(one, other, names))
        own = _own(other, names)
        ids = own.union(*(pair.ids for pair in inner))
        if ids:
            yield Pair(one, other, ids, own)
            yield from inner


def _own(code: CodeType, names: frozenset[str]) -> frozenset[str]:
    """The breakpoints that were put into this code."""
    if HIT not in code.co_names and HERE not in code.co_names:
        return frozenset()
    told = (each for each in code.co_consts if isinstance(each, tuple))
    return frozenset(name for each in told for name in each if isinstance(name, str) and name in names)


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
    return code.replace(co_code=bytes(ops), co_consts=consts, co_linetable=_with_our_jumps(code))


_NO_LOCATION, _NO_COLUMNS = 15, 13  # kinds of entries in Python's table of locations (Objects/locations.md)


def _with_our_jumps(code: CodeType) -> bytes:
    """The table of locations, in which the jump behind a call of ours has the call's line.

    It has none as Python compiles it, and so a trace function would be told once more that the line begins.
    """
    widths = [column is not None and column == end for _, _, column, end in code.co_positions()]
    table, at = bytearray(), 0
    for entry in _ENTRY.findall(code.co_linetable):
        count, kind = (entry[0] & 7) + 1, entry[0] >> 3 & 15
        is_ours = kind == _NO_LOCATION and at > 0 and widths[at - 1] and code.co_code[2 * at] == _SKIP
        table += bytes([0x80 | _NO_COLUMNS << 3 | count - 1, 0]) if is_ours else entry
        at += count
    return bytes(table)


_ENTRY = re.compile(rb"[\x80-\xff][\x00-\x7f]*", re.DOTALL)


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
