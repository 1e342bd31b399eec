"""Errors that end a program that has no Ray: one that starts none, or that has not come to `ray.init` yet."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import agent
from .words import say

SUFFIX = ".alone"  # of the folder beside the announcement


def watch(folder: Path) -> None:
    """Keeps a snapshot of the exception that ends this process in that folder, unless an agent does it."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if agent.current() is None and not isinstance(error, KeyboardInterrupt):
            try:
                _keep(error, folder)
            except Exception as problem:  # noqa: BLE001 - the program's own error is what is to be seen
                say(f"no snapshot could be kept: {problem!r}")
        previous(kind, error, trace)

    sys.excepthook = hook


def _keep(error: BaseException, folder: Path) -> None:
    from . import crashes, reserve, snapshot
    from .identity import DRIVER, identify

    with reserve.lent() as free:
        snapshot.store(crashes.taken(error, DRIVER, free, replace(identify(), role=DRIVER)), folder)


__all__ = ["SUFFIX", "watch"]
