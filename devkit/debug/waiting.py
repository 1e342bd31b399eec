"""What a long wait is for, said while it lasts and not only at its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

QUIET_S = 15.0  # until the first word, and between two; an ordinary start is over by then


class Waiting:
    """Asked at each look of a wait with what is still missing; speaks when that is worth a line.

    >>> clock = iter([0.0, 5.0, 16.0, 40.0, 41.0, 60.0]).__next__
    >>> still = Waiting(print, clock)
    >>> for what in ("the GCS", "1 of 2 nodes: rank 1", "1 of 2 nodes: rank 1", "the dashboard", "the dashboard"):
    ...     still(what)
    still waiting for 1 of 2 nodes: rank 1
    still waiting for the dashboard
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._spoke = clock()
        self._said = ""

    def __call__(self, what: str) -> None:
        now = self._clock()
        if what != self._said and now - self._spoke >= QUIET_S:
            self._spoke, self._said = now, what
            self._say(f"still waiting for {what}")
