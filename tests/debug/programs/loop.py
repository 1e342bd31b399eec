"""Two ranks that step until told to end. The lines that tests stop at wear a mark."""

import os
import sys
import time
from pathlib import Path

import ray


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, rank):
        self.rank = rank

    def step(self, k):
        loss = 1.0 / (k + 1)
        return loss * self.rank  # @step

    def train(self, end):
        total, k = 0.0, 0
        while not os.path.exists(end):
            total += self.step(k)
            k += 1  # @loop
            time.sleep(0.01)
        return k

    def ping(self):
        return "pong"


def main(end, ranks):
    ray.init(logging_level="ERROR", log_to_driver=False)
    workers = [Worker.options(scheduling_strategy="SPREAD").remote(rank) for rank in range(ranks)]
    results = [worker.train.remote(end) for worker in workers]
    Path(end + ".started").touch()
    print("result", ray.get(results), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
