"""What an actor, or a function that is under way, keeps.

Plain data as it is; of containers the first items, and how many there are; arrays by their shape. Nothing of the
program is run, and nothing is fetched from a device: a process that hangs must not be touched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType, FunctionType
from typing import Any

from . import asked_of, modules, whole
from .arrays import array_facts, facts_text
from .expressions import short, told
from .insides import as_items, as_mapping, attributes, fields, first_pairs, size_of, type_name
from .sources import is_users

MOST = 12  # attributes of an actor
LOCALS = 6  # variables of a function
ITEMS = 3  # of a container
FIELDS = 4  # of an object
DEPTH = 3
SMALL = 1 << 16  # elements of an array
LENGTH = 200  # characters of one value
MODELS = 4  # of an actor, whose parameters are passed on

Document = dict[str, Any]


def of_actor() -> Document:
    """{name: value} of the attributes of the actor that lives here; empty where there is none."""
    own = _actors()
    return _shown(attributes(own[0]), MOST) if len(own) == 1 else {}


def models() -> Document:
    """{name: {"class", "parameters"}} of the torch modules among them."""
    own = _actors()
    try:
        return modules.of_attributes(own[0], MODELS) if len(own) == 1 else {}
    except Exception:  # noqa: BLE001 - changed by another thread meanwhile
        return {}


def growing() -> Document:
    """What its methods read, and which others add to that, as `asked_of.growing` has it."""
    own = _actors()
    return asked_of.growing(own[0]) if len(own) == 1 else {}


def _actors() -> list[Any]:
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    try:
        return list(worker.actors.values()) if worker is not None else []
    except Exception:  # noqa: BLE001 - another Ray's: then nothing is known of it
        return []


def of_function(frame: FrameType, told_already: Iterable[str] = ()) -> Document:
    """{name: value} of the variables of a function that is under way, the last ones first."""
    if frame.f_code.co_name == "<module>":
        return {}
    known = set(told_already)
    found = [(name, value) for name, value in frame.f_locals.items() if name not in known and name != "self"]
    return _shown(reversed(found), LOCALS)


def _shown(pairs: Iterable[tuple[str, Any]], most: int) -> Document:
    """Without what says nothing: modules, functions, objects of which only the class could be named."""
    from .redaction import REDACTED, redact, scrub

    found: Document = {}
    for name, value in pairs:
        text = _text(value)
        if len(found) < most and text is not None and not name.startswith(("__", ".")):
            found[name] = REDACTED if redact(name, value) is not value else short(scrub(text), LENGTH)
    return found


def _text(value: Any) -> str | None:
    try:
        return brief(value)
    except Exception:  # noqa: BLE001 - changed by another thread meanwhile, or of somebody's own make
        return None


def brief(value: Any, depth: int = DEPTH) -> str | None:
    """
    >>> brief(list(range(100))), brief([1, 2, 3, 4]), brief({"need": [1036, {"a": 1}]})
    ('[0, 1, 2, ... 97 more]', '[1, 2, 3, 4]', "{'need': [1036, {'a': 1}]}")
    >>> brief(sys), brief(object()), brief([object()])
    (None, None, '[<object>]')
    """
    if (module := modules.text(value)) is not None:
        return module
    whole = told(value)
    counted = whole is not None and whole.startswith(f"{type_name(type(value))} of ")
    inner = _inner(value, depth) if depth and (whole is None or counted) else None
    return whole if inner is None else inner


def content(value: Any) -> str:
    """By which it is told from another of its kind: all of plain data, else as `brief`; of small arrays also by what is
    in them.
    """
    try:
        if (known := whole.text(value)) is not None:
            return known
        found = array_facts(value) if _is_small_array(value) else None
        return facts_text(found) if found is not None else brief(value) or type_name(type(value))
    except Exception:  # noqa: BLE001 - as above
        return type_name(type(value))


def _is_small_array(value: Any) -> bool:
    """In this process's own memory: a device might have to be waited for."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and type(value) is torch.Tensor:
        return value.device.type == "cpu" and int(value.numel()) <= SMALL
    return numpy is not None and type(value) is numpy.ndarray and int(value.size) <= SMALL


def _inner(value: Any, depth: int) -> str | None:
    """Of a container, or of an object of one of the program's own classes; None of anything else."""
    from .redaction import REDACTED, hidden_items

    if (named := fields(value)) is not None or (named := _of_programs(value)) is not None:
        parts, size = [f"{name}={each}" for name, each in _pairs(named, FIELDS, depth)], len(named)
        return f"{type_name(type(value))}({_joined(parts, size)})"
    mapping = as_mapping(value)
    if mapping is not None:
        first = first_pairs(mapping, ITEMS)
        if first is None:
            return f"{type_name(type(value))} of {dict.__len__(mapping)}"
        parts = [f"{_part(key, 1)}: {each}" for key, each in _pairs(first, ITEMS, depth)]
        return f"{{{_joined(parts, dict.__len__(mapping))}}}"
    items = as_items(value, ITEMS)
    if items is None:
        return None
    hidden = hidden_items(items, size_of(value))
    parts = [REDACTED if at in hidden else _part(each, depth - 1) for at, each in enumerate(items)]
    text = _joined(parts, size_of(value))
    if isinstance(value, tuple):
        return f"({text}{',' * (len(items) == 1)})"
    return f"{{{text}}}" if isinstance(value, set | frozenset) else f"[{text}]"


def _of_programs(value: Any) -> list[tuple[str, Any]] | None:
    kind = type(value)
    return attributes(value) if kind is not type and _is_programs(kind) else None


def _is_programs(kind: type) -> bool:
    """By the code of its methods: a class of the driver's script comes to a worker without its module."""
    methods = (each.__code__.co_filename for each in kind.__dict__.values() if type(each) is FunctionType)
    if kind.__module__ == "__main__" or any(is_users(each) for each in methods if not each.startswith("<")):
        return True
    file = getattr(sys.modules.get(str(kind.__module__)), "__file__", None)
    return isinstance(file, str) and is_users(file)


def _pairs(pairs: list[tuple[Any, Any]], most: int, depth: int) -> Iterator[tuple[Any, str]]:
    from .redaction import REDACTED, hidden_pairs

    hidden = hidden_pairs(pairs)
    for number, (name, value) in enumerate(pairs[:most]):
        yield name, REDACTED if number in hidden else _part(value, depth - 1)


def _part(value: Any, depth: int) -> str:
    return brief(value, depth) or f"<{type_name(type(value))}>"


def _joined(parts: list[str], size: int) -> str:
    return ", ".join([*parts, *([f"... {size - len(parts)} more"] if size > len(parts) else [])])


__all__ = ["brief", "content", "models", "of_actor", "of_function"]
