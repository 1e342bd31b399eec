"""The variables of a snapshot, as Python would write them. Pure."""

from __future__ import annotations

import re
from typing import Any

from devkit.debug.inworker.arrays import facts_text

ARRAYS = ("tensor", "array")
COUNTED = 6  # items of a list: nobody counts more
REST = "..."
_REST = re.compile(r"\.\.\. \d+ more")
NOTED = frozenset({"type", "cut", "problem"})


def value_text(value: Any) -> str:
    """A variable of a snapshot in one line, as Python would write it.

    >>> value_text({"lr": 1e-05, "names": ["a"], "done": True, "loss": None})
    "{'lr': 1e-05, 'names': ['a'], 'done': True, 'loss': None}"
    >>> value_text({"type": "Config", "attributes": {"lr": 0.1}}), value_text({"type": "Batch", "cut": "9000 bytes"})
    ('Config(lr=0.1)', '<Batch, left out: 9000 bytes>')
    >>> value_text({"type": "dict", "attributes": {"0": "a", "1": "b"}})
    "{0: 'a', 1: 'b'}"
    >>> value_text({"type": "tuple", "items": ["a"]}), value_text({"type": "Lock", "text": "<Lock unlocked>"})
    ("('a',)", '<Lock unlocked>')
    >>> value_text([0.0] * 16)
    '[0.0] * 16'
    >>> value_text(["a", "... 14 more"]), value_text({"a": 1, "...": "3 more"}), value_text(["... 14 more"])
    ("['a', ... 14 more]", "{'a': 1, ... 3 more}", "['... 14 more']")
    """
    if isinstance(value, list):
        return _listed(value)
    if not isinstance(value, dict):
        return repr(value)
    if len(value) == 1 and (kind := next(iter(value))) in ARRAYS and _is_array(value[kind]):
        return facts_text({"kind": kind, **value[kind]})
    if set(value) == {"type", "attributes"} and isinstance(value["attributes"], dict):
        pairs = value["attributes"].items()
        if value["type"] == "dict":  # with keys that are no texts
            return "{" + ", ".join(_pair(f"{name}: ", each) for name, each in pairs) + "}"
        inside = ", ".join(_pair(f"{name}=", each) for name, each in pairs)
        return f"{value['type']}({inside})"
    if set(value) == {"type", "text"}:
        return str(value["text"])
    if is_collection(value):
        return _collected(value["type"], value["items"])
    if "type" in value and len(value) == 2 and NOTED.issuperset(value):
        why = value.get("cut") or value.get("problem")
        return f"<{value['type'] or 'a value'}, left out: {why}>"
    return "{" + ", ".join(_pair(f"{name!r}: ", each) for name, each in value.items()) + "}"


def _pair(name: str, value: Any) -> str:
    """What a longer dictionary or object ends with is no pair of it."""
    is_rest = name.strip("'=: ") == REST and isinstance(value, str) and _REST.fullmatch(f"{REST} {value}")
    return f"{REST} {value}" if is_rest else f"{name}{value_text(value)}"


def _items(items: list[Any]) -> str:
    """What a longer list ends with is no item of it."""
    last = items[-1] if len(items) > 1 else None
    rest = [last] if isinstance(last, str) and _REST.fullmatch(last) else []
    return ", ".join([*map(value_text, items[: len(items) - len(rest)]), *rest])


def is_collection(value: Any) -> bool:
    """Whether this was a sequence or a set, other than a list."""
    return isinstance(value, dict) and set(value) == {"type", "items"} and isinstance(value["items"], list)


def _listed(items: list[Any]) -> str:
    counted = len(items) > COUNTED or any(map(_is_one_array, items))
    if len(items) > COUNTED and all(each == items[0] for each in items):
        return f"[{value_text(items[0])}] * {len(items)}"
    many = f"{len(items)} items: " if counted and "more" not in str(items[-1]) else ""
    return f"{many}[{_items(items)}]"


def _collected(kind: str, items: list[Any]) -> str:
    """
    >>> _collected("set", [1, 2]), _collected("set", []), _collected("deque", [1]), _collected("tuple", [])
    ('{1, 2}', 'set()', 'deque([1])', '()')
    """
    inside = _items(items)
    if kind == "tuple":
        return f"({inside},)" if len(items) == 1 else f"({inside})"
    if kind == "set" and items:
        return f"{{{inside}}}"
    return f"{kind}({_listed(items) if items else ''})"


def _is_one_array(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and any(_is_array(facts) for facts in value.values())


def _is_array(facts: Any) -> bool:
    return isinstance(facts, dict) and "dtype" in facts and "shape" in facts
