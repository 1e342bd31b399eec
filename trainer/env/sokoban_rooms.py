"""Rooms of Sokoban: what a move does, how a room is drawn, and how it is solved.

A room is drawn as in gym_sokoban (Schrader 2018): floor along a random walk, boxes on their targets, and then played
backwards, by pulling. So each can be solved: its way back is a solution. Standard library only.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

Place = tuple[int, int]  # row, column

ACTIONS = {1: "Up", 2: "Down", 3: "Left", 4: "Right"}
_WAYS: dict[int, Place] = {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}
_TURNS = 0.35  # how often the walk that lays the floor changes its direction
_BRUSHES: tuple[tuple[Place, ...], ...] = (  # the floor around a place of that walk
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
_MOST_STATES = 20_000  # of a game that is played backwards
_MOST_ROOMS = 1_000  # drawn until one is of use
_STROLL = 3  # steps of the player, at most, away from the box that it has pulled last


@dataclass(frozen=True)
class Room:
    """Boxes and player on a floor; everything else within `size` is wall."""

    size: Place  # rows, columns
    floor: frozenset[Place]  # targets included
    targets: frozenset[Place]
    boxes: frozenset[Place]
    player: Place

    @property
    def solved(self) -> bool:
        return self.boxes <= self.targets

    def after(self, action: int) -> Room:
        """The player moves, and pushes the box that stood there; or nothing changes."""
        way = _WAYS[action]
        place = _next(self.player, way)
        if place in self.boxes:
            beyond = _next(place, way)
            if beyond not in self.floor or beyond in self.boxes:
                return self
            return replace(self, boxes=self.boxes - {place} | {beyond}, player=place)
        return replace(self, player=place) if place in self.floor else self


def _next(place: Place, way: Place, by: int = 1) -> Place:
    return place[0] + by * way[0], place[1] + by * way[1]


def room_of(rows: Sequence[str]) -> Room:
    """A room as it is written: `#` wall, `_` floor, `O` target, `X` box, `√` box on target, `P`, `S` player.

    Raises ValueError for one without a player, or with fewer targets than boxes.

    >>> room_of(["#####", "#PXO#", "#####"]).after(4).solved
    True
    """
    fields = {(row, column): field for row, line in enumerate(rows) for column, field in enumerate(line)}
    if not rows or len({len(line) for line in rows}) != 1 or not set(fields.values()) <= set("#_O√XPS"):
        raise ValueError(f"{'/'.join(rows)!r:.80} is no room: lines of equal length, of # _ O √ X P S")

    def places(kinds: str) -> frozenset[Place]:
        return frozenset(place for place, field in fields.items() if field in kinds)

    players, boxes, targets = places("PS"), places("X√"), places("O√S")
    if len(players) != 1 or not boxes or len(targets) < len(boxes):
        raise ValueError(f"{'/'.join(rows)!r:.80} is no room: one player, boxes, and a target for each")
    return Room((len(rows), len(rows[0])), places("_O√XPS"), targets, boxes, next(iter(players)))


def solution(room: Room, most: int = 500_000) -> list[int] | None:
    """The shortest way to solve a room, by breadth; None where there is none. Raises ValueError after `most` states.

    >>> solution(room_of(["######", "#P_XO#", "######"]))
    [4, 4]
    """
    ahead, before = deque([room]), dict[Room, tuple[Room, int] | None]({room: None})
    while ahead:
        here = ahead.popleft()
        if here.solved:
            found = list[int]()
            while (step := before[here]) is not None:
                here, action = step
                found.append(action)
            return found[::-1]
        for action in ACTIONS:
            there = here.after(action)
            if there not in before:
                before[there] = here, action
                ahead.append(there)
        if len(before) > most:
            raise ValueError(f"a room of more than {most} states")
    return None


@lru_cache(maxsize=4096)
def drawn_room(seed: int, size: Place, boxes: int, depth: int) -> Room:
    """The room of a seed, a function of its arguments alone; no box stands on a target.

    `depth`: moves, at most, of the game that is played backwards. Raises ValueError where no room can be drawn.
    """
    dice = random.Random(seed)
    for _ in range(_MOST_ROOMS):
        floor = _floor(dice, size)
        if len(floor) <= boxes + 1:
            continue
        player, *targets = dice.sample(floor, boxes + 1)
        room = _played_back(size, frozenset(floor), tuple(targets), player, depth)
        if room is not None:
            return _strolled(dice, room, tuple(targets))
    raise ValueError(f"no room of {size[0]} x {size[1]} fields with {boxes} boxes could be drawn from seed {seed}")


def _floor(dice: random.Random, size: Place) -> list[Place]:
    """Along a random walk within the outer wall, in order."""
    rows, columns = size
    ways = list(_WAYS.values())
    way, place = dice.choice(ways), (dice.randint(1, rows - 2), dice.randint(1, columns - 2))
    found = set[Place]()
    for _ in range(int(1.7 * (rows + columns))):
        if dice.random() < _TURNS:
            way = dice.choice(ways)
        row, column = _next(place, way)
        place = min(max(row, 1), rows - 2), min(max(column, 1), columns - 2)
        found |= {_next(place, offset) for offset in dice.choice(_BRUSHES)}
    return sorted((row, column) for row, column in found if 0 < row < rows - 1 and 0 < column < columns - 1)


@dataclass(frozen=True)
class _Pulled:
    """A state of the game that is played backwards."""

    boxes: tuple[Place, ...]  # in the order of their targets
    player: Place
    last: int = -1  # the box that was pulled last
    changes: int = 0  # how often that was another one than before


def _played_back(
    size: Place, floor: frozenset[Place], targets: tuple[Place, ...], player: Place, depth: int
) -> Room | None:
    """Of all states within `depth` moves, the one whose boxes are farthest away, times the changes between them."""
    start = _Pulled(targets, player)
    best, best_score = None, 0
    seen, ahead = {(start.boxes, start.player)}, [start]
    for _ in range(depth):
        ahead = [state for here in ahead for state in _pulls(here, floor, seen)]
        for state in ahead:
            away = sum(_distance(box, target) for box, target in zip(state.boxes, targets, strict=True))
            score = state.changes * away
            if score > best_score and not {*state.boxes, state.player} & set(targets):
                best, best_score = state, score
        if not ahead or len(seen) > _MOST_STATES:
            break
    if best is None:
        return None
    return Room(size, floor, frozenset(targets), frozenset(best.boxes), best.player)


def _pulls(here: _Pulled, floor: frozenset[Place], seen: set[tuple[tuple[Place, ...], Place]]) -> Iterator[_Pulled]:
    """States that a move leads to and that are new: a box behind the player comes along."""
    for way in _WAYS.values():
        place, behind = _next(here.player, way), _next(here.player, way, by=-1)
        if place not in floor or place in here.boxes:
            continue
        state = replace(here, player=place)
        if behind in here.boxes:
            box = here.boxes.index(behind)
            boxes = (*here.boxes[:box], here.player, *here.boxes[box + 1 :])
            state = _Pulled(boxes, place, box, here.changes + (box != here.last))
        if (state.boxes, place) not in seen:
            seen.add((state.boxes, place))
            yield state


def _distance(a: Place, b: Place) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _strolled(dice: random.Random, room: Room, targets: Sequence[Place]) -> Room:
    """The player some steps away from where it has pulled: it can go back, so the room stays one that can be solved."""
    nearest = min(_distance(box, target) for box in room.boxes for target in targets)
    if dice.random() > (0.8 if len(room.boxes) == nearest == 1 else 0.5):
        return room
    been = [room.player]
    for _ in range(_STROLL):
        near = [_next(been[-1], way) for way in _WAYS.values()]
        free = [place for place in near if place in room.floor and place not in room.boxes and place not in been]
        if not free:
            break
        been.append(dice.choice(free))
        if dice.random() > 0.5:
            break
    return replace(room, player=been[-1])
