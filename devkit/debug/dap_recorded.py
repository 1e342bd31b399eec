"""Variables as a crash snapshot recorded them: a tree to be looked at, and the names and paths that lead into it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devkit.debug.kept_values import ARRAYS, NOTED, is_collection, value_text
from devkit.debug.protocols import Document
from devkit.errors import UsageError

GONE = "the process is gone: only recorded variables can be seen"
WHAT_CAN = "name one, with .attributes and [items]: self.rates['lr']"


@dataclass(frozen=True)
class Child:
    """One part of a recorded value."""

    name: str  # as it is listed
    path: str  # the expression that leads to it
    value: Any


def is_object(value: Any) -> bool:
    """Whether this was an object with attributes."""
    return isinstance(value, dict) and set(value) == {"type", "attributes"} and isinstance(value["attributes"], dict)


def is_array(value: Any) -> bool:
    """Whether these are the facts of a tensor or an array."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    [(kind, facts)] = value.items()
    return kind in ARRAYS and isinstance(facts, dict) and "shape" in facts


def is_note(value: Any) -> bool:
    """Whether this only says why there is no value."""
    return isinstance(value, dict) and "type" in value and len(value) == 2 and NOTED.issuperset(value)


def is_told(value: Any) -> bool:
    """Whether this was shown by a text alone."""
    return isinstance(value, dict) and set(value) == {"type", "text"}


def children(value: Any, path: str) -> Iterator[Child]:
    """The parts of a value, with the expressions that name them.

    >>> [child.path for child in children({"type": "Model", "attributes": {"loss": 0.5}}, "self")]
    ['self.loss']
    >>> [(child.name, child.path) for child in children({"a": [1]}, "batch")]
    [("'a'", "batch['a']")]
    >>> [child.path for child in children({"type": "dict", "attributes": {"0": "a", "'b'": 1}}, "names")]
    ['names[0]', "names['b']"]
    >>> [child.path for child in children({"type": "tuple", "items": [1, 2]}, "shape")]
    ['shape[0]', 'shape[1]']
    """
    value = value["items"] if is_collection(value) else value
    if isinstance(value, list):
        yield from (Child(f"[{index}]", f"{path}[{index}]", each) for index, each in enumerate(value))
    elif is_object(value) and value["type"] == "dict":  # whose keys are no texts, or not all
        yield from (Child(name, f"{path}[{name}]", each) for name, each in value["attributes"].items())
    elif is_object(value):
        yield from (Child(name, f"{path}.{name}", each) for name, each in value["attributes"].items())
    elif is_array(value):
        [facts] = value.values()
        yield from (Child(name, f"{path}.{name}", each) for name, each in facts.items())
    elif isinstance(value, dict) and not is_note(value) and not is_told(value):
        for name, each in value.items():
            yield Child(name if name == "..." else repr(name), f"{path}[{name!r}]", each)


def type_of(value: Any) -> str:
    """
    >>> type_of({"type": "Model", "attributes": {}}), type_of([1]), type_of(None), type_of("x")
    ('Model', 'list', 'NoneType', 'str')
    >>> type_of({"type": "tuple", "items": []}), type_of({"type": "Lock", "text": "<Lock unlocked>"})
    ('tuple', 'Lock')
    """
    if is_object(value) or is_note(value) or is_collection(value) or is_told(value):
        return str(value["type"])
    if is_array(value):
        return str(next(iter(value)))
    return type(value).__name__


def presented(child: Child, reference: int) -> Document:
    """A variable as the protocol shows it."""
    return {
        "name": child.name,
        "value": value_text(child.value),
        "type": type_of(child.value),
        "evaluateName": child.path,
        "variablesReference": reference,
    }


def look_up(expression: str, names: Mapping[str, Any]) -> Any:
    """What was recorded under a name or a path. Raises UsageError, which says that the process is gone.

    >>> look_up("self.rates['lr']", {"self": {"type": "T", "attributes": {"rates": {"lr": 0.1}}}})
    0.1
    >>> look_up("names[0]", {"names": {"type": "dict", "attributes": {"0": "a"}}})
    'a'
    >>> look_up("len(x)", {"x": [1]})
    Traceback (most recent call last):
    ...
    devkit.errors.UsageError: the process is gone: only recorded variables can be seen
    """
    try:
        node: ast.expr = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{GONE}; {expression.strip()!r} is no expression", hint=WHAT_CAN) from None
    try:
        return _value(node, names)
    except RecursionError:
        raise UsageError(f"{GONE}, and this one is too long", hint=WHAT_CAN) from None


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise UsageError(f"{GONE}, and none is called {node.id}", hint="the variables view lists them")
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return _part(_value(node.value, names), f".{node.attr}", ast.unparse(node.value))
    if isinstance(node, ast.Subscript) and isinstance(key := _constant(node.slice), int | str):
        return _part(_value(node.value, names), f"[{key!r}]", ast.unparse(node.value))
    raise UsageError(GONE, hint=WHAT_CAN)


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _part(value: Any, step: str, of: str) -> Any:
    value = value["items"] if is_collection(value) else value
    if isinstance(value, list) and step.startswith("[-"):
        step = f"[{len(value) + int(step[1:-1])}]"
    for child in children(value, ""):
        # The keys of a mapping were recorded as texts.
        if child.path == step or (isinstance(value, dict) and child.path == f"[{step[1:-1]!r}]"):
            return child.value
    raise UsageError(
        f"{GONE}, and {step} of {of} is not among them", hint=f"{of} by itself shows what was recorded of it"
    )
