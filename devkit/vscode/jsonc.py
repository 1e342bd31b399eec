"""JSON with comments: read with the place of each value, and edited so that every other byte stays as it is.

Comments, trailing commas and a byte order mark are what VS Code allows in its own files, and are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

TRIVIA = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\r\n]*|/\*.*?\*/)+", re.DOTALL)
STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
COMMENT_OR_STRING = re.compile(rf"(?P<comment>//[^\r\n]*|/\*.*?\*/)|{STRING.pattern}", re.DOTALL)
WORD = re.compile(r"[-+.\w]+")
CONSTANTS = {"true": True, "false": False, "null": None}
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
LONGEST_NUMBER = 1000  # digits; Python reads no more than some thousand
INDENT = "    "  # where a file shows none: VS Code's own
SHORT = 60  # characters of a list in one line


class JsoncError(ValueError):
    """A text that is not JSON with comments; says where."""

    def __init__(self, message: str, text: str, at: int) -> None:
        line = text.count("\n", 0, at) + 1
        column = at - text.rfind("\n", 0, at)
        super().__init__(f"line {line}, column {column}: {message}")


@dataclass(frozen=True)
class Node:
    """A value and its place in the text; `members` of an object, `items` of an array."""

    start: int
    end: int
    value: Any
    members: Mapping[str, Node] = field(default_factory=dict)
    items: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Edit:
    """What stands from `start` to `end` becomes `new`."""

    start: int
    end: int
    new: str


def apply(text: str, edits: Sequence[Edit]) -> str:
    """The text after these edits, which don't overlap.

    >>> apply("abc", [Edit(0, 1, "x"), Edit(3, 3, "!")])
    'xbc!'
    """
    for edit in sorted(edits, key=lambda each: -each.start):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


@lru_cache(maxsize=2)
def parse(text: str) -> Node | None:
    """The value of a text; None for one that holds nothing but comments. Raises JsoncError.

    >>> parse('{"a": [1, 2,], // two' + chr(10) + '}').value
    {'a': [1, 2]}
    """
    parser = _Parser(text)
    at = parser.skip(0)
    if at == len(text):
        return None
    try:
        node = parser.value(at)
    except RecursionError:
        raise JsoncError("it is nested too deeply", text, at) from None
    end = parser.skip(node.end)
    if end != len(text):
        raise JsoncError("there is text after the end", text, end)
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, at: int) -> int:
        """Behind white space and comments."""
        found = TRIVIA.match(self._text, at)
        at = found.end() if found else at
        if self._text.startswith("/*", at):
            raise JsoncError("unterminated comment", self._text, at)
        return at

    def value(self, at: int) -> Node:
        first = self._text[at : at + 1]
        if first == "{":
            return self._object(at)
        if first == "[":
            return self._array(at)
        return self._string(at) if first == '"' else self._word(at)

    def _object(self, start: int) -> Node:
        members: dict[str, Node] = {}
        at = self.skip(start + 1)
        while not self._text.startswith("}", at):
            key = self._string(at)
            at = self.skip(key.end)
            if not self._text.startswith(":", at):
                raise JsoncError("a colon is missing", self._text, at)
            members[key.value] = node = self.value(self.skip(at + 1))
            at = self._after_element(node.end, "}")
        return Node(start, at + 1, {name: node.value for name, node in members.items()}, members)

    def _array(self, start: int) -> Node:
        items: list[Node] = []
        at = self.skip(start + 1)
        while not self._text.startswith("]", at):
            items.append(self.value(at))
            at = self._after_element(items[-1].end, "]")
        return Node(start, at + 1, [node.value for node in items], items=tuple(items))

    def _after_element(self, at: int, closer: str) -> int:
        """Where the next element begins, or the end stands."""
        at = self.skip(at)
        if self._text.startswith(",", at):
            return self.skip(at + 1)
        if not self._text.startswith(closer, at):
            missing = "a comma or the end" if at < len(self._text) else "the end"
            raise JsoncError(f"{missing} is missing: `{closer}`", self._text, at)
        return at

    def _string(self, at: int) -> Node:
        found = STRING.match(self._text, at)
        if found is None:
            raise JsoncError("a string in double quotes is missing or unterminated", self._text, at)
        try:
            return Node(at, found.end(), json.loads(found[0]))
        except ValueError:
            raise JsoncError("a string has an escape that JSON does not allow", self._text, at) from None

    def _word(self, at: int) -> Node:
        found = WORD.match(self._text, at)
        word = found[0] if found else ""
        end = at + len(word)
        if word in CONSTANTS:
            return Node(at, end, CONSTANTS[word])
        if NUMBER.fullmatch(word) and len(word) < LONGEST_NUMBER:
            return Node(at, end, json.loads(word))
        raise JsoncError(f"not a value: {word:.40}" if word else "a value is missing", self._text, at)


# ---- edits


def append(text: str, array: Node, value: Any) -> list[Edit]:
    """Puts a value at the end of an array, in the file's own style."""
    return _insert(text, array, list(array.items), "", value)


