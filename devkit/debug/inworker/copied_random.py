"""Random generators that a `DataLoader` copies into its workers: each of them draws the same numbers.

torch seeds its own generator, Python's and numpy's global ones in each worker, and none that a dataset keeps itself.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

from .imports import on_import
from .insides import attributes, type_name
from .line_warnings import once
from .passing import unframed

_MARK = "__devkit_random__"
_GENERATORS = frozenset(
    {("random", "Random"), ("numpy.random._generator", "Generator"), ("numpy.random.mtrand", "RandomState")}
)


def watch() -> None:
    """Warns once of each line that starts workers which draw alike."""
    on_import("torch.utils.data.dataloader", lambda module: _watch(module._MultiProcessingDataLoaderIter))


def _watch(kind: Any) -> None:
    original = kind.__init__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def starts(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        with suppress(Exception):  # another torch's, or one of somebody's own make: its workers start all the same
            if told := _alike(loader):
                once("DataLoader", told, 1)
        try:
            original(self, loader, *arguments, **options)
        except BaseException as error:
            unframed(error)
            raise

    setattr(starts, _MARK, True)
    kind.__init__ = starts


def _alike(loader: Any) -> str:
    if loader.worker_init_fn is not None or loader.num_workers < 2:
        return ""
    kept = [(name, each) for name, each in attributes(loader.dataset) if _is_generator(each)]
    if not kept:
        return ""
    name, value = kept[0]
    return (
        f"each of the {loader.num_workers} workers of the DataLoader has the same copy of its dataset's {name} "
        f"({type_name(type(value))}), and draws the same from it, unless it seeds that anew: worker_init_fn can"
    )


def _is_generator(value: Any) -> bool:
    kind = type(value)
    return (kind.__module__, type_name(kind)) in _GENERATORS


__all__ = ["watch"]
