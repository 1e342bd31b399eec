"""A job in which one actor fails, and then the rest: what is told last is told loudest.

Its driver goes on for a while, as drivers do that catch what ranks raise.
"""

import os
import sys

import ray
from ray.util.placement_group import placement_group


@ray.remote(num_cpus=0)
class Rank:
    def __init__(self, rank):
        self.rank = rank
        print("WANDB_API_KEY=" + "abc" * 5, flush=True)

    def train(self):
        batch = {"prompt": 1}
        return self.score(batch)

    def score(self, batch):
        return batch["response"]  # @cause

    def leave(self):
        os._exit(1)


@ray.remote(num_cpus=0)
def outer(rank):
    return ray.get(rank.train.remote())


def main():
    ray.init(logging_level="ERROR")
    ranks = [Rank.remote(rank) for rank in range(2)]
    try:
        ray.get(outer.remote(ranks[1]))  # @asked
    except KeyError as error:
        print("a rank failed", type(error).__name__, flush=True)
    for _ in range(2):
        try:
            ray.get(placement_group([{"CPU": 1}], name="pg").ready())
        except Exception as error:  # noqa: BLE001
            print("no group", type(error).__name__, flush=True)
    ray.get(ranks[0].leave.remote())  # @last


if __name__ == "__main__":
    sys.exit(main())