def set_member(text: str, node: Node, key: str, value: Any) -> list[Edit]:
    """Gives an object a member, or a member another value."""
    if key in node.members:
        return [replace(text, node.members[key], value)]
    members = sorted(node.members.values(), key=lambda member: member.start)
    return _insert(text, node, members, f"{json.dumps(key)}: ", value)


def replace(text: str, node: Node, value: Any) -> Edit:
    """Another value in the place of one."""
    return Edit(node.start, node.end, _render(text, value, _indent_at(text, node.start)))


def comments(text: str) -> list[str]:
    """All comments of a text that can be parsed, or of the text of a value.

    >>> comments('{"a": "// none", /* one */ "b": 1} // two')
    ['/* one */', '// two']
    """
    return [found["comment"] for found in COMMENT_OR_STRING.finditer(text) if found["comment"]]


def _insert(text: str, container: Node, elements: Sequence[Node], label: str, value: Any) -> list[Edit]:
    """As the last element, behind the comments that follow the one before it."""
    newline = _newline(text)
    outer = _indent_at(text, container.start)
    closer = container.end - 1
    inner = _indent_of_elements(text, container, elements) or outer + indent_of(text)
    element = f"{newline}{inner}{label}{_render(text, value, inner)}"
    if not elements:
        gap = text[container.start + 1 : closer]
        kept = gap.rstrip(" \t\r\n")
        return [Edit(container.start + 1 + len(kept), closer, f"{element}{newline}{outer}")]
    last = elements[-1].end
    has_comma = text.startswith(",", _Parser(text).skip(last))
    at = last + len(text[last:closer].rstrip(" \t\r\n"))
    tail = "" if "\n" in text[at:closer] else f"{newline}{outer}"
    end = closer if tail else at
    if has_comma:
        return [Edit(at, end, f"{element},{tail}")]
    return [Edit(last, last, ","), Edit(at, end, element + tail)] if at > last else [Edit(at, end, f",{element}{tail}")]


def _render(text: str, value: Any, indent: str) -> str:
    """JSON whose lines after the first one are indented by `indent`."""
    return "\n".join(_lines(value, indent_of(text))).replace("\n", _newline(text) + indent)


def _lines(value: Any, step: str) -> list[str]:
    """As people write it: a list of a few short words stands in one line."""
    short = json.dumps(value, ensure_ascii=False)
    is_flat = isinstance(value, list) and not any(isinstance(each, list | dict) for each in value)
    if not value or not isinstance(value, list | dict) or (is_flat and len(short) <= SHORT):
        return [short]
    pairs = value.items() if isinstance(value, dict) else (("", each) for each in value)
    lines = []
    for key, each in pairs:
        label = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(value, dict) else ""
        first, *rest = _lines(each, step)
        lines += [step + label + first, *(step + line for line in rest)]
        lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",")
    braces = "{}" if isinstance(value, dict) else "[]"
    return [braces[0], *lines, braces[1]]


def indent_of(text: str) -> str:
    """The step of indentation that a file shows: that of its first member which begins a line."""
    root = parse(text)
    first = min((node.start for node in root.members.values()), default=-1) if root else -1
    indent = _indent_at(text, first) if first >= 0 else ""
    return indent or INDENT


def _indent_at(text: str, at: int) -> str:
    """The white space that the line of `at` begins with."""
    start = text.rfind("\n", 0, at) + 1
    found = re.compile(r"[ \t]*").match(text, start)
    return found[0] if found else ""


def _indent_of_elements(text: str, container: Node, elements: Sequence[Node]) -> str:
    """The indentation of the first element that is not in the container's own line."""
    below = (each.start for each in elements if text.rfind("\n", container.start, each.start) >= 0)
    return _indent_at(text, next(below, 0))


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
