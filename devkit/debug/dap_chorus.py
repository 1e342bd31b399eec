"""What many ranks would say at about the same time, said once: a connection that broke, one that is back."""

from __future__ import annotations

from collections.abc import Callable

from devkit.debug.dap_loop import Loop
from devkit.debug.naming import Who, label, name_members

TOGETHER_SECONDS = 0.5  # within which it counts as the same time

LOST = "the connection to the cluster was lost; paused ranks stay paused, reconnecting"
BACK = "connected to the cluster again"


class Chorus:
    """Used in one loop. What waits to be said can be dropped, when something larger has been said that explains it."""

    def __init__(self, loop: Loop, say: Callable[[str], None]) -> None:
        self._loop, self._say = loop, say
        self._waiting: dict[Callable[[list[Who]], str], list[Who]] = {}

    def lost(self, who: Who) -> None:
        self._add(lost_text, who)

    def back(self, who: Who) -> None:
        self._add(back_text, who)

    def drop(self) -> None:
        self._waiting.clear()

    def _add(self, text: Callable[[list[Who]], str], who: Who) -> None:
        if text in self._waiting:
            self._waiting[text].append(who)
        else:
            self._waiting[text] = [who]
            self._loop.after(TOGETHER_SECONDS, lambda: self._tell(text))

    def _tell(self, text: Callable[[list[Who]], str]) -> None:
        some = self._waiting.pop(text, [])
        if some:
            self._say(text(some))


def lost_text(some: list[Who]) -> str:
    """
    >>> lost_text([Who("Worker", 1, "s1")])
    'the connection to Worker[1] was lost; reconnecting'
    >>> lost_text([Who("Worker", rank, f"s{rank}") for rank in range(16)])
    'the connection to ranks 0-15 was lost; reconnecting'
    """
    return f"the connection to {_names(some)} was lost; reconnecting"


def back_text(some: list[Who]) -> str:
    """
    >>> back_text([Who("Worker", 1, "s1")]), back_text([Who("Worker", 1, "s1"), Who("Worker", 2, "s2")])
    ('Worker[1] is connected again', 'ranks 1,2 are connected again')
    """
    return f"{_names(some)} {'is' if len(some) == 1 else 'are'} connected again"


def _names(some: list[Who]) -> str:
    return label(some[0]) if len(some) == 1 else name_members(some)
