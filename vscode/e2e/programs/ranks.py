"""Three ranks that train until they are ended. No `breakpoint()` here."""

import itertools
import time

import ray


@ray.remote(num_cpus=1)
class Trainer:
    def __init__(self, rank):
        self.rank = rank
        self.steps = 0

    def step(self, k):
        batch = [k, k + 1]
        loss = 0.25 if self.rank != 1 else float("nan")
        scaled = loss * len(batch)  # @scaled
        self.steps += 1  # @count
        return scaled  # @done


trainers = [Trainer.remote(rank) for rank in range(3)]
for k in itertools.count():
    ray.get([trainer.step.remote(k) for trainer in trainers])
    print("STEP", k, flush=True)
    time.sleep(0.1)
