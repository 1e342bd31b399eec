"""What is in a value, read without running the program's own code: by the methods of the built-in types below."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from types import MemberDescriptorType
from typing import Any

_ENVIRON = type(os.environ)
_PLAIN = frozenset({int, str, bytes, float, bool, complex, type(None)})
_MOST_ORDERED = 100_000  # keys that are looked at, one by one
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, deque)


def as_mapping(value: Any) -> dict[Any, Any] | None:
    """A dictionary, or what is one below; os.environ too."""
    kind = type(value)
    if kind is _ENVIRON:
        return dict(value)
    return value if issubclass(kind, dict) else None


def first_pairs(mapping: dict[Any, Any], most: int) -> list[tuple[Any, Any]] | None:
    """Its first items, in its own order; None where that is not known without running the program's code.

    An `OrderedDict` has moved items within an order of its own, which is walked by the hashes of the keys.

    >>> row = OrderedDict(a=1, b=2)
    >>> row.move_to_end("a"); first_pairs(row, 1), first_pairs({"a": 1}, 2)
    ([('b', 2)], [('a', 1)])
    """
    if not isinstance(mapping, OrderedDict):
        return list(islice(dict.items(mapping), most))
    if dict.__len__(mapping) > _MOST_ORDERED:
        return None
    try:
        if not all(map(_is_plain, dict.keys(mapping))):
            return None
        return list(islice(OrderedDict.items(mapping), most))
    except (RuntimeError, KeyError):  # changed by another thread meanwhile
        return None


def _is_plain(key: Any) -> bool:
    """Whether Python's own code has its hash, and compares it."""
    kind: Any = type(key)
    if kind is tuple:
        return all(map(_is_plain, key))
    return kind in _PLAIN or (kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__)


def as_items(value: Any, most: int = 100) -> list[Any] | None:
    """The first items of a list, tuple, set or deque, read by the built-in type's own methods."""
    for base in _SEQUENCES:
        if issubclass(type(value), base):
            items: list[Any] = list(islice(base.__iter__(value), most))
            return _in_order(items) if base in (set, frozenset) and len(items) < most else items
    return None


def _in_order(items: list[Any]) -> list[Any]:
    """A set's items as every rank shows them: their order in memory depends on the process."""
    if all(type(each) in (int, float, str, bytes) for each in items):
        return sorted(items, key=lambda each: (type(each).__name__, each))
    return items


def size_of(value: Any) -> int:
    for base in _SEQUENCES:
        if issubclass(type(value), base):
            return int(base.__len__(value))
    return 0


def fields(value: Any) -> list[tuple[str, Any]] | None:
    """The fields of a named tuple, or of what C gives as one; None for anything else.

    >>> import time
    >>> (fields(time.gmtime(0)) or [])[0], fields((1, 2))
    (('tm_year', 1970), None)
    """
    kind = type(value)
    if kind is tuple or not issubclass(kind, tuple):
        return None
    names = getattr(kind, "_fields" if not hasattr(kind, "n_sequence_fields") else "__match_args__", None)
    if not isinstance(names, tuple) or len(names) != tuple.__len__(value):
        return None
    return [(str(name), each) for name, each in zip(names, tuple.__iter__(value), strict=True)]


def attributes(value: Any) -> list[tuple[str, Any]]:
    """What an object keeps in itself: its dictionary and slots. Properties are code, and are not run."""
    found: list[tuple[str, Any]] = []
    try:
        own = object.__getattribute__(value, "__dict__")
    except Exception:  # noqa: BLE001 - an object without a dictionary is no news
        own = None
    if isinstance(own, dict):
        found += [(str(name), each) for name, each in list(dict.items(own))]
        for group in ("_parameters", "_buffers", "_modules"):  # of a torch module, where it keeps them
            inner = own.get(group) if "_modules" in own else None
            found += list(dict.items(inner)) if isinstance(inner, dict) else []
    for kind in type(value).__mro__:
        for name, slot in kind.__dict__.items():
            if type(slot) is MemberDescriptorType and kind.__module__ != "builtins":
                try:
                    found.append((name, slot.__get__(value)))
                except AttributeError:
                    continue  # a slot that was never set
    return found


_HOLDERS = frozenset({"types", "argparse", "configparser", "collections"})  # of what a program puts into them


def is_machinery(kind: type) -> bool:
    """Whether it is a class of Python's own library that holds nothing of a program's: a pool, a thread, a process.

    >>> import threading, argparse
    >>> is_machinery(threading.Thread), is_machinery(argparse.Namespace), is_machinery(list)
    (True, False, False)
    """
    module = getattr(kind, "__module__", None)
    root = module.partition(".")[0] if isinstance(module, str) else ""
    return root in sys.stdlib_module_names and root not in _HOLDERS and root != "builtins"


def telling(value: Any) -> list[tuple[str, Any]]:
    """Of what an object keeps, what a person asks for: of torch's modules and optimizers not their hooks and states.

    >>> class Net: pass
    >>> net = Net()
    >>> net.__dict__.update(training=True, _modules={"up": 1}, _hooks={})
    >>> telling(net)
    [('up', 1), ('training', True)]
    """
    found = attributes(value)
    names = {name for name, _ in found}
    if "_modules" in names:
        inside = list(_inside_module(value))
        own = {name for name, _ in inside}
        return inside + [(name, each) for name, each in found if not name.startswith("_") and name not in own]
    if names >= {"param_groups", "state", "defaults"}:
        groups = dict(found)["param_groups"]
        first = groups[0] if type(groups) is list and groups and type(groups[0]) is dict else {}
        return [(name, each) for name, each in first.items() if name != "params"]
    return found


def _inside_module(value: Any) -> Iterator[tuple[str, Any]]:
    """What a torch module is made of, before what it is set to."""
    own = object.__getattribute__(value, "__dict__")
    for group in ("_modules", "_parameters", "_buffers"):
        inner = own.get(group)
        yield from dict.items(inner) if isinstance(inner, dict) else ()


def type_name(kind: type) -> str:
    return str(type.__dict__["__qualname__"].__get__(kind))
