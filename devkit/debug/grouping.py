"""Equal answers of many ranks put together, and the ranks that differ from the rest."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from devkit.debug.naming import Who, name_members

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Group(Generic[Key]):
    """Those who gave the same answer."""

    key: Key
    members: tuple[Who, ...]

    @property
    def ranks(self) -> list[int]:
        return sorted({who.rank for who in self.members if who.rank is not None})


def group(answers: Iterable[tuple[Who, Key]]) -> tuple[Group[Key], ...]:
    """Groups of equal answers, the largest first; among equals, the one with the lowest rank.

    >>> [g.ranks for g in group((Who("W", rank, f"s{rank}"), rank == 2) for rank in range(4))]
    [[0, 1, 3], [2]]
    """
    members: dict[Key, list[Who]] = {}
    for who, key in answers:
        members.setdefault(key, []).append(who)
    groups = [Group(key, tuple(sorted(found, key=_order))) for key, found in members.items()]
    return tuple(sorted(groups, key=lambda one: (-len(one.members), _order(one.members[0]))))


def odd(groups: Iterable[Group[Key]]) -> tuple[Who, ...]:
    """Those outside of the largest group; nobody, when no group is larger than every other.

    >>> answers = [(Who("W", rank, f"s{rank}"), rank == 2) for rank in range(4)]
    >>> [who.rank for who in odd(group(answers))], odd(group(answers[1:3]))
    ([2], ())
    """
    found = sorted(groups, key=lambda one: -len(one.members))
    if len(found) < 2 or len(found[0].members) == len(found[1].members):
        return ()
    return tuple(sorted((who for one in found[1:] for who in one.members), key=_order))


def differing(some: Collection[Who], everyone: Iterable[Who]) -> str:
    """
    >>> workers = [Who("W", rank, f"s{rank}") for rank in range(4)]
    >>> differing(workers[2:3], workers), differing(workers[2:], workers)
    ('differs from the rest: rank 2', 'differ from the rest: ranks 2,3')
    """
    return f"{'differs' if len(some) == 1 else 'differ'} from the rest: {name_members(some, everyone)}"


def _order(who: Who) -> tuple[int, str, str]:
    return -1 if who.rank is None else who.rank, who.role, who.id
