"""A `DataLoader` that gives no batch: fewer rows than a batch has, with `drop_last`; or no rows at all.

The loop over it is not entered, nothing is raised, and a run that trains in it ends at once, and well.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

from .imports import on_import
from .line_warnings import once
from .passing import unframed

_MARK = "__devkit_batches__"


def watch() -> None:
    """Warns once of each line that goes through one."""
    on_import("torch.utils.data.dataloader", lambda module: _watch(module._BaseDataLoaderIter))


def _watch(kind: Any) -> None:
    original = kind.__next__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def gives(self: Any) -> Any:
        try:
            return original(self)
        except StopIteration:
            with suppress(Exception):  # a sampler of somebody's own make: the loop ends all the same
                if self._num_yielded == 0 and (why := _why(self)):
                    once("no batch", f"the DataLoader has given no batch: {why}", 1)
            raise
        except BaseException as error:
            unframed(error)
            raise

    setattr(gives, _MARK, True)
    kind.__next__ = gives


def _why(iterator: Any) -> str:
    """Only what is sure: a sampler that begins at an epoch's end gives none either, and rightly."""
    batches = iterator._index_sampler
    if not hasattr(iterator._dataset, "__getitem__"):
        return ""
    if len(iterator._dataset) == 0:
        return "its dataset has no rows"
    size, rows = getattr(batches, "batch_size", None), len(batches.sampler)
    if getattr(batches, "drop_last", False) is True and isinstance(size, int) and 0 < rows < size:
        return f"it has {rows} row{'s' * (rows > 1)}, a batch has {size}, and drop_last=True leaves out what is less"
    return ""


__all__ = ["watch"]
