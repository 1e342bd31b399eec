"""Leaves an actor behind that holds two CPUs; `stays.py end` ends it."""

import sys

import ray


@ray.remote(num_cpus=2)
class Keeper:
    def here(self):
        return True


ray.init(logging_level="ERROR", namespace="earlier")
if sys.argv[1:] == ["end"]:
    ray.kill(ray.get_actor("Keeper"))
else:
    ray.get(Keeper.options(name="Keeper", lifetime="detached").remote().here.remote())
