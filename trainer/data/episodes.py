"""The tasks of an environment in place of a data file's rows: each is a seed, from which the environment makes it."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from trainer.data.dataset import Example
from trainer.records import Row

TRAIN, VALIDATION = "train", "validation"
SEEDS = 2**31  # so many: numpy, gymnasium and C take each of them


class Episodes:
    """`count` tasks, a function of the run's seed. Their prompts are what the environment shows first."""

    def __init__(self, env: str, count: int, seed: int, split: str) -> None:
        self._env, self._count, self._seed, self._split = env, count, seed, split

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self._count:
            raise IndexError(index)
        name = name_of(self._env)
        label = name if self._split == TRAIN else f"{name}, validation"
        return Example([], Row(index, label, name, None, {"seed": seed_of(self._seed, self._split, index)}))


def name_of(env: str) -> str:
    """How an environment is called in metrics and errors.

    >>> name_of("frozen_lake"), name_of("games/lake.py:Lake")
    ('frozen_lake', 'lake.py:Lake')
    """
    path, colon, name = env.rpartition(":")
    return f"{Path(path).name}{colon}{name}"


def seed_of(seed: int, split: str, index: int) -> int:
    """The environment's seed of task `index`; the samples of a task share it."""
    key = struct.pack("<qq", seed, index) + split.encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") % SEEDS
