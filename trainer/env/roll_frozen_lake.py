"""FrozenLake as ROLL plays it: its words and symbols, start and goal anywhere. The rules are `frozen_lake.py`'s."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.env.frozen_lake import ACTIONS, GOAL, HOLE, ICE, START, FrozenLake, find, is_solvable, require_finite
from trainer.env.roll_texts import ANSWER, INSTRUCTION, MARKS, Shares, Wording, symbols_of

_PLAYER, _EMPTY, _HOLE, _GOAL, _PLAYER_IN_HOLE, _PLAYER_ON_GOAL = range(6)
SYMBOLS = {0: "P", 1: "_", 2: "O", 3: "G", 4: "X", 5: "√"}
MEANINGS = {
    "P": "player",
    "_": "empty",
    "O": "hole",
    "G": "goal",
    "X": "player in hole",
    "√": "player on goal",
}
INSTRUCTIONS = (
    "You are solving the FrozenLake puzzle. "
    "Forbid the whole and go to the target. "
    "You may move to the unintended direction due to the slippery ice. "
    "The answer must be one of action in a turn, format is <answer>Right</answer>"
)
_KINDS = {START: _EMPTY, ICE: _EMPTY, HOLE: _HOLE, GOAL: _GOAL}


class RollFrozenLake:
    """`size` fields a side, a share `p` of them ice; or the board `rows`, such as `SF/FG`.

    >>> lake = RollFrozenLake(rows="SF/HG", is_slippery=False)
    >>> lake.reset(seed=1)[0], lake.step("<answer>Right</answer>")[0], lake.step("<answer>down</answer>")[:3]
    ('P_\\nOG', '_P\\nOG', ('__\\nO√', 1.0, True))
    """

    def __init__(
        self,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = True,
        max_steps: int | None = None,
        format_penalty: float = 0.0,
        rows: str | None = None,
        action_pattern: str = ANSWER,
        special_token_list: Sequence[str] | None = MARKS,
        env_instruction: str = INSTRUCTIONS,
        grid_lookup: Mapping[Any, str] | None = None,
        grid_vocab: Mapping[str, str] | None = None,
        action_lookup: Mapping[Any, str] | None = None,
    ) -> None:
        """ROLL's names; `max_steps` None: `agent.max_turns` alone ends an episode. Raises ValueError."""
        self._lake = FrozenLake(size=size, p=p, is_slippery=is_slippery, rows=rows, terse=True)
        self._size, self._p, self._is_given, self._most = size, p, rows is not None, max_steps
        self._symbols = symbols_of(grid_lookup, SYMBOLS)
        require_finite(format_penalty=format_penalty, max_steps=1 if max_steps is None else max_steps)
        actions = symbols_of(action_lookup, dict(enumerate(ACTIONS)))
        if set(actions) != set(range(len(ACTIONS))):
            raise ValueError(f"action_lookup={action_lookup} names other actions than 0 to {len(ACTIONS) - 1}")
        self._wording = Wording(env_instruction, grid_vocab or MEANINGS, actions, action_pattern, special_token_list)
        self._penalty, self._steps, self._shares = format_penalty, 0, Shares()
        self._dice = random.Random(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """The board that `seed` draws, with what it is about in `info`."""
        if seed is None:
            seed = self._dice.randrange(2**31)
        self._lake.reset(seed=seed)
        if not self._is_given:
            self._lake.board = anywhere(random.Random(seed), self._size, self._p)
            self._lake.place = find(self._lake.board, START)
        self._steps, self._shares = 0, Shares()
        return self.text, {INSTRUCTION: self._wording.instructions}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One move. An answer without one changes nothing, and its reward is `format_penalty`."""
        move, before = self._wording.action_in(action), self._lake.place
        self._steps += 1
        reward, ended = self._penalty, False
        if move is not None:
            _, reward, ended, _, _ = self._lake.step(ACTIONS[move])
        info = self._shares.told(
            valid=move is not None, effective=self._lake.place != before, success=self._field == GOAL
        )
        return self.text, reward, ended, not ended and self._steps == self._most, info

    def close(self) -> None: ...

    @property
    def text(self) -> str:
        """The board as it is seen."""
        kinds = [[_KINDS[field] for field in row] for row in self._lake.board]
        row, column = self._lake.place
        kinds[row][column] = {HOLE: _PLAYER_IN_HOLE, GOAL: _PLAYER_ON_GOAL}.get(self._field, _PLAYER)
        return "\n".join("".join(self._symbols[kind] for kind in line) for line in kinds)

    @property
    def _field(self) -> str:
        row, column = self._lake.place
        return self._lake.board[row][column]


def anywhere(dice: random.Random, size: int, p: float) -> tuple[str, ...]:
    """Start and goal stand anywhere, each other field is ice with probability `p`; a board that can be solved."""
    while True:
        fields = [[ICE if dice.random() < p else HOLE for _ in range(size)] for _ in range(size)]
        start, goal = dice.sample(range(size * size), 2)
        fields[start // size][start % size], fields[goal // size][goal % size] = START, GOAL
        board = tuple("".join(row) for row in fields)
        if is_solvable(board):
            return board
