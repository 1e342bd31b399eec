"""A program that starts its own Ray, and fails in an actor: nothing of that Ray is left when it has ended."""

from __future__ import annotations

import os
import sys

import ray


@ray.remote
class Scorer:
    def __init__(self, table: dict[str, int]) -> None:
        self.table = table

    def score(self, word: str) -> int:
        return self.table[word]  # @score


def total(scores: list[int]) -> int:
    return sum(scores) // len(scores)  # @total


def run() -> None:
    ray.init(num_cpus=2)
    try:
        if sys.argv[1:] == ["closes"]:
            print(total([]))
        print(ray.get(Scorer.remote({"a": 1}).score.remote("b")))
    finally:
        if sys.argv[1:] == ["closes"]:
            ray.shutdown()


try:
    run()
except ZeroDivisionError as error:  # as a program does that ends with two plain lines
    print(f"error: {error}", file=sys.stderr)
    os._exit(1)
