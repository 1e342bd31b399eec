"""Which code objects are ours, what they were made from, and which breakpoints they hold."""

from __future__ import annotations

import weakref
from functools import partial
from types import CodeType
from typing import NamedTuple

from .instrument import Pair


class _Entry(NamedTuple):
    marked: weakref.ref[CodeType]
    plain: CodeType
    ids: frozenset[str]


class Ledger:
    """Never locked: each of its steps is one operation on a dict. Entries go when their code object goes."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def enter(self, pair: Pair, plain: CodeType | None = None) -> None:
        """`plain`: the code object of the program that the pair's marked one stands for."""
        key = id(pair.marked)
        if pair.marked is pair.plain or (plain is None and self._entry(pair.marked) is not None):
            return
        # Called where the program lets go of the code: by no function of ours, which its own tracer would see.
        gone = weakref.ref(pair.marked, partial(self._entries.pop, key))
        self._entries[key] = _Entry(gone, plain or pair.plain, pair.ids)

    def plain(self, code: CodeType) -> CodeType:
        """The program's own code object."""
        entry = self._entry(code)
        return code if entry is None else entry.plain

    def ids(self, code: CodeType) -> frozenset[str]:
        """The breakpoints that stand in this code object or in one that it holds."""
        entry = self._entry(code)
        return frozenset() if entry is None else entry.ids

    def _entry(self, code: CodeType) -> _Entry | None:
        entry = self._entries.get(id(code))
        return entry if entry is not None and entry.marked() is code else None
