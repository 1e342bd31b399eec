"""A task that fails, and a driver that hears of it and waits for a line."""

import ray

ray.init()


@ray.remote
def pick(x):
    return ["only"][x]


try:
    ray.get(pick.remote(41))
except IndexError:
    print("it failed", flush=True)
input()
