"""What is known of a trajectory beside its tokens. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TERMINATED, TRUNCATED, TURNS, LENGTH, FAILED = "terminated", "truncated", "turns", "length", "failed"
ENDS = (TERMINATED, TRUNCATED, TURNS, LENGTH)  # of a trajectory that is whole; the first two the environment says


@dataclass(frozen=True)
class Turn:
    """One generation and its reward. Columns count from the first one of the response.

    What the environment answered, and what the chat template puts around it, stands from `end` to the next `start`.
    """

    start: int
    end: int  # behind the last sampled token
    reward: float
    seconds: float  # that the environment took to answer
    action: str = ""  # what was sampled, as the environment got it
    observation: str = ""  # what it answered, also where that is not laid: behind the last turn
    state: str = ""  # a digest of what it was taken in

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Failure:
    """Why a trajectory is not whole."""

    kind: str  # raised | wrong | hung | died | late | long | retriever | server
    message: str


@dataclass(frozen=True)
class Episode:
    """A trajectory's turns and its end. With a `failure` it has no tokens, and is dropped by the driver.

    >>> Episode((Turn(0, 3, 0.0, 0.1), Turn(7, 9, 1.0, 0.1)), TERMINATED).reward
    1.0
    """

    turns: tuple[Turn, ...]
    ended: str  # one of ENDS, or failed
    seconds: float = 0.0  # of the environment, its reset included
    numbers: Mapping[str, float] = field(
        default_factory=dict
    )  # `success` and `metrics` of its last `info` that had any
    failure: Failure | None = None
    observation: str = ""  # the first, of its reset
    step: int | None = None  # where a row is one turn: which of its conversation, from 0
    rewards: tuple[float, ...] = ()  # and of all turns of that conversation

    @property
    def reward(self) -> float:
        """Of all turns together."""
        return sum(turn.reward for turn in self.turns)
