"""Values as short texts: capped, without secrets, and without running the program's own code.

A program's `__repr__`, properties and iterators may block, log, or call a collective for which no other rank is there.
So objects are shown by their attributes, and containers by the methods of the built-in type below them. The texts hold
no addresses: equal values of two ranks are equal texts.
"""

from __future__ import annotations

import builtins
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import EnumType
from itertools import islice
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from .arrays import array_facts, facts_text
from .insides import as_items, as_mapping, attributes, fields, is_machinery, size_of, telling, type_name
from .redaction import (
    LONGEST_SECRET,
    REDACTED,
    hidden_items,
    hidden_pairs,
    is_secret,
    last_name,
    redact,
    scrub,
    scrub_start,
    secrets_among,
    secrets_of_frames,
    without,
)  # fmt: skip
from .scopes import assign, evaluate
from .shortly import short
from .words import plain

__all__ = [
    "LARGE", "SMALL", "Limits", "assign", "attributes", "evaluate", "evaluate_log", "evaluate_summary", "redact",
    "summarise",
]  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """How much of a value is shown."""

    text: int = 160  # characters of one text
    items: int = 8  # of one container
    depth: int = 3
    total: int = 1000  # characters altogether


SMALL = Limits()
LARGE = Limits(text=4000, items=100, depth=6, total=16_000)

MOST_LOOKED_AT = 1000  # items of which the types are known
MANY, FIRST = 8, 4  # items, and those of them that are seen at once
KEYS = 4  # that are shown of a dictionary which is too deep for its values
BUILTINS = vars(builtins)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# Whose `repr`, written in C, calls nothing of the program's and is short.
_PLAIN_ROOTS = frozenset(
    {"datetime", "decimal", "_decimal", "re", "torch", "numpy", "ray", "_thread", "zoneinfo", "_io", "select"}
)
_PLAIN_MODULES = frozenset({"pathlib", "fractions", "uuid", "ipaddress", "datetime", "decimal", "zoneinfo"})


def summarise(value: Any, limits: Limits = SMALL) -> str:
    """One line that says what a value is; never raises.

    >>> summarise({"step": 3, "names": ["a", "b"], "password": "x"})
    "{'step': 3, 'names': ['a', 'b'], 'password': '<redacted>'}"
    >>> summarise(list(range(100)))
    '[0, 1, 2, 3, 4, 5, 6, 7, ... 92 more]'
    """
    try:
        return cut(scrub(_Text(limits).of(value, 0)), limits.total)
    except Exception as error:  # noqa: BLE001 - keeps a stop or a snapshot alive whatever the value is; the text tells
        return f"<{type_name(type(value))}: not shown, {type(error).__name__}>"


def cut(text: str, length: int) -> str:
    """The start of a text, if it is too long.

    >>> cut("abcdef", 3)
    'abc…'
    """
    return text if len(text) <= length else text[:length] + "…"


