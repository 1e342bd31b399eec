"""How much a launch may come to before lint stops looking: there are texts for which no time and no memory suffice."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

CHARACTERS = 1_000_000  # that all words come to: variables in variables can be more than there is memory
SECONDS = 10.0  # of work for the shell's grammar, which looks for a meaning in brackets that have none


@dataclass
class Room:
    """What is left; the scripts of a launch share it."""

    characters: int = CHARACTERS
    seconds: float = field(default_factory=lambda: SECONDS)

    def take(self, text: str) -> bool:
        """Whether there is room for a text, which is then taken."""
        self.characters -= len(text) + 1
        return self.characters >= 0


class Watch:
    """Work of this thread, taken from the room when it is over."""

    def __init__(self, room: Room) -> None:
        self._room, self._began = room, time.thread_time()

    def is_over(self) -> bool:
        return time.thread_time() - self._began > self._room.seconds

    def stop(self) -> None:
        self._room.seconds = max(0.0, self._room.seconds - (time.thread_time() - self._began))
