"""Shell scripts as commands and assignments, each word with its place. Parsed by tree-sitter, never run.

Script  commands, assignments, comments
Command words, and the commands that its output is piped into
Word    pieces: literal text, a variable, or something that only a run can tell
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from devkit.lint.room import Room, Watch
from devkit.lint.source import Span, Text
from devkit.lint.words import Word, raw_of, word_of

_BRANCHES = frozenset(
    {
        "if_statement",
        "elif_clause",
        "else_clause",
        "case_item",
        "while_statement",
        "for_statement",
        "c_style_for_statement",
        "function_definition",
    }
)
_DECLARATIONS = {"export": True, "declare": False, "typeset": False, "local": False, "readonly": False}
_NOT_WORDS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect", "comment", "variable_assignment"})
_SET_BY = frozenset({"read", "mapfile", "readarray", "getopts", "printf"})  # commands that set what they name
# The tree's scanner looks characters up in a table of 256, and crashes on some others. To a shell they are letters.
_PLAIN = bytes(32 if byte == 13 else 120 if byte >= 128 or not byte else byte for byte in range(256))
_OPEN_END = re.compile(rb"\\\n\s*\Z")  # goes on into nothing, which the tree takes for an error
_DEFAULT = re.compile(rb"(\$\{\w+:?[-=+?])([^{}$`\n]*)\}")  # of a variable: the tree does not take all that bash does
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CHAINS = frozenset({"list", "pipeline", "redirected_statement", "concatenation"})  # as deep as they are long
_PART = 1 << 16  # bytes of a script that the parser gets at once
DEEPEST = 200  # of brackets, quotes, loops and branches in each other


@dataclass(frozen=True)
class Assignment:
    """`NAME=VALUE`, or a list. `value` is None where only a run can tell, as in a `for`."""

    name: str
    value: Word | None
    items: tuple[Word, ...] | None
    span: Span
    at: int  # byte in its script
    branches: tuple[int, ...]  # of each `if`, loop or function around it
    exported: bool = False
    prefix: bool = False  # of one command only
    appends: bool = False


@dataclass(frozen=True)
class Command:
    """One simple command."""

    words: tuple[Word, ...]
    prefixes: tuple[Assignment, ...]
    span: Span
    at: int
    end: int
    branches: tuple[int, ...]
    pipe: tuple[int, int] | None  # (which pipeline, which of its commands)
    redirects: tuple[str, ...]
    background: bool

    @property
    def name(self) -> str:
        return self.words[0].raw if self.words else ""


@dataclass(frozen=True)
class Script:
    """What a shell would be given."""

    text: Text
    commands: tuple[Command, ...]
    assignments: tuple[Assignment, ...]
    comments: tuple[Span, ...]
    comment_at: tuple[tuple[int, int], ...]
    verbatim: tuple[tuple[int, int], ...]  # here-documents and single quotes: bytes that the shell leaves alone
    conditions: tuple[tuple[int, str], ...]  # start of an `if` and the text of its condition
    exports: frozenset[str]
    broken: Span | None  # where it is no shell

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[Assignment]]:
        """The assignments of each variable, in order."""
        found: dict[str, list[Assignment]] = {}
        for assignment in self.assignments:
            found.setdefault(assignment.name, []).append(assignment)
        return found

    @cached_property
    def _lists(self) -> dict[str, _List]:
        return {}

    def items(self, name: str, at: int) -> tuple[Word, ...] | None:
        """All of a list at a place: of `A=(...)` and each `A+=(...)` before it; None if that depends on the run."""
        if name not in self._lists:
            self._lists[name] = _List(self.by_name.get(name, ()))
        return self._lists[name].items(at)

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """Every word: of commands, of what stands before them, and of assignments."""
        prefixes = (prefix for command in self.commands for prefix in command.prefixes)
        values = (word for assignment in (*prefixes, *self.assignments) for word in _words_of(assignment))
        return (*(word for command in self.commands for word in command.words), *values)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every variable that something in it sets."""
        pieces = (piece for word in self.words for piece in word.pieces)
        with_default = (piece.variable for piece in pieces if piece.operator in (":=", "=") and piece.variable)
        return frozenset({*self.by_name, *self.exports, *with_default})


def _words_of(assignment: Assignment) -> Iterator[Word]:
    if assignment.value is not None:
        yield assignment.value
    yield from assignment.items or ()


