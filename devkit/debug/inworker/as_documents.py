"""Values as documents: plain data as it is, tensors as their facts, the rest by what it is and has. Runs none of it.

JSON has lists, texts and tables with texts for keys. What is none of these says so, as {"type"} with "attributes",
"items" or "text", so that no tuple looks like a list, and no lock like a text.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from .insides import as_items, as_mapping, fields, is_machinery, size_of, telling, type_name
from .redaction import REDACTED, hidden_items, hidden_pairs
from .values import BUILTINS, SMALL, Limits, by_name, facts_of, plain_repr, start, summarise


def to_json(value: Any, limits: Limits = SMALL) -> Any:
    """The value as a document: plain values as they are, tensors as their facts, the rest by type and attributes.

    >>> to_json({"step": 3, "loss": float("nan"), "token": "x"})
    {'step': 3, 'loss': 'nan', 'token': '<redacted>'}
    >>> to_json({1: "one", "two": 2})
    {'type': 'dict', 'attributes': {'1': 'one', "'two'": 2}}
    >>> to_json(("actor", 3)), to_json(range(3))
    ({'type': 'tuple', 'items': ['actor', 3]}, {'type': 'range', 'text': 'range(0, 3)'})
    >>> scope = {}; exec("x = 1", scope)
    >>> to_json(scope)
    {'__builtins__': {'type': 'dict', 'text': '<builtins>'}, 'x': 1}
    """
    try:
        return _json(value, limits, 0)
    except Exception as error:  # noqa: BLE001 - keeps a snapshot alive whatever the value is; the document tells
        return {"type": type_name(type(value)), "problem": type(error).__name__}


def _json(value: Any, limits: Limits, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if value.bit_length() < 64 else told(value, limits)
    if kind is float:
        return value if value - value == 0 else repr(value)  # JSON has no nan and no inf
    if kind is str:
        return start(value, limits.text)
    facts = facts_of(value)
    if facts is not None:
        return {facts["kind"]: {name: _finite(each) for name, each in facts.items() if name != "kind"}}
    if depth >= limits.depth:
        return told(value, limits)
    return _json_container(value, limits, depth)


def _json_container(value: Any, limits: Limits, depth: int) -> Any:
    mapping = as_mapping(value)
    if mapping is BUILTINS:
        return told(value, limits)
    if mapping is not None:
        pairs = list(islice(dict.items(mapping), limits.items))
        return keyed(pairs, _json_pairs(pairs, dict.__len__(mapping), limits, depth))
    named = fields(value)
    items = as_items(value, limits.items) if named is None else None
    if items is not None:
        return listed(value, _json_items(items, size_of(value), limits, depth))
    if by_name(value) is not None or plain_repr(value) is not None or issubclass(type(value), BaseException):
        return told(value, limits)
    if named is None and depth and is_machinery(type(value)):
        return {"type": type_name(type(value)), "text": f"<{type_name(type(value))}>"}
    named = telling(value) if named is None else named
    inner = _json_pairs(named[: limits.items], len(named), limits, depth)
    return {"type": type_name(type(value)), "attributes": inner}


def told(value: Any, limits: Limits = SMALL) -> dict[str, str]:
    """A value that is shown by a text, which is no text of the program: "<lock unlocked>", "range(0, 3)"."""
    return {"type": type_name(type(value)), "text": summarise(value, limits)}


def listed(value: Any, items: list[Any]) -> Any:
    """What a sequence or a set has, as a document: JSON has lists alone, so any other says what it is."""
    return items if type(value) is list else {"type": type_name(type(value)), "items": items}


def keyed(pairs: list[tuple[Any, Any]], inner: dict[str, Any]) -> Any:
    """A mapping as a document: JSON has texts for keys alone, so one with others is told as Python writes its keys.

    >>> keyed([("a", 1)], {"a": 1}), keyed([(1, "x")], {"1": "x"})
    ({'a': 1}, {'type': 'dict', 'attributes': {'1': 'x'}})
    """
    return inner if has_texts(pairs) else {"type": "dict", "attributes": inner}


def has_texts(pairs: list[tuple[Any, Any]]) -> bool:
    return all(issubclass(type(key), str) for key, _ in pairs)


def _json_items(items: list[Any], size: int, limits: Limits, depth: int) -> list[Any]:
    hidden = hidden_items(items, size)
    shown = [REDACTED if index in hidden else _json(each, limits, depth + 1) for index, each in enumerate(items)]
    return [*shown, f"... {size - len(items)} more"] if size > len(items) else shown


def _json_pairs(pairs: list[tuple[Any, Any]], count: int, limits: Limits, depth: int) -> dict[str, Any]:
    hidden, texts = hidden_pairs(pairs), has_texts(pairs)
    shown = {
        start(key, limits.text) if texts and type(key) is str else summarise(key, limits): REDACTED
        if index in hidden
        else _json(each, limits, depth + 1)
        for index, (key, each) in enumerate(pairs)
    }
    return shown | {"...": f"{count - len(pairs)} more"} if count > len(pairs) else shown


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    is_odd = isinstance(value, complex) or (isinstance(value, float) and value - value != 0)
    return repr(value) if is_odd else value
