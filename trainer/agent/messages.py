"""What a model reads of an environment's answers: the texts of `agent.template` and `agent.system_template`. Pure.

The names in braces are ROLL's, of its `agent_template`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter

from trainer.config.schema import Config

OF_TURN = ("observation", "turn_idx", "actions_left", "max_response_length")


@dataclass(frozen=True)
class Messages:
    """Templates and what they tell of the limits; without any, an observation is shown as it is.

    >>> shown = Messages("Turn {turn_idx}: {observation} ({actions_left} left)", turns=3)
    >>> shown.first("P_G", "Reach G."), shown.later(1, "_PG")
    ('Reach G.\\nTurn 1: P_G (3 left)', 'Turn 2: _PG (2 left)')
    """

    template: str | None = None
    system: str | None = None
    turns: int = 1  # of a conversation, at most
    turn_tokens: int = 1  # of a turn, at most

    @classmethod
    def of(cls, config: Config) -> Messages:
        agent = config.agent
        turn_tokens = agent.max_turn_tokens or config.data.max_response_length
        return cls(agent.template, agent.system_template, agent.max_turns, turn_tokens)

    def first(self, observation: str, instruction: str = "") -> str:
        """Of reset: its instruction stands before the first turn."""
        text = self.later(0, observation)
        return f"{instruction}\n{text}" if instruction else text

    def later(self, done: int, observation: str) -> str:
        """Of the observation after `done` turns."""
        if self.template is None:
            return observation
        return self.template.format(
            observation=observation,
            turn_idx=done + 1,
            actions_left=self.turns - done,
            max_response_length=self.turn_tokens,
        )


def unfit(template: str, names: Sequence[str]) -> str | None:
    """What is wrong with a template that may have `names` in braces; None: nothing.

    >>> unfit("{observation}", OF_TURN), unfit("{observatoin}", OF_TURN), unfit("{", OF_TURN)
    (None, 'has {observatoin}, which stands for nothing', "is no template: Single '{' encountered in format string")
    """
    try:
        fields = [(name, spec) for _, name, spec, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        return f"is no template: {error}"
    unknown = next((name for name, spec in fields if name not in names or spec), None)
    return None if unknown is None else f"has {{{unknown}}}, which stands for nothing"


def digest(text: str) -> str:
    """Short, and equal for equal texts in every process."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
