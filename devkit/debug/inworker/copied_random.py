"""Random generators that a `DataLoader` copies into its workers: each of them draws the same numbers.

torch seeds its own generator, Python's and numpy's global ones in each worker, and none that a dataset keeps itself.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from .imports import on_import
from .insides import attributes, type_name
from .stacks import users_lines
from .words import warn

_MARK = "__devkit_random__"
_GENERATORS = frozenset(
    {("random", "Random"), ("numpy.random._generator", "Generator"), ("numpy.random.mtrand", "RandomState")}
)
_told: set[tuple[str, int]] = set()


def watch() -> None:
    """Warns once of each line that starts workers which draw alike."""
    on_import("torch.utils.data.dataloader", lambda module: _watch(module._MultiProcessingDataLoaderIter))


def _watch(kind: Any) -> None:
    original = kind.__init__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def starts(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        try:
            _look(loader)
        except Exception:  # noqa: BLE001 - another torch's, or one of somebody's own make: its workers start all the same
            _told.clear()
        original(self, loader, *arguments, **options)

    setattr(starts, _MARK, True)
    kind.__init__ = starts


def _look(loader: Any) -> None:
    if loader.worker_init_fn is not None or loader.num_workers < 2:
        return
    kept = [(name, each) for name, each in attributes(loader.dataset) if _is_generator(each)]
    site = next(users_lines(sys._getframe(2)), None) if kept else None
    if site is None or (site["file"], site["line"]) in _told:
        return
    _told.add((site["file"], site["line"]))
    name, value = kept[0]
    text = f"each of the {loader.num_workers} workers of the DataLoader has the same copy of its dataset's {name} "
    text += f"({type_name(type(value))}), and draws the same from it, in each epoch anew; seed it in worker_init_fn"
    warn(site["file"], site["line"], text)


def _is_generator(value: Any) -> bool:
    kind = type(value)
    return (kind.__module__, type_name(kind)) in _GENERATORS


__all__ = ["watch"]
