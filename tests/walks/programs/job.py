"""The program of the tutorial: workers that know nothing of a debugger."""

import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, rank):
        self.rank = rank

    def step(self, k):
        if k < 0:
            raise ValueError("never")
        loss = 1 / (k + 1)
        return loss * self.rank  # @update


ray.init(include_dashboard=False if "--no-dashboard" in sys.argv else None)
nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
# "SPREAD" is no promise.
on = [NodeAffinitySchedulingStrategy(nodes[rank % len(nodes)], soft=False) for rank in range(2)]
workers = [Worker.options(scheduling_strategy=on[rank]).remote(rank) for rank in range(2)]
print([ray.get([worker.step.remote(k) for worker in workers]) for k in range(4)])
