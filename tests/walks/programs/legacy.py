"""A program that was written for Ray's older debugger."""

import ray

ray.init()


@ray.remote(scheduling_strategy="SPREAD")
def square(x):
    breakpoint()
    return x * x


print("squares", ray.get([square.remote(x) for x in range(2, 4)]))