class _List:
    """What a list variable holds after each of its assignments."""

    def __init__(self, assignments: Sequence[Assignment]) -> None:
        self._at: list[int] = []
        self._words: list[Word] = []
        self._parts: list[slice] = []
        start = 0
        for assignment in assignments:
            if assignment.items is None:
                break
            start = start if assignment.appends else len(self._words)
            self._words += assignment.items
            self._parts.append(slice(start, len(self._words)))
            self._at.append(assignment.at)
        self._end = next((a.at for a in assignments[len(self._at) :]), None)

    def items(self, at: int) -> tuple[Word, ...] | None:
        count = bisect_left(self._at, at)
        if not count or (self._end is not None and self._end < at):
            return None
        return tuple(self._words[self._parts[count - 1]])


@dataclass
class _Found:
    text: Text
    commands: list[Command] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    comments: list[tuple[int, int]] = field(default_factory=list)
    verbatim: list[tuple[int, int]] = field(default_factory=list)
    conditions: list[tuple[int, str]] = field(default_factory=list)
    exports: set[str] = field(default_factory=set)
    broken: Span | None = None


@dataclass(frozen=True)
class _At:
    """A node, and what is around it."""

    node: Node
    branches: tuple[int, ...] = ()
    pipe: tuple[int, int] | None = None
    redirects: tuple[str, ...] = ()
    background: bool = False
    more: tuple[Node, ...] = ()  # words that stand behind a redirection
    parent: str = ""  # its kind
    outer: int = 0  # where that begins
    depth: int = 0


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def parse(text: Text, room: Room | None = None) -> Script:
    """Any text is a script, if need be one with `broken`."""
    found = _Found(text)
    data = _OPEN_END.sub(lambda match: b" " * len(match[0]), text.data.translate(_PLAIN))
    data = _DEFAULT.sub(lambda match: match[1] + b"x" * len(match[2]) + b"}", data)
    tree = _tree(data, room or Room())
    if tree is None:
        found.broken = text.span(0, len(data))
    pending = [_At(tree.root_node)] if tree is not None else []
    while pending:  # not recursive: nesting may be deeper than Python's stack
        at = pending.pop()
        if at.depth > DEEPEST:
            found.broken = found.broken or text.span(at.node.start_byte, at.node.end_byte)
            continue
        _collect(found, at)
        pending += reversed(list(_inside(text, at)))
    return Script(
        text,
        tuple(sorted(found.commands, key=lambda command: command.at)),
        tuple(sorted(found.assignments, key=lambda assignment: assignment.at)),
        tuple(text.span(start, end) for start, end in found.comments),
        tuple(found.comments),
        tuple(found.verbatim),
        tuple(found.conditions),
        frozenset(found.exports),
        found.broken,
    )


def _tree(data: bytes, room: Room) -> Tree | None:
    """None where the parser would look too long for what a text without sense could mean."""
    watch = Watch(room)

    def part(offset: int, _point: object) -> bytes:
        return data[offset : offset + _PART]

    try:
        return _parser().parse(part, progress_callback=lambda _offset, _has_error: watch.is_over())
    except ValueError:
        _parser().reset()
        return None
    finally:
        watch.stop()


def _inside(text: Text, at: _At) -> Iterator[_At]:
    node = at.node
    branches = (*at.branches, node.start_byte) if node.type in _BRANCHES else at.branches
    children = node.children
    depth = at.depth + (node.type not in _CHAINS)
    position = 0
    redirects: tuple[str, ...] = ()
    more: tuple[Node, ...] = ()
    if node.type == "redirected_statement":
        redirects = tuple(raw_of(text, other) for other in children if other.type.endswith("_redirect"))
        more = tuple(word for other in children for word in _behind_redirect(other))
    for i, child in enumerate(children):
        pipe = at.pipe if node.type in ("redirected_statement", "negated_command") else None
        if node.type == "pipeline" and child.is_named:
            pipe, position = (node.start_byte, position), position + 1
        background = (i + 1 < len(children) and children[i + 1].type == "&") or (
            at.background and node.type in ("redirected_statement", "pipeline")
        )
        yield _At(child, branches, pipe, redirects, background, more, node.type, node.start_byte, depth)


def _collect(found: _Found, at: _At) -> None:
    node, kind = at.node, at.node.type
    if kind == "command":
        found.commands.append(_command(found, at))
    elif kind == "declaration_command":
        _declaration(found, at)
    elif kind == "variable_assignment":
        if at.parent not in ("command", "declaration_command"):
            found.assignments.append(_assignment(found, at))
    elif kind == "for_statement":
        _loop(found, at)
    elif kind == "comment":
        found.comments.append((node.start_byte, node.end_byte))
    elif kind in ("heredoc_body", "raw_string"):
        found.verbatim.append((node.start_byte, node.end_byte))
    elif kind in ("if_statement", "elif_clause"):
        condition = next((child for child in node.children if child.is_named), None)
        found.conditions.append((node.start_byte, raw_of(found.text, condition) if condition is not None else ""))
    elif (kind == "ERROR" or node.is_missing) and found.broken is None:
        start = at.outer if node.is_missing else node.start_byte  # what is not there is shown where it should begin
        found.broken = found.text.span(start, node.end_byte)


