"""Starts a Ray of its own; what is wrong shows in the values that a line looks at, in the way that its word says."""

import asyncio
import os
import sys

import ray


@ray.remote(num_cpus=0)
class Store:
    def __init__(self):
        self.version = 1
        self.changed = asyncio.Condition()

    async def fetch(self, wanted):
        async with self.changed:
            await self.changed.wait_for(lambda: self.version >= wanted)  # @predicate


@ray.remote(num_cpus=0)
class Packer:
    def __init__(self):
        self.rows = list(range(40))

    def pack(self, room):
        packed = []
        while len(packed) < len(self.rows):
            packed += [row for row in self.rows if row < room and row not in packed]  # @spins
        return packed


class Settings(dict):
    __getattr__ = dict.get


@ray.remote(num_cpus=0)
class Reader:
    def read(self, path, settings):
        return path


def predicate():
    ray.get(Store.remote().fetch.remote(118))


def spins():
    ray.get(Packer.remote().pack.remote(30))


def arrives():
    settings = Settings(shuffle=True)
    vars(settings)["frozen"] = True
    ray.get(Reader.remote().read.remote("train.parquet", settings))


ray.init(**({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 1, "include_dashboard": False}))
globals()[sys.argv[1]]()
