"""Ranks that train until they are ended, three or as many as asked for. No `breakpoint()` here."""

import itertools
import sys
import time

import ray

RANKS, ODD = map(int, sys.argv[1:] or (3, 1))


@ray.remote(num_cpus=1)
class Trainer:
    def __init__(self, rank):
        self.rank = rank
        self.steps = 0

    def step(self, k):
        batch = [k, k + 1]
        loss = 0.25 if self.rank != ODD else float("nan")
        scaled = loss * len(batch)  # @scaled
        self.steps += 1  # @count
        return scaled  # @done


trainers = [Trainer.remote(rank) for rank in range(RANKS)]
for k in itertools.count():
    ray.get([trainer.step.remote(k) for trainer in trainers])
    print("STEP", k, flush=True)
    time.sleep(0.1)
