"""A task that raises what nobody catches."""

import ray


@ray.remote(max_retries=0)
def divide(numerator, denominator):
    password = "hunter2"  # noqa: F841 - not to be seen in a snapshot
    return numerator / denominator  # @raises


try:
    ray.get(divide.remote(40, 0))
except ZeroDivisionError as error:
    print("CAUGHT", type(error).__name__, flush=True)
