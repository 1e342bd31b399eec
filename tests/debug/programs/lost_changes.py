"""A driver that reads what its workers have changed in theirs."""

from __future__ import annotations

import ray

COUNTS: dict[int, int] = {}
CACHE: dict[int, int] = {}


class Stats:
    hits = 0


def cached(row: int) -> int:
    if row not in CACHE:
        CACHE[row] = row * row
    return CACHE[row]


@ray.remote
def count(row: int) -> int:
    COUNTS[row] = 1
    return cached(row)


@ray.remote
class Actor:
    def _note(self) -> None:
        Stats.hits += 1

    def step(self) -> None:
        self._note()


def report() -> None:
    print("hits", Stats.hits)  # @report


def main() -> None:
    ray.init()
    actor = Actor.remote()
    ray.get([*(count.remote(row) for row in range(8)), *(actor.step.remote() for _ in range(3))])
    print(len(COUNTS), cached(3))  # @read
    report()


main()
