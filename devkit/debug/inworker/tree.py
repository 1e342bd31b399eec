"""A value as a tree of variables, a page at a time: attributes and items, and the rows of a tensor."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .insides import as_items, as_mapping, attributes, fields, size_of
from .redaction import hidden_items, hidden_pairs, scrub
from .values import facts_of

PAGE = 100  # a mapping that is larger is shown in pages, as a list is


@dataclass(frozen=True)
class Child:
    """One variable below another."""

    name: str
    value: Any
    access: str = ""  # what to write behind the parent's expression; empty: there is no such text
    is_secret: bool = False  # by its name, or by what is beside it


def counts(value: Any) -> tuple[int, int]:
    """How many named and how many indexed children a value has.

    >>> counts([1, 2, 3]), counts({"a": 1}), counts(7)
    ((0, 3), (1, 0), (0, 0))
    """
    if value is None or type(value) in (bool, int, float, complex, str, bytes, bytearray):
        return 0, 0
    rows = _rows(value)
    if rows is not None:
        return len(_facts(value)), rows
    own = len(_named_attributes(value))
    mapping = as_mapping(value)
    if mapping is not None:
        size = dict.__len__(mapping)
        return (own, size) if size > PAGE else (own + size, 0)
    return own, size_of(value) if fields(value) is None else 0


def named(value: Any) -> list[Child]:
    """Attributes, the items of a small mapping, the facts of a tensor."""
    if _rows(value) is not None:
        return [Child(name, each) for name, each in _facts(value).items()]
    own = _named_attributes(value)
    hidden = hidden_pairs(own)
    children = [
        Child(name, each, f".{name}" if name.isidentifier() else "", at in hidden)
        for at, (name, each) in enumerate(own)
    ]
    mapping = as_mapping(value)
    if mapping is not None and dict.__len__(mapping) <= PAGE:
        return _pairs(mapping, 0, PAGE) + children
    return children


def indexed(value: Any, start: int = 0, count: int = PAGE) -> list[Child]:
    """The items from `start` on, at most `count`."""
    if _rows(value) is not None:
        return _tensor_rows(value, start, count)
    mapping = as_mapping(value)
    if mapping is not None:
        return _pairs(mapping, start, count) if dict.__len__(mapping) > PAGE else []
    # A set's items have no expression: they are in no order.
    has_index = hasattr(type(value), "__getitem__")
    items = (as_items(value, start + count) or []) if fields(value) is None else []
    hidden = hidden_items(items, size_of(value))
    return [
        Child(str(number), each, f"[{number}]" if has_index else "", number in hidden)
        for number, each in enumerate(items[start:], start)
    ]


def set_child(value: Any, name: str, new: Any) -> None:
    """Sets a child by the name that it was shown under. Raises LookupError if there is none."""
    mapping = as_mapping(value)
    if mapping is not None:
        for key in list(dict.keys(mapping)):
            if _key_text(key) == name:
                value[key] = new
                return
    if name.isdecimal() and (_rows(value) is not None or isinstance(value, list)):
        value[int(name)] = new
    elif any(each == name for each, _ in attributes(value)):
        setattr(value, name, new)
    else:
        raise LookupError(f"{name} can't be set here")


def _named_attributes(value: Any) -> list[tuple[str, Any]]:
    if issubclass(type(value), BaseException):
        chain = [(name, getattr(value, name)) for name in ("args", "__cause__", "__context__")]
        return [*((name, each) for name, each in chain if each is not None), *attributes(value)]
    named = fields(value)
    if named is not None:
        return named
    return sorted(attributes(value), key=lambda pair: pair[0].startswith("_"))


def _pairs(mapping: dict[Any, Any], start: int, count: int) -> list[Child]:
    pairs = list(islice(dict.items(mapping), start, start + count))
    hidden = hidden_pairs(pairs)
    return [Child(_key_text(key), each, _access(key), at in hidden) for at, (key, each) in enumerate(pairs)]


def _access(key: Any) -> str:
    """How a program writes a key; nothing where that would show a secret."""
    text = f"[{key!r}]" if type(key) in (str, int, bool, bytes) else ""
    return text if text == scrub(text) else ""


def _key_text(key: Any) -> str:
    from .values import summarise

    return summarise(key)


def _facts(value: Any) -> dict[str, Any]:
    facts = facts_of(value) or {}
    return {name: each for name, each in facts.items() if name not in ("kind", "values") and each is not None}


def _rows(value: Any) -> int | None:
    """The length of a tensor or array along its first axis; None for anything else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    kinds = (getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None))
    if not any(kind is not None and issubclass(type(value), kind) for kind in kinds):
        return None
    plain = _plain(value)
    return 0 if plain is None or not len(plain.shape) else int(plain.shape[0])


def _plain(value: Any) -> Any:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is not None and issubclass(type(value), numpy.ndarray):
        return numpy.ndarray.view(value, numpy.ndarray)
    from .arrays import plain_tensor

    return plain_tensor(torch, value)[0]


def _tensor_rows(value: Any, start: int, count: int) -> list[Child]:
    plain = _plain(value)
    if not len(plain.shape):
        return []
    last = min(start + count, int(plain.shape[0]))
    return [Child(str(row), plain[row], f"[{row}]") for row in range(start, last)]
