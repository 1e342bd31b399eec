"""How a job is debugged: what its driver decided, and every process of it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .records import Breakpoint


@dataclass(frozen=True)
class Settings:
    """The same in all processes of a job."""

    breakpoints: tuple[Breakpoint, ...] = ()
    post_mortem: str = "snapshot"  # snapshot, pause or off
    stop_timeout: float = 0.0  # seconds; 0: a stop has no end
    keep_timeouts: bool = False  # leave the time-outs of torch.distributed as they are
    ray_extension: str = "local"  # who of Ray's debugger extension may attach: local (same user), open, off
