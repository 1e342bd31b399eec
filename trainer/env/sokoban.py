"""Sokoban as text, as in ROLL: boxes are pushed onto targets, and never pulled.

Rules and rewards are gym_sokoban's: -0.1 for each step, 1 for a box that comes onto a target and -1 for one that leaves
it, 10 for all of them. Rooms: `sokoban_rooms.py`. Standard library only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.env.frozen_lake import require_finite
from trainer.env.roll_texts import ANSWER, INSTRUCTION, MARKS, Shares, Wording, symbols_of
from trainer.env.sokoban_rooms import ACTIONS, Place, Room, drawn_room, room_of

STEP, BOX_ON_TARGET, BOX_OFF_TARGET, FINISHED = -0.1, 1.0, -1.0, 10.0
_WALL, _EMPTY, _TARGET, _BOX_ON_TARGET, _BOX, _PLAYER, _PLAYER_ON_TARGET = range(7)
SYMBOLS = {0: "#", 1: "_", 2: "O", 3: "√", 4: "X", 5: "P", 6: "S"}
MEANINGS = {
    "#": "wall",
    "_": "empty",
    "O": "target",
    "√": "box on target",
    "X": "box",
    "P": "player",
    "S": "player on target",
}
INSTRUCTIONS = (
    "You are solving the Sokoban puzzle. "
    "You are the player and you need to push all boxes to targets. "
    "When you are right next to a box, you can push it by moving in the same direction. "
    "You cannot push a box through a wall, and you cannot pull a box. "
    "The answer must be one of action in a turn, format is <answer>Right</answer>."
)


class Sokoban:
    """The room that a seed draws, of `dim_room` fields with `num_boxes` boxes; or `rows`, such as `#####/#PXO#/#####`.

    >>> sokoban = Sokoban(rows="#####/#PXO#/#####")
    >>> sokoban.reset(seed=1)[0]
    '#####\\n#PXO#\\n#####'
    >>> text, reward, terminated, truncated, info = sokoban.step("<answer>Right</answer>")
    >>> text, round(reward, 1), terminated, info["success"]
    ('#####\\n#_P√#\\n#####', 10.9, True, True)
    """

    def __init__(
        self,
        dim_room: Sequence[int] = (6, 6),
        num_boxes: int = 1,
        search_depth: int = 300,
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
        if len(dim_room) != 2 or not all(isinstance(side, int) and 5 <= side <= 30 for side in dim_room):
            raise ValueError(f"dim_room={dim_room} is not two sides of 5 to 30 fields")
        if not 1 <= num_boxes <= 8 or not 1 <= search_depth <= 10_000:
            raise ValueError(f"num_boxes={num_boxes} is not from 1 to 8, or search_depth={search_depth} not to 10000")
        self._size: Place = (dim_room[0], dim_room[1])
        self._boxes, self._depth, self._most = num_boxes, search_depth, max_steps
        self._given = room_of(rows.split("/")) if rows is not None else None
        self._symbols = symbols_of(grid_lookup, SYMBOLS)
        require_finite(format_penalty=format_penalty, max_steps=1 if max_steps is None else max_steps)
        actions = symbols_of(action_lookup, ACTIONS)
        if set(actions) != set(ACTIONS):
            raise ValueError(f"action_lookup={action_lookup} names other actions than {sorted(ACTIONS)}")
        self._wording = Wording(env_instruction, grid_vocab or MEANINGS, actions, action_pattern, special_token_list)
        self._penalty, self._dice = format_penalty, random.Random(0)
        self.room = self._given or room_of(["#####", "#PXO#", "#####"])
        self._begin()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """The room of `seed`, with what it is about in `info`."""
        if seed is None:
            seed = self._dice.randrange(2**31)
        self.room = self._given or drawn_room(seed, self._size, self._boxes, self._depth)
        self._begin()
        return self.text, {INSTRUCTION: self._wording.instructions}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One move. An answer without one is a step, too, and costs `format_penalty` beside it."""
        move, before = self._wording.action_in(action), self.room
        if move is not None:
            self.room = before.after(move)
        self._steps += 1
        reward = STEP + _reward(before, self.room) + (self._penalty if move is None else 0.0)
        solved = self.room.solved
        info = self._shares.told(valid=move is not None, effective=self.room.player != before.player, success=solved)
        return self.text, reward, solved, not solved and self._steps == self._most, info

    def close(self) -> None: ...

    @property
    def text(self) -> str:
        """The room as it is seen."""
        rows, columns = self.room.size
        return "\n".join(
            "".join(self._symbols[_kind(self.room, (row, column))] for column in range(columns)) for row in range(rows)
        )

    def _begin(self) -> None:
        self._steps, self._shares = 0, Shares()


def _reward(before: Room, after: Room) -> float:
    """Of boxes that came onto targets or left them."""
    was, now = len(before.boxes & before.targets), len(after.boxes & after.targets)
    moved = BOX_ON_TARGET if now > was else BOX_OFF_TARGET if now < was else 0.0
    return moved + (FINISHED if after.solved else 0.0)


def _kind(room: Room, place: Place) -> int:
    """The number of what stands there."""
    on_target = place in room.targets
    if place == room.player:
        return _PLAYER_ON_TARGET if on_target else _PLAYER
    if place in room.boxes:
        return _BOX_ON_TARGET if on_target else _BOX
    return _TARGET if on_target else _EMPTY if place in room.floor else _WALL
