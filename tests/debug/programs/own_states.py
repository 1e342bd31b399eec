"""Starts a Ray of its own, and stands still by what its actors and functions keep, in the way that its word says."""

import asyncio
import json
import os
import sys
import time
from collections import deque

import ray


@ray.remote(num_cpus=0)
class Budgeted:
    """Its first request needs more than there is, and the others wait behind it."""

    def __init__(self):
        self.most, self.used, self.waiting = 1024, 0, deque()

    async def generate(self, need):
        done = asyncio.Event()
        self.waiting.append((need, done))
        await done.wait()  # @budget
        return need

    async def run(self):
        while True:
            while self.waiting and self.used + self.waiting[0][0] <= self.most:
                self.waiting.popleft()[1].set()
            await asyncio.sleep(0.02)


@ray.remote(num_cpus=0)
class Asked:
    """Looks for its replies by a text where it has kept numbers."""

    def __init__(self):
        self.futures = {}

    async def generate(self, rid):
        future = asyncio.get_running_loop().create_future()
        self.futures[rid] = future
        return await future  # @replies

    async def listen(self):
        while True:
            for rid, text in json.loads('{"7": "seven"}').items():
                reply = self.futures.get(rid)
                if reply is not None:
                    reply.set_result(text)
            await asyncio.sleep(0.05)


@ray.remote(num_cpus=0)
class Sampler:
    def sample(self, row):
        return row


def budget():
    engine = Budgeted.remote()
    engine.run.remote()
    ray.get([engine.generate.remote(need) for need in (1036, 1036)])


def replies():
    asked = Asked.remote()
    asked.listen.remote()
    ray.get([asked.generate.remote(rid) for rid in (7, 8)])


def asks():
    sampler = Sampler.remote()
    rows, under_way = {}, [sampler.sample.remote(row) for row in range(3)]
    while len(rows) < 9:
        ready, _ = ray.wait(under_way, num_returns=1, timeout=1.0)
        rows |= dict.fromkeys(ray.get(ready), True)
        time.sleep(0.02)  # @asks


if __name__ == "__main__":
    ray.init(**({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 2}))
    globals()[sys.argv[1]]()
