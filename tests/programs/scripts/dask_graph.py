"""Dask on Ray: a graph of delayed calls, run by Ray's workers."""

import dask
import ray
from ray.util.dask import ray_dask_get


@dask.delayed
def load(number):
    return list(range(number))


@dask.delayed
def total(rows):
    added = sum(rows)
    return added  # @total


@dask.delayed
def ratio(totals):
    return totals[-1] / totals[0]  # @fails


if __name__ == "__main__":
    ray.init()
    totals = [total(load(number)) for number in (1, 2, 3)]
    print("totals", dask.compute(*totals, scheduler=ray_dask_get), flush=True)
    print("ratio", ratio([total(load(number)) for number in (0, 1)]).compute(scheduler=ray_dask_get), flush=True)
