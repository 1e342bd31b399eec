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
ALONE = ("env_instruction", "step_count", "history_length", "history", "current_step", "current_observation")


@dataclass(frozen=True)
class Past:
    """A turn that is over: what was seen, what was done, and what it earned."""

    observation: str
    action: str
    reward: float


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
    history: int | None = None  # turns that a prompt of one turn tells of, its own included; None: prompts are of all

    @classmethod
    def of(cls, config: Config) -> Messages:
        agent = config.agent
        turn_tokens = agent.max_turn_tokens or config.data.max_response_length
        history = agent.history_length if agent.rows == "turn" else None
        return cls(agent.template, agent.system_template, agent.max_turns, turn_tokens, history)

    def first(self, observation: str, instruction: str = "") -> str:
        """Of reset: its instruction stands before the first turn."""
        if self.history is not None:
            return self.alone(observation, instruction, [])
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

    def alone(self, observation: str, instruction: str, past: Sequence[Past]) -> str:
        """The prompt of one turn by itself, which tells of what was before; ROLL's step-wise manager.

        >>> shown = Messages("{env_instruction} Step {current_step}: {current_observation}, after {history}", history=2)
        >>> shown.alone("_PG", "Reach G.", [Past("PP", "Up", 0.0), Past("P_G", "Right", 0.5)])
        'Reach G. Step 3: _PG, after (step: 2, observation: P_G, action: Right, reward: 0.5)'
        """
        if self.template is None:
            return f"{instruction}\n{observation}" if instruction else observation
        assert self.history is not None
        done = len(past)
        told = list(enumerate(past, start=1))[max(0, done + 1 - self.history) :]
        return self.template.format(
            observation=observation,
            current_observation=observation,
            env_instruction=instruction,
            step_count=done,
            current_step=done + 1,
            turn_idx=done + 1,
            actions_left=self.turns - done,
            max_response_length=self.turn_tokens,
            history_length=len(told),
            history=", ".join(_told(step, each) for step, each in told),
        )


def _told(step: int, past: Past) -> str:
    return f"(step: {step}, observation: {past.observation}, action: {past.action}, reward: {past.reward})"


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