class _Text:
    """One rendering: knows what it has open, and how much it may still write."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.total
        self._open: set[int] = set()

    def of(self, value: Any, depth: int) -> str:
        text = self._scalar(value)
        if text is None:
            text = self._nested(value, depth)
        self._left -= len(text)
        return text

    def _scalar(self, value: Any) -> str | None:
        kind = type(value)
        if value is None or kind in (bool, float, complex, type(Ellipsis), type(NotImplemented)):
            return repr(value)
        if kind is int:
            return repr(value) if value.bit_length() < 1000 else f"<int of {value.bit_length()} bits>"
        if issubclass(kind, (str, bytes, bytearray)):
            return self._characters(value)
        facts = array_text(value)
        return facts if facts is not None else by_name(value)

    def _characters(self, value: Any) -> str:
        base: Any = next(base for base in (str, bytes, bytearray) if issubclass(type(value), base))
        head = base(base.__getitem__(value, slice(0, self._limits.text + LONGEST_SECRET + 1)))
        more = max(0, base.__len__(value) - self._limits.text)
        is_text = isinstance(head, str)
        text: Any = scrub_start(head if is_text else head.decode("latin-1"), self._limits.text)
        text = text if is_text else base(text.encode("latin-1"))
        return f"{text!r}… {more} more" if more else repr(text)

    def _nested(self, value: Any, depth: int) -> str:
        if id(value) in self._open:
            return "..."
        if depth >= self._limits.depth or self._left <= 0:
            return f"<{type_name(type(value))}{_length(value)}{self._first_keys(value)}>"
        self._open.add(id(value))
        try:
            return self._container(value, depth)
        finally:
            self._open.discard(id(value))

    def _first_keys(self, value: Any) -> str:
        """Of a dictionary that is too deep to be shown: what it has, and of which types."""
        mapping = as_mapping(value)
        if not mapping or mapping is BUILTINS or self._left <= 0:
            return ""
        pairs = [(key, each) for key, each in islice(dict.items(mapping), KEYS) if type(key) in (str, int)]
        texts = [f"{self._scalar(key)}: {type_name(type(each))}" for key, each in pairs]
        if dict.__len__(mapping) > len(texts):
            texts.append("...")
        return f" {{{', '.join(texts)}}}" if pairs else ""

    def _container(self, value: Any, depth: int) -> str:
        kind = type(value)
        mapping = as_mapping(value)
        if mapping is BUILTINS:  # in the names of code that was given to `exec`
            return "<builtins>"
        if mapping is not None:
            inner = self._join(self._pairs(mapping, depth), dict.__len__(mapping))
            return f"{{{inner}}}" if kind is dict else f"{type_name(kind)}({{{inner}}})"
        items = as_items(value)
        if items is not None:
            return self._sequence(value, items, depth)
        if issubclass(kind, BaseException):
            return f"{type_name(kind)}({self._arguments(value, depth)})"
        return self._object(value, depth)

    def _arguments(self, error: BaseException, depth: int) -> str:
        arguments = BaseException.args.__get__(error)  # type: ignore[attr-defined]
        return self._join((self.of(each, depth + 1) for each in arguments), len(arguments))

    def _sequence(self, value: Any, items: list[Any], depth: int) -> str:
        kind = type(value)
        named = fields(value)
        if named is not None:
            pairs = self._named(named, depth)
            return f"{type_name(kind)}({self._join((f'{name}={text}' for name, text in pairs), len(named))})"
        inner = _odd(value) + self._join(self._items(items, size_of(value), depth), size_of(value))
        if kind is list:
            return f"[{inner}]"
        if kind is tuple:
            return f"({inner},)" if size_of(value) == 1 else f"({inner})"
        if kind is set and items:
            return f"{{{inner}}}"
        return f"{type_name(kind)}([{inner}])"

    def _items(self, items: list[Any], size: int, depth: int) -> Iterable[str]:
        hidden = hidden_items(items, size)
        for index, each in enumerate(items):
            yield repr(REDACTED) if index in hidden else self.of(each, depth + 1)

    def _pairs(self, mapping: dict[Any, Any], depth: int) -> Iterable[str]:
        pairs = list(islice(dict.items(mapping), self._limits.items))
        for (key, _), (_, text) in zip(pairs, self._named(pairs, depth), strict=True):
            yield f"{self.of(key, depth + 1)}: {text}"

    def _named(self, pairs: list[tuple[Any, Any]], depth: int) -> Iterable[tuple[Any, str]]:
        hidden = hidden_pairs(pairs)
        for index, (name, each) in enumerate(pairs):
            yield name, repr(REDACTED) if index in hidden else self.of(each, depth + 1)

    def _object(self, value: Any, depth: int) -> str:
        plain = plain_repr(value)
        if plain is not None:
            return cut(plain, self._limits.text)
        if depth and is_machinery(type(value)):
            return f"<{type_name(type(value))}>"
        named = telling(value)
        shown = [(name, each) for name, each in named if not name.startswith("_")] or named
        pairs = (f"{name}={text}" for name, text in self._named(shown, depth))
        inner = self._join(pairs, len(shown))
        return f"<{type_name(type(value))} {inner}>" if inner else f"<{type_name(type(value))}>"

    def _join(self, texts: Iterable[str], count: int) -> str:
        parts = []
        for text in islice(texts, self._limits.items):
            parts.append(text)
            if self._left <= 0:
                break
        if count > len(parts):
            parts.append(f"... {count - len(parts)} more")
        return ", ".join(parts)


def _odd(value: Any) -> str:
    """Of many items, the first type that none of the first ones has: one among many is often what is wrong.

    >>> _odd([1, 2, 3, 4, None, 5, None, 6]), _odd([1, 2, 3, 4, None]), _odd([1] * 9)
    ('2 of 8 are NoneType: ', '', '')
    """
    items = as_items(value, MOST_LOOKED_AT) or []
    if len(items) < MANY:
        return ""
    known = {type(each) for each in items[:FIRST]}
    others = Counter(type(each) for each in items[FIRST:] if type(each) not in known)
    if not others:
        return ""
    kind, count = next(iter(others.items()))
    of = f"{size_of(value)}" if size_of(value) <= MOST_LOOKED_AT else f"the first {MOST_LOOKED_AT}"
    return f"{count} of {of} {'is' if count == 1 else 'are'} {type_name(kind)}: "


def array_text(value: Any) -> str | None:
    """The facts of a tensor or array in one line; None for anything else."""
    facts = facts_of(value)
    return None if facts is None else facts_text(facts)


def facts_of(value: Any) -> dict[str, Any] | None:
    """`array_facts`, also of tensors that raise when they are looked at."""
    try:
        return array_facts(value)
    except Exception as error:  # noqa: BLE001 - keeps the other variables visible; the note tells
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        return {"kind": type_name(type(value)), "dtype": "", "shape": [], "note": cut(problem, 80)}


def by_name(value: Any) -> str | None:
    """What is known by a name, or by a short line: classes, functions, modules, enum members, handles, locks."""
    kind = type(value)
    if issubclass(kind, type):
        return f"<class {type.__dict__['__module__'].__get__(value)}.{type_name(value)}>"
    if issubclass(kind, ModuleType):
        return f"<module {ModuleType.__getattribute__(value, '__name__')}>"
    if kind is FunctionType:
        return f"<function {value.__qualname__}>"
    if kind is MethodType:
        return f"<method {getattr(value.__func__, '__qualname__', '?')}>"
    if issubclass(type(kind), EnumType):
        return f"{type_name(kind)}.{getattr(value, '_name_', '?')}"
    return short(value)


def plain_repr(value: Any) -> str | None:
    kind = type(value)
    module = getattr(kind, "__module__", "")
    if not isinstance(module, str):
        return None
    shown_by: Any = kind.__repr__
    is_native = not isinstance(shown_by, FunctionType) and shown_by is not object.__repr__
    root = module.split(".")[0]
    if (is_native and (root in _PLAIN_ROOTS or kind is range or kind is slice)) or module in _PLAIN_MODULES:
        return _ADDRESS.sub("", repr(value))
    if isinstance(shown_by, FunctionType) or telling(value):
        return None
    # Generators, frames, locks, files, C objects: what kind of thing it is, and of which function.
    return f"<{type_name(kind)}{_of_what(value)}>"


def _of_what(value: Any) -> str:
    name = getattr(value, "__qualname__", None) if type(value).__module__ in ("builtins", "_asyncio") else None
    return f" {name}{_how_far(value)}" if isinstance(name, str) else ""


def _how_far(value: Any) -> str:
    """Where a generator or a coroutine is."""
    for prefix in ("gi", "cr", "ag"):
        if hasattr(value, f"{prefix}_frame"):
            frame = getattr(value, f"{prefix}_frame")
            return f" at line {frame.f_lineno}" if frame is not None else " at its end"
    return ""


def _length(value: Any) -> str:
    mapping = as_mapping(value)
    if mapping is not None:
        return f" of {dict.__len__(mapping)}"
    return f" of {size_of(value)}" if as_items(value, 0) is not None else ""


def start(text: str, length: int) -> str:
    return scrub(text) if len(text) <= length else scrub_start(text, length) + "…"


def evaluate_summary(stop: Any, expression: str, frame: Any, timeout: float) -> dict[str, Any]:
    """Evaluates in a stopped thread: its value in one line, or what went wrong in one line.

    `frame` is a frame, or one of `stop.frames()`.
    """
    where = getattr(frame, "frame", frame)
    try:
        value = stop.run(lambda: _summary_of(expression, where, getattr(stop, "names", {})), timeout)
    except Exception as error:  # noqa: BLE001 - whatever the expression raised is the answer
        return {"value": None, "error": error_line(error)}
    return {"value": value, "error": None}


def _summary_of(expression: str, frame: FrameType, also: Mapping[str, Any]) -> str:
    value = evaluate(expression, frame, also=also)
    if is_secret(last_name(expression), value):
        return repr(REDACTED)
    return str(without(summarise(value, LARGE), secrets_among(frame.f_locals)))


def evaluate_log(template: str, frame: FrameType) -> str:
    """The text of a logpoint: an expression's value, or a text with {expressions}. Never raises."""
    if _is_expression(template):
        return _log_part(template, frame)
    return re.sub(r"\{([^{}]+)\}", lambda found: _log_part(found[1], frame), template)


def _is_expression(text: str) -> bool:
    """Whether it is one to evaluate as a whole. `{step}` alone would be a set, and is meant as a text."""
    import ast

    try:
        root = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return False
    parts = root.elts if isinstance(root, ast.Tuple) else [root]
    return not any(isinstance(part, ast.Set) for part in parts)


def _log_part(expression: str, frame: FrameType) -> str:
    try:
        value = evaluate(expression, frame)
        if is_secret(last_name(expression), value):
            return REDACTED
        text = start(value, SMALL.total) if type(value) is str else summarise(value)
        return str(without(text, secrets_among(frame.f_locals)))
    except Exception as error:  # noqa: BLE001 - a logpoint never raises into the program; its text tells
        return f"<{error_line(error)}>"


def error_line(error: BaseException) -> str:
    """An exception in one line."""
    try:
        said = " ".join(plain(str(error)).split())
        text = str(without(scrub(said), secrets_of_frames(error)))
    except Exception:  # noqa: BLE001 - keeps the name of an exception whose own text fails
        text = ""
    return cut(f"{type_name(type(error))}: {text}" if text else type_name(type(error)), 500)
