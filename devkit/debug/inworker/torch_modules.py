"""The modules and optimizers that are alive in this process, and which parameters they have.

A look takes some tenths of a second in a large program: once, where something is wrong for sure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import finding


class Orphans(NamedTuple):
    """Parameters with a gradient that are in no optimizer, of one outermost module."""

    module: str  # its class
    named: dict[str, Any]  # its parameters, by their names
    siblings: frozenset[int]  # ids of all the parameters of the module


class Alive(NamedTuple):
    """What a look has found."""

    owned: frozenset[int]  # ids of the parameters of all modules
    orphans: list[Orphans]


def look() -> Alive:
    """No code of the program's is run."""
    torch: Any = sys.modules["torch"]
    modules, optimizers = _instances(torch.nn.Module), _instances(torch.optim.Optimizer)
    taken = {id(each) for one in optimizers for group in _groups(one) for each in group["params"]}
    inner = {id(each) for one in modules for each in _part(one, "_modules").values()}
    roots = [_orphans(each, taken) for each in modules if id(each) not in inner]
    owned = {id(each) for one in modules for each in _part(one, "_parameters").values() if each is not None}
    return Alive(frozenset(owned), [each for each in roots if each.named])


def _instances(kind: type) -> list[Any]:
    return finding.instances(*_derived(kind)) if finding.sees_all() else []


def _derived(kind: type) -> set[type]:
    """It, and all that are derived from it."""
    return {kind}.union(*map(_derived, type.__subclasses__(kind)))


def _groups(optimizer: Any) -> list[Any]:
    groups = vars(optimizer).get("param_groups")
    return groups if isinstance(groups, list) else []


def _part(module: Any, name: str) -> dict[str, Any]:
    found = vars(module).get(name)
    return found if isinstance(found, dict) else {}


def _orphans(module: Any, taken: set[int]) -> Orphans:
    named = dict(_named(module, "", set()))
    orphans = {name: each for name, each in named.items() if id(each) not in taken and each.grad is not None}
    return Orphans(type(module).__name__, orphans, frozenset(map(id, named.values())))


def _named(module: Any, way: str, known: set[int]) -> Iterator[tuple[str, Any]]:
    if id(module) in known:
        return
    known.add(id(module))
    for name, each in _part(module, "_parameters").items():
        if each is not None:
            yield f"{way}{name}", each
    for name, each in _part(module, "_modules").items():
        if each is not None:
            yield from _named(each, f"{way}{name}.", known)


__all__ = ["Alive", "Orphans", "look"]
