"""Loops that train, on Python 3.11, which tells of no loop: those over torch's `DataLoader` are seen by its batches.

One that is resumed at the end of an epoch (torchdata's `StatefulDataLoader` is torch's, too) gives none, and rightly;
but then the loop has left out an epoch, if the program begins with the next.
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import suppress
from types import FrameType
from typing import Any

from . import no_rounds
from .imports import on_import
from .passing import unframed
from .sources import is_users
from .stacks import OURS
from .training_loops import LOADER, NAMED, Loop

_MARK = "__devkit_rounds__"
_gave: weakref.WeakSet[Any] = weakref.WeakSet()  # iterators


def watch() -> None:
    """Of each loop that trains, notes whether it had a round."""
    on_import("torch.utils.data.dataloader", lambda module: _watch(module._BaseDataLoaderIter))


def _watch(kind: Any) -> None:
    original = kind.__next__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        try:
            batch = original(self)
        except StopIteration:
            with suppress(Exception):  # an iterator of somebody's own make: the loop ends all the same
                _gave.discard(self)
                for loop, frame in _loop(sys._getframe(1)):
                    no_rounds.ended(loop, frame)
            raise
        except BaseException as error:
            unframed(error)
            raise
        if self not in _gave:
            with suppress(Exception):
                _gave.add(self)
                for loop, _ in _loop(sys._getframe(1)):
                    no_rounds.came_round(loop)
        return batch

    setattr(__next__, _MARK, True)
    kind.__next__ = __next__


def _loop(frame: FrameType | None) -> list[tuple[Loop, FrameType]]:
    """That of the program's line which asks for the batch."""
    while frame is not None and (not is_users(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(OURS)):
        frame = frame.f_back
    if frame is None:
        return []
    loops = [each for each in no_rounds.in_code(frame.f_code) if each.kind in (LOADER, NAMED)]
    return [(each, frame) for each in loops if each.node.lineno == frame.f_lineno]


__all__ = ["watch"]
