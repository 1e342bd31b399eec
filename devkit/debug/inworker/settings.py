"""How a job is debugged: what its driver decided, and every process of it is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import private
from .later import SETTINGS

if TYPE_CHECKING:
    from .records import Breakpoint

VARIABLE = SETTINGS  # the settings of this job: the path of a file, or in a worker's children their text
MOST_IN_ENVIRONMENT = 65536  # bytes; Linux starts no program with a variable of twice as much


def given(environ: Mapping[str, str]) -> dict[str, Any]:
    """What the variable names. Raises KeyError without one, OSError for a file that is not there or not this user's."""
    value = environ[VARIABLE]
    document: dict[str, Any] = json.loads(value if value.startswith("{") else private.read(Path(value)))
    return document


def in_environment(document: Mapping[str, Any]) -> str:
    """What the variable is to children of this process; breakpoints that are too many come by the hub."""
    text = json.dumps(document)
    return text if len(text) <= MOST_IN_ENVIRONMENT else json.dumps({**document, "breakpoints": []})


def lifts_timeouts(environ: Mapping[str, str]) -> bool:
    """Whether a process with this environment is debugged, and waits are to last as long as a stop does."""
    try:
        return not given(environ)["keep_timeouts"]
    except (KeyError, OSError, ValueError):
        return False


AUTO, ON, OFF = "auto", "on", "off"  # of `Settings.caught`


def is_counted(caught: str) -> bool:
    """Whether exceptions that the program catches are counted: by itself where Python tells of nothing else."""
    return caught == ON or (caught == AUTO and sys.version_info >= (3, 12))


@dataclass(frozen=True)
class Settings:
    """The same in all processes of a job."""

    breakpoints: tuple[Breakpoint, ...] = ()
    post_mortem: str = "snapshot"  # snapshot, pause or off
    stop_timeout: float = 0.0  # seconds; 0: a stop has no end
    keep_timeouts: bool = False  # leave the time-outs of Ray and torch.distributed as they are
    leave_to_ray: bool = False  # `breakpoint()` and what fails are for Ray's older debugger, `ray debug`
    ray_extension: str = "local"  # who of Ray's debugger extension may attach: local (same user), open, off
    caught: str = AUTO  # whether exceptions that the program catches are counted: on, off, or auto
