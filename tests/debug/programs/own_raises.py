"""A program that starts its own Ray, and fails in an actor: nothing of that Ray is left when it has ended."""

from __future__ import annotations

import ray


@ray.remote
class Scorer:
    def __init__(self, table: dict[str, int]) -> None:
        self.table = table

    def score(self, word: str) -> int:
        return self.table[word]  # @score


ray.init(num_cpus=2)
scorer = Scorer.remote({"a": 1})
print(ray.get(scorer.score.remote("b")))
