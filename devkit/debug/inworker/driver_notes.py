"""What devkit says at the end of a driver, kept beside Ray's logs: the driver's own streams are nobody's file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from . import (
    cut_off,
    hub_place,
    lost_arguments,
    lost_changes,
    no_rounds,
    private,
    sent_globals,
    unseen_variables,
    untaken,
)
from .words import given, say, warn


def tell_changed() -> None:
    """Warns of globals and of environment variables that were changed in vain."""
    for each in sent_globals.changed():
        warn(*each)
    unseen_variables.tell()
    lost_changes.tell()
    lost_arguments.tell()
    no_rounds.tell()
    if not _is_failing():
        untaken.tell()


def tell_cut_off() -> list[str]:
    """The calls that the driver's end cuts off, in at most a line. An end by an error needs no such word."""
    if _is_failing():
        return []
    try:
        line = cut_off.said(cut_off.found())
    except Exception as error:  # noqa: BLE001 - a GCS that is gone, or another Ray's: the program ends all the same
        say(f"which calls are cut off by the driver's end is not known: {error!r}")
        return []
    if line:
        say(line)
    return [f"devkit: {line}"] if line else []


def _is_failing() -> bool:
    return getattr(sys, "last_value", None) is not None or sys.exc_info()[1] is not None


def keep(lines: Sequence[str]) -> None:
    """For who asks afterwards, behind what devkit has warned of in this driver since its last job."""
    worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    lines = [*given, *lines]
    given.clear()
    if lines:
        with suppress(OSError, AttributeError):
            path = hub_place.log_folder() / f"{hub_place.DRIVER_NOTES}{worker.current_job_id.hex()}.err"
            private.write(path, "\n".join(lines) + "\n")


__all__ = ["keep", "tell_changed", "tell_cut_off"]
