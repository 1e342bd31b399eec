"""A shell word as pieces: what is written, what a variable gives, and what only a run can tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from tree_sitter import Node

from devkit.lint.source import Span, Text

_EXPANSION = re.compile(
    r"\$\{(?P<kind>[#!]?)(?P<name>[A-Za-z_]\w*|[@*?$!#-]|\d+)(?P<index>\[[^\]]*\])?(?P<rest>.*)\}", re.DOTALL | re.ASCII
)
_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|//?|\^\^?|,,?|:|@")
NOWHERE = Span(0, 0)
_DEPTH = 40  # of nested quotes and braces; deeper ones count as unknown


@dataclass(frozen=True)
class Piece:
    """Literal `text`; or a `variable`, with what stands after its name; or neither, for a substitution."""

    text: str = ""
    variable: str = ""
    operator: str = ""
    operand: str = ""
    index: str = ""
    quoted: bool = False
    span: Span = NOWHERE

    @property
    def is_literal(self) -> bool:
        return not self.variable and not self.operator


@dataclass(frozen=True)
class Word:
    """One word as the shell would take it apart; `raw` is how it is written."""

    pieces: tuple[Piece, ...]
    span: Span
    raw: str
    bounds: tuple[int, int] = (0, 0)  # in its script

    @property
    def literal(self) -> str | None:
        """Its text, if no variable is in it."""
        if all(piece.is_literal for piece in self.pieces):
            return "".join(piece.text for piece in self.pieces)
        return None

    @property
    def variables(self) -> tuple[Piece, ...]:
        return tuple(piece for piece in self.pieces if piece.variable)


def word_of(text: Text, node: Node) -> Word:
    """The word that a node of the tree is."""
    pieces = tuple(_merged(_pieces(text, node, quoted=False, depth=0)))
    return Word(pieces, text.span(node.start_byte, node.end_byte), raw_of(text, node), (node.start_byte, node.end_byte))


def _merged(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Neighbouring literals with the same quoting as one."""
    for (is_literal, quoted), group in groupby(pieces, key=lambda piece: (piece.is_literal, piece.quoted)):
        run = list(group)
        if not is_literal or len(run) == 1:
            yield from run
        else:
            text = "".join(piece.text for piece in run)
            yield Piece(text, quoted=quoted, span=Span(run[0].span.start, run[-1].span.end))


def _pieces(text: Text, node: Node, *, quoted: bool, depth: int) -> Iterator[Piece]:
    span = text.span(node.start_byte, node.end_byte)
    kind, raw = node.type, raw_of(text, node)
    if depth > _DEPTH:
        yield Piece(operator="?", quoted=quoted, span=span)
    elif kind == "string":
        yield from _inside(text, node, node.start_byte + 1, node.end_byte - raw.endswith('"'), True, depth)
    elif kind == "raw_string":
        yield Piece(raw[1:-1] if raw.endswith("'") else raw[1:], quoted=True, span=span)
    elif kind in ("ansi_c_string", "translated_string"):
        yield Piece(raw[2:-1], quoted=True, span=span)
    elif kind in ("simple_expansion", "expansion"):
        yield _expansion(raw, quoted, span)
    elif kind in ("concatenation", "array"):
        yield from _inside(text, node, node.start_byte, node.end_byte, quoted, depth)
    elif kind in ("command_substitution", "process_substitution", "arithmetic_expansion"):
        yield Piece(operator=kind, operand=raw, quoted=quoted, span=span)
    else:
        yield Piece(_unescape(raw), quoted=quoted, span=span)


def _inside(text: Text, node: Node, start: int, end: int, quoted: bool, depth: int) -> Iterator[Piece]:
    """The children of a string or of a concatenation, and what stands between them: the tree leaves blanks out."""
    position = start
    for child in node.children:
        if child.type in ("string_content", '"') or child.start_byte < position or child.end_byte > end:
            continue
        if child.start_byte > position:
            yield _gap(text, position, child.start_byte, quoted)
        yield from _pieces(text, child, quoted=quoted, depth=depth + 1)
        position = child.end_byte
    if position < end:
        yield _gap(text, position, end, quoted)


def _gap(text: Text, start: int, end: int, quoted: bool) -> Piece:
    raw = text.data[start:end].decode("utf-8", "replace")
    return Piece(_unescape_quoted(raw) if quoted else _unescape(raw), quoted=quoted, span=text.span(start, end))


def _expansion(raw: str, quoted: bool, span: Span) -> Piece:
    if raw[1:2].isspace():
        return Piece(raw[1:].strip(), quoted=quoted, span=span)  # a prompt: the tree takes `$ ray` for a variable
    if not raw.startswith("${"):
        return Piece(variable=raw[1:] or "?", quoted=quoted, span=span)
    match = _EXPANSION.fullmatch(raw)
    if match is None:
        return Piece(operator="?", operand=raw, quoted=quoted, span=span)
    rest = match["rest"]
    operator = _OPERATOR.match(rest)
    sign = match["kind"] or (operator[0] if operator else "")
    operand = rest[len(operator[0]) :] if operator else ""
    return Piece(
        variable=match["name"], operator=sign, operand=operand, index=match["index"] or "", quoted=quoted, span=span
    )


def _unescape(raw: str) -> str:
    """Outside quotes a backslash keeps the next character, and a line's end after it is nothing."""
    return re.sub(r"\\(\n|.)", lambda match: "" if match[1] == "\n" else match[1], raw, flags=re.DOTALL)


def _unescape_quoted(raw: str) -> str:
    return re.sub(r'\\([\n$`"\\])', lambda match: "" if match[1] == "\n" else match[1], raw)


def raw_of(text: Text, node: Node) -> str:
    """A node as it is written. The tree itself was made from a plainer text of the same length."""
    return text.data[node.start_byte : node.end_byte].decode("utf-8", "replace")
