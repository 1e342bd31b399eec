"""What this process has started, and what those have; and the end of all of it."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress

import psutil


def descendants() -> set[psutil.Process]:
    """All that this process has started, and what those have."""
    with suppress(psutil.Error):
        return set(psutil.Process().children(recursive=True))
    return set()


def end_descendants(but: Set[psutil.Process] = frozenset(), also: Set[psutil.Process] = frozenset()) -> None:
    """SIGKILL to all of them without `but`, and to `also`, which may be nobody's children by now.

    They are stopped before: what one of them starts after it was looked at would be left, as a child of nobody.
    """
    stopped: set[psutil.Process] = set()
    while more := descendants() - but - stopped:
        for process in more:
            with suppress(psutil.Error):
                process.suspend()
        stopped |= more
    for process in stopped | also:
        with suppress(psutil.Error):
            process.kill()
