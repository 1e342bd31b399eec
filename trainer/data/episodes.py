"""The tasks of an environment in place of a data file's rows: each is a seed, from which the environment makes it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.data.dataset import Example
from trainer.records import Row

TRAIN, VALIDATION = "train", "validation"
SEEDS = 2**31  # so many: numpy, gymnasium and C take each of them


class Episodes:
    """`count` tasks, a function of the run's seed. Their prompts are what the environment shows first."""

    def __init__(
        self,
        env: str,
        count: int,
        seed: int,
        split: str,
        tags: Sequence[str] = (),
        shares: Mapping[str, int] | None = None,
    ) -> None:
        """`tags` of `agent.env=several`, in their order; `shares`: how many of its tasks each has, in turn."""
        self._env, self._count, self._seed, self._split = env, count, seed, split
        self._tags = tuple(tags)
        self._turns = [tag for tag, share in (shares or dict.fromkeys(tags, 1)).items() for _ in range(share)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self._count:
            raise IndexError(index)
        name, seed = name_of(self._env), seed_of(self._seed, self._split, index)
        if self._turns:
            name = self._turns[index % len(self._turns)]
            seed = seed_for(seed, self._tags.index(name), len(self._tags))
        label = name if self._split == TRAIN else f"{name}, validation"
        return Example([], Row(index, label, name, None, {"seed": seed}))


def name_of(env: str) -> str:
    """How an environment is called in metrics and errors.

    >>> name_of("frozen_lake"), name_of("games/lake.py:Lake")
    ('frozen_lake', 'lake.py:Lake')
    """
    path, colon, name = env.rpartition(":")
    return f"{Path(path).name}{colon}{name}"


def seed_for(seed: int, place: int, count: int) -> int:
    """The seed nearest below that leaves `place` when divided by `count`.

    >>> seed_for(100, 2, 3), seed_for(101, 2, 3), seed_for(0, 2, 3)
    (98, 101, 2)
    """
    found = seed - (seed - place) % count
    return found if found >= 0 else found + count


def seed_of(seed: int, split: str, index: int) -> int:
    """The environment's seed of task `index`; the samples of a task share it."""
    key = struct.pack("<qq", seed, index) + split.encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") % SEEDS
