"""Which globals of the program, or attributes of its classes, a function changes in place: by its bytecode.

It is there wherever the function is; its source may not be.
"""

from __future__ import annotations

import dis
import inspect
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from .changed import CHANGING
from .sources import is_users
from .stacks import OURS

MOST_FUNCTIONS = 60  # that are looked at for one
ITEMS = 16  # of a container whose entries are looked at
CONTAINERS = (list, dict, set, deque, Counter, defaultdict, OrderedDict)
NUMBERS = (int, float)
_LOOKS = ("LOAD_ATTR", "LOAD_METHOD")


class Changed(NamedTuple):
    """A global that a function changes."""

    module: str
    owner: str  # the class whose attribute it is; empty: none
    name: str
    names: dict[str, Any]  # the globals of that function
    who: str
    at: tuple[str, int]

    @property
    def key(self) -> str:
        return ".".join(filter(None, (self.module, self.owner, self.name)))

    @property
    def value(self) -> Any:
        """As it is now."""
        return value_in(self.names, self.owner, self.name)


def value_in(names: Any, owner: str, name: str) -> Any:
    """Of a global among these, or of an attribute of its class; None: it is not there."""
    found = names.get(owner or name)
    if not owner:
        return found
    return vars(found).get(name) if isinstance(found, type) else None


def fingerprint(value: Any) -> float | None:
    """A number itself; of a container how many entries are neither 0 nor empty; None of anything else.

    >>> fingerprint([]), fingerprint({"a": 0, "b": []}), fingerprint({"a": 2, "b": 0}), fingerprint(3), fingerprint("a")
    (0.0, 0.0, 1.0, 3.0, None)
    """
    if type(value) in NUMBERS:
        return float(value)
    if type(value) not in CONTAINERS:
        return None
    if len(value) > ITEMS:
        return float(len(value))
    items = list(value.values() if isinstance(value, dict) else value)
    return float(sum(type(each) not in (*NUMBERS, *CONTAINERS) or bool(each) for each in items))


def changes_of(functions: Iterable[Any]) -> tuple[list[Changed], tuple[str, ...]]:
    """Which globals these functions change, also by those that they call; and the names of all of them.

    Numbers count where they are added to: what is merely assigned, such as a rank, is each process's own.
    """
    waiting: list[Any] = list(functions)
    seen: set[int] = set()
    found: dict[str, Changed] = {}
    used = []
    while waiting and len(seen) < MOST_FUNCTIONS:
        each = waiting.pop()
        each = inspect.unwrap(getattr(each, "__func__", each))
        if not isinstance(each, FunctionType) or id(each) in seen or not _is_programs(each.__code__):
            continue
        seen.add(id(each))
        used.append(name_of(each.__code__))
        for code in _codes(each.__code__):
            for one in _changes(code, each.__globals__):
                found.setdefault(one.key, one)
        waiting += _called(each)
    return list(found.values()), tuple(used)


def name_of(code: CodeType) -> str:
    """`Counter.count`, wherever it is defined."""
    return code.co_qualname.rpartition("<locals>.")[2]


def _is_programs(code: CodeType) -> bool:
    return is_users(code.co_filename) and not code.co_filename.startswith(OURS)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _called(function: FunctionType) -> Iterator[Any]:
    """The functions that a function names, and the methods of the classes that it names."""
    for code in _codes(function.__code__):
        for name in code.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, FunctionType):
                yield value
            elif isinstance(value, type):
                yield from list(vars(value).values())


def _changes(code: CodeType, names: dict[str, Any]) -> Iterator[Changed]:
    module = str(names.get("__name__", ""))
    every = list(dis.get_instructions(code))
    for at, each in enumerate(every):
        if each.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
            continue
        owner, name, line = "", str(each.argval), each.positions.lineno if each.positions else None
        value, rest = names.get(name), every[at + 1 :]
        if isinstance(value, type) and rest:
            is_copied = rest[0].opname == "COPY"  # as where an attribute is added to
            rest = rest[is_copied:]
            owner, name = name, str(rest[0].argval) if rest and rest[0].opname in _LOOKS else ""
            value, rest = vars(value).get(name), rest[1:]
        if line and name and _is_changed(value, name, rest):
            yield Changed(module, owner, name, names, name_of(code), (code.co_filename, line))


def _is_changed(value: Any, name: str, rest: Sequence[dis.Instruction]) -> bool:
    if type(value) in NUMBERS:
        return _is_added_to(name, rest)
    return type(value) in CONTAINERS and (_is_added_to(name, rest) or _is_changed_inside(rest))


def _is_added_to(name: str, rest: Sequence[dis.Instruction]) -> bool:
    """Whether what follows a load is `+= ...`, or another of that kind."""
    depth = 1
    for at, each in enumerate(rest):
        if depth == 2 and each.opname == "BINARY_OP" and each.argrepr.endswith("="):
            stores = [one for one in rest[at + 1 : at + 3] if one.opname != "SWAP"]
            return bool(stores) and stores[0].opname in ("STORE_GLOBAL", "STORE_ATTR") and stores[0].argval == name
        depth += dis.stack_effect(each.opcode, each.arg)
        if depth < 1 or each.opname.startswith("STORE"):
            return False
    return False


def _is_changed_inside(rest: Sequence[dis.Instruction]) -> bool:
    """Whether what follows a load stores an item into it, or calls a method by which it, or an item of it, changes."""
    depth, copies = 1, 0
    for each in rest:
        if depth == 1 and each.opname in _LOOKS:
            return each.argval in CHANGING
        if each.opname == "STORE_SUBSCR":
            return depth == 2 or (depth == 3 and copies == 2)  # the second one: `+=` of an item
        if depth == 2 and each.opname == "COPY":
            copies = 1
        elif copies == 1 and each.opname == "COPY":
            copies = 2
        depth += dis.stack_effect(each.opcode, each.arg)
        if depth < 1 or each.opname.startswith(("STORE", "RETURN", "POP_JUMP", "FOR_ITER")):
            return False
    return False


__all__ = ["CONTAINERS", "NUMBERS", "Changed", "changes_of", "fingerprint", "name_of", "value_in"]
