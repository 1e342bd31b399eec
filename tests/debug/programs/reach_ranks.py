"""Four ranks and one that can't answer: two wait in one place, one in another; one holds Python's lock in C.

reach_ranks.py END      runs until the file END is there
"""

import contextlib
import ctypes
import os
import sys
import time

import ray


@ray.remote(num_cpus=0)
class Rank:
    def __init__(self, rank):
        self.rank = rank

    def train(self, end):
        step = 0
        while not os.path.exists(end):
            self.late(step) if self.rank == 2 else self.on_time(step)
            step += 1  # @step
        return step

    def on_time(self, step):
        time.sleep(0.3)  # @on_time

    def late(self, step):
        time.sleep(0.3)  # @late


@ray.remote(num_cpus=0)
class Silent:
    def hold(self, end):
        sleep = ctypes.PyDLL(None).usleep  # unlike CDLL's, it keeps Python's lock
        while not os.path.exists(end):
            sleep(4_000_000)  # @hold
        return "released"


@ray.remote(num_cpus=0, max_retries=0)
def fail(batch):
    total = sum(batch)
    raise ValueError(f"total {total}")  # @fail


def main(end):
    ray.init(logging_level="ERROR", log_to_driver=False)
    with contextlib.suppress(ValueError):
        ray.get(fail.remote([1, 2]))
    ranks = [Rank.options(scheduling_strategy="SPREAD").remote(rank) for rank in range(3)]
    work = [rank.train.remote(end) for rank in ranks] + [Silent.remote().hold.remote(end)]
    print("working", flush=True)
    print("ended", len(ray.get(work)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
