"""How ROLL's games speak: instructions before the first board, and answers that are looked for by a pattern.

`roll/pipeline/agentic/env/` of alibaba/ROLL, whose words stand here as they are there, for models that were trained
with them. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

ANSWER = "<answer>(.*?)</answer>"
MARKS = ("<|im_start|>", "<|im_end|>")  # that an answer may bring along
INSTRUCTION = "env_instruction"  # of the `info` of reset


class Wording:
    """What a game's symbols and actions are called, and how an action is found in an answer.

    >>> wording = Wording("Go.", {"P": "player"}, {1: "Up", 2: "Down"})
    >>> print(wording.instructions)
    Go.
    The meaning of each symbol in the state is:
    P: player
    Your available actions are:
    Up, Down
    >>> wording.action_in("I think <answer> down </answer>"), wording.action_in("down")
    (2, None)
    """

    def __init__(
        self,
        instruction: str,
        symbols: Mapping[str, str],
        actions: Mapping[int, str],
        pattern: str = ANSWER,
        marks: Sequence[str] | None = MARKS,
    ) -> None:
        """`pattern` has one group, the action, or two, of which it is the second. Raises ValueError for another one."""
        try:
            self._pattern = re.compile(pattern, re.DOTALL)
        except re.error as error:
            raise ValueError(f"action_pattern={pattern!r} is no regular expression: {error}") from error
        if self._pattern.groups not in (1, 2):
            raise ValueError(f"action_pattern={pattern!r} has {self._pattern.groups} groups, and not one or two")
        self._marks = tuple(marks or ())
        self._numbers = {name.lower(): number for number, name in actions.items()}
        meanings = ", ".join(f"{symbol}: {meaning}" for symbol, meaning in symbols.items())
        self.instructions = (
            f"{instruction}\nThe meaning of each symbol in the state is:\n{meanings}"
            f"\nYour available actions are:\n{', '.join(actions.values())}"
        )

    def action_in(self, answer: str) -> int | None:
        """The number of the action that `answer` names; None where it names none."""
        for mark in self._marks:
            answer = answer.replace(mark, "").strip()
        found = self._pattern.search(answer)
        named = found[self._pattern.groups] if found else None
        return self._numbers.get(named.strip().lower()) if named is not None else None


class Shares:
    """How many of an episode's actions were valid, and how many moved the player: means over its turns, as ROLL's."""

    def __init__(self) -> None:
        self._turns = self._valid = self._effective = 0

    def told(self, *, valid: bool, effective: bool, success: bool) -> dict[str, Any]:
        """The `info` of a step."""
        self._turns += 1
        self._valid += valid
        self._effective += effective
        shares = {"action_is_valid": self._valid / self._turns, "action_is_effective": self._effective / self._turns}
        return {"success": success, "metrics": shares}


def symbols_of(given: Mapping[Any, str] | None, usual: Mapping[int, str]) -> dict[int, str]:
    """Those of a game by their numbers, `given` ones in place of the usual. Raises ValueError.

    >>> symbols_of({"0": "W"}, {0: "#", 1: "_"})
    {0: 'W', 1: '_'}
    """
    try:
        own = {int(number): str(symbol) for number, symbol in (given or {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{given!r:.80} does not name things by their numbers, as {{0: '#'}} does") from error
    return {**usual, **own}