def _command(found: _Found, at: _At) -> Command:
    node, text = at.node, found.text
    words = [word_of(text, child) for child in (*_word_nodes(node), *at.more)]
    prefixes = _prefixes(found, at)
    _note_set(found, at, words)
    start = min([prefix.at for prefix in prefixes] + [word.bounds[0] for word in words], default=node.start_byte)
    return Command(
        tuple(words),
        prefixes,
        text.span(start, node.end_byte),
        start,
        node.end_byte,
        at.branches,
        at.pipe,
        at.redirects + tuple(raw_of(text, child) for child in node.children if child.type.endswith("_redirect")),
        at.background,
    )


def _prefixes(found: _Found, at: _At) -> tuple[Assignment, ...]:
    """The assignments before a command. The tree takes those of the lines above it for its own too."""
    prefixes: list[Assignment] = []
    for i, child in enumerate(at.node.children):
        if child.type != "variable_assignment":
            continue
        between = found.text.data[child.end_byte : at.node.children[i + 1].start_byte] if child.next_sibling else b"\n"
        prefixes.append(_assignment(found, _At(child, at.branches), prefix=True))
        if b"\n" in between.replace(b"\\\n", b""):
            found.assignments += (replace(assignment, prefix=False) for assignment in prefixes)
            prefixes = []
    return tuple(prefixes)


def _behind_redirect(node: Node) -> list[Node]:
    """`cmd >log a b`: the tree takes `a b` for places to write to."""
    if node.type != "file_redirect":
        return []
    return [child for child in node.children if child.is_named and child.type != "file_descriptor"][1:]


def _word_nodes(command: Node) -> Iterator[Node]:
    for child in command.children:
        if child.type == "command_name":
            yield from (child.children or [child])[:1]
        elif child.is_named and child.type not in _NOT_WORDS:
            yield child


def _note_set(found: _Found, at: _At, words: list[Word]) -> None:
    """Variables that a command such as `read` sets."""
    if words and words[0].raw in _SET_BY:
        names = [word.raw for word in words[1:] if _NAME.fullmatch(word.raw)]
        span = found.text.span(at.node.start_byte, at.node.end_byte)
        for name in names:
            found.assignments.append(Assignment(name, None, None, span, at.node.start_byte, at.branches))


def _declaration(found: _Found, at: _At) -> None:
    children = at.node.children
    words = [raw_of(found.text, child) for child in children]
    exports = _DECLARATIONS.get(words[0], False) or "-x" in words
    for child in children[1:]:
        if child.type == "variable_assignment":
            found.assignments.append(_assignment(found, _At(child, at.branches), exported=exports))
            if exports:
                found.exports.add(found.assignments[-1].name)
            continue
        name, span = raw_of(found.text, child), found.text.span(child.start_byte, child.end_byte)
        if child.type not in ("variable_name", "word") or not _NAME.fullmatch(name):
            continue
        if exports:
            found.exports.add(name)
        else:
            found.assignments.append(Assignment(name, None, None, span, child.start_byte, at.branches))


def _assignment(found: _Found, at: _At, *, exported: bool = False, prefix: bool = False) -> Assignment:
    node, text = at.node, found.text
    target = node.child_by_field_name("name")
    value = node.child_by_field_name("value")
    name = raw_of(text, target).partition("[")[0] if target is not None else ""
    items = None
    if value is not None and value.type == "array":
        items = tuple(word_of(text, child) for child in value.children if child.is_named and child.type != "comment")
    word = word_of(text, value) if value is not None and items is None else None
    if value is None:
        word = Word((), text.span(node.end_byte, node.end_byte), "")
    if target is not None and target.type == "subscript":
        word = None
    return Assignment(
        name,
        word,
        items,
        text.span(node.start_byte, node.end_byte),
        node.start_byte,
        at.branches,
        exported,
        prefix,
        appends=any(child.type == "+=" for child in node.children),
    )


def _loop(found: _Found, at: _At) -> None:
    target = at.node.child_by_field_name("variable")
    if target is not None:
        span = found.text.span(target.start_byte, target.end_byte)
        branches = (*at.branches, at.node.start_byte)
        found.assignments.append(Assignment(raw_of(found.text, target), None, None, span, target.start_byte, branches))
