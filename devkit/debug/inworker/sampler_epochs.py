"""Epochs that all have the order of the first: a `DistributedSampler` shuffles by the epoch that it is set to.

for epoch in range(3):
    for batch in loader:  # without loader.sampler.set_epoch(epoch)
        ...
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from .imports import on_import
from .line_warnings import once
from .optimizer_steps import passes
from .passing import unframed
from .stacks import users_lines

DEPTH = 4  # of the program's lines that a loop is known by
SAMPLERS = 3  # of batches, of a sampler
_MARK = "__devkit_epochs__"


class _Epoch(NamedTuple):
    """One that has been gone through to its end, and has moved something."""

    number: int
    seed: int
    rows: int
    lines: tuple[tuple[str, int], ...]


_began: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # by iterator that goes: passes before
_last: weakref.WeakKeyDictionary[Any, _Epoch] = weakref.WeakKeyDictionary()  # by sampler
_set: weakref.WeakSet[Any] = weakref.WeakSet()  # samplers that were given an epoch


def watch() -> None:
    """Warns of a loop that trains on a second epoch, which is as the first."""
    on_import("torch.utils.data.distributed", lambda module: _watch_sampler(module.DistributedSampler))
    on_import("torch.utils.data.dataloader", lambda module: _watch_iterator(module._BaseDataLoaderIter))


def _watch_sampler(kind: Any) -> None:
    original = kind.set_epoch
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def set_epoch(self: Any, epoch: int) -> None:
        with suppress(Exception):  # one that can't be a key
            _set.add(self)
        original(self, epoch)

    setattr(set_epoch, _MARK, True)
    kind.set_epoch = set_epoch


def _watch_iterator(kind: Any) -> None:
    original = kind.__next__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        if not getattr(self, "_num_yielded", 1):
            with suppress(Exception):
                _began[self] = passes.calls
        try:
            return original(self)
        except StopIteration:
            with suppress(Exception):  # another torch's, or a sampler of somebody's own make
                _ended(self)
            raise
        except BaseException as error:
            unframed(error)
            raise

    setattr(__next__, _MARK, True)
    kind.__next__ = __next__


def _ended(iterator: Any) -> None:
    before = _began.pop(iterator, None)  # one that is asked again at its end has begun nothing
    sampler = _sampler(iterator._index_sampler)
    if before is None or sampler is None or iterator._num_yielded < 2 or passes.calls == before:
        return
    lines = tuple((str(each["file"]), int(each["line"])) for each in islice(users_lines(sys._getframe(1)), DEPTH))
    epoch = _Epoch(sampler.epoch, sampler.seed, len(sampler.dataset), lines)
    if _last.get(sampler) == epoch:
        text = "set_epoch was not called on its DistributedSampler: this epoch had the same order as the one before"
        once("set_epoch", text, 1)
    _last[sampler] = epoch


def _sampler(value: Any) -> Any:
    """The one that shuffles, if it is torch's and nobody has set it."""
    data: Any = sys.modules["torch.utils.data"]
    for _ in range(SAMPLERS):
        if type(value) is not data.BatchSampler:
            break
        value = value.sampler
    kind = data.distributed.DistributedSampler
    if not isinstance(value, kind) or not value.shuffle or value in _set:
        return None
    is_torchs = type(value).__iter__ is kind.__iter__ and type(value).set_epoch is kind.set_epoch
    return value if is_torchs else None


__all__ = ["watch"]
