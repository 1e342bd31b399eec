"""FrozenLake as text: from the start to the goal over ice with holes, as in gymnasium, whose rules these are.

A move leads to the next field, or nowhere at the edge. A hole ends the episode with 0, the goal with 1. On slippery ice
a move goes where it was meant to, or to either side of that, a third each. A board is drawn from the seed until a path
leads from its start to its goal. Standard library only.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from typing import Any

ACTIONS = ("Left", "Down", "Right", "Up")  # gymnasium's numbers
_MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))  # row, column
START, ICE, HOLE, GOAL = "S", "F", "H", "G"
PLAYER, PLAYER_IN_HOLE, PLAYER_AT_GOAL = "P", "X", "!"
_SHOWN = {START: "_", ICE: "_", HOLE: "O", GOAL: "G"}
INSTRUCTIONS = (
    "You are P on a frozen lake. Reach the goal G over the ice _ without falling into a hole O.\n"
    "Answer each board with one move: <answer>Left</answer>, Down, Right or Up."
)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def require_finite(**numbers: float) -> None:
    """Raises ValueError for what is no finite number: one such reward would be every advantage of its batch.

    >>> require_finite(format_penalty=float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: format_penalty=nan is no finite number
    """
    for name, value in numbers.items():
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{name}={value} is no finite number")


class FrozenLake:
    """`size` fields a side, a share `p` of them ice; or the board `rows`, such as `SF/FG`.

    `terse` boards come without instructions, and the first letter of the answer is the move: for tiny models.

    >>> lake = FrozenLake(rows="SF/HG")
    >>> print(lake.reset(seed=1)[0].splitlines()[-2:])
    ['P_', 'OG']
    >>> lake.step("<answer>Right</answer>")[:3], lake.step("<answer>Down</answer>")[:3]
    (('_P\\nOG', 0.0, False), ('__\\nO!', 1.0, True))
    """

    def __init__(
        self,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = False,
        rows: str | None = None,
        terse: bool = False,
        format_penalty: float = 0.0,
    ) -> None:
        """`format_penalty` is the reward of an answer without a move, such as -0.01. Raises ValueError."""
        if not (isinstance(size, int) and 2 <= size <= 30) or not 0 < p <= 1:
            raise ValueError(f"size={size} is not from 2 to 30, or p={p} not more than 0 and at most 1")
        require_finite(format_penalty=format_penalty)
        self._given = tuple(rows.split("/")) if rows is not None else None
        if self._given is not None and not _is_board(self._given):
            raise ValueError(f"rows={rows} is no board of S, F, H and G with one S and a way to a G")
        self._size, self._p, self._slippery, self._terse = size, p, is_slippery, terse
        self._penalty = format_penalty
        self._drawn = random.Random(0)
        self.board: tuple[str, ...] = ()
        self.place = (0, 0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """The board that `seed` draws, and the player at its start."""
        if seed is not None:
            self._drawn = random.Random(seed)
        self.board = self._given or drawn_board(self._drawn, self._size, self._p)
        self.place = find(self.board, START)
        return (self.text if self._terse else f"{INSTRUCTIONS}\n\n{self.text}"), {"state": self.text}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One move. An answer without one changes nothing."""
        move = self._move_in(action)
        if move is None:
            said = (
                "?\n" if self._terse else "That is no move. Answer with <answer>Left</answer>, Down, Right or Up.\n\n"
            )
            return said + self.text, self._penalty, False, False, self._info(valid=False)
        if self._slippery:
            move = (move + self._drawn.choice((-1, 0, 1))) % len(ACTIONS)
        self.place = moved(self.board, self.place, move)
        here = self._here
        return self.text, float(here == GOAL), here in (GOAL, HOLE), False, self._info(valid=True)

    def close(self) -> None: ...

    @property
    def text(self) -> str:
        """The board as it is seen."""
        lines = [[_SHOWN[field] for field in row] for row in self.board]
        row, column = self.place
        lines[row][column] = {HOLE: PLAYER_IN_HOLE, GOAL: PLAYER_AT_GOAL}.get(self._here, PLAYER)
        return "\n".join("".join(line) for line in lines)

    @property
    def _here(self) -> str:
        return self.board[self.place[0]][self.place[1]]

    def _info(self, *, valid: bool) -> dict[str, Any]:
        return {"success": self._here == GOAL, "metrics": {"valid": float(valid)}, "state": self.text}

    def _move_in(self, action: str) -> int | None:
        if self._terse:
            word = action.strip()[:1].upper()
            return next((i for i, name in enumerate(ACTIONS) if name[0] == word), None)
        tags = _TAG.findall(action)
        word = tags[-1].strip().lower() if tags else ""
        return next((i for i, name in enumerate(ACTIONS) if name.lower() == word), None)


def moved(board: Sequence[str], place: tuple[int, int], move: int) -> tuple[int, int]:
    """
    >>> moved(["SF", "FG"], (0, 1), 1), moved(["SF", "FG"], (0, 1), 2)
    ((1, 1), (0, 1))
    """
    down, right = _MOVES[move]
    row = min(max(place[0] + down, 0), len(board) - 1)
    return row, min(max(place[1] + right, 0), len(board[0]) - 1)


def drawn_board(dice: random.Random, size: int, p: float) -> tuple[str, ...]:
    """Start and goal in opposite corners, each other field ice with probability `p`; one that can be solved."""
    while True:
        fields = [[ICE if dice.random() < p else HOLE for _ in range(size)] for _ in range(size)]
        fields[0][0], fields[-1][-1] = START, GOAL
        board = tuple("".join(row) for row in fields)
        if is_solvable(board):
            return board


def is_solvable(board: Sequence[str]) -> bool:
    """Whether a way leads from the start to a goal."""
    seen, ahead = set[tuple[int, int]](), [find(board, START)]
    while ahead:
        place = ahead.pop()
        if board[place[0]][place[1]] == GOAL:
            return True
        if place not in seen and board[place[0]][place[1]] != HOLE:
            seen.add(place)
            ahead += [moved(board, place, move) for move in range(len(ACTIONS))]
    return False


def find(board: Sequence[str], field: str) -> tuple[int, int]:
    """Where `field` first stands."""
    return next((i, row.index(field)) for i, row in enumerate(board) if field in row)


def _is_board(board: Sequence[str]) -> bool:
    fields = "".join(board)
    even = len({len(row) for row in board}) == 1
    return even and set(fields) <= set(_SHOWN) and fields.count(START) == 1 and is_solvable(board)
