"""Rank 0 on the head, ranks 1 and 2 on another node: each fails once, and then stands at its breakpoint()."""

import contextlib

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

HEAD = "node:__internal_head__"


@ray.remote(num_cpus=0)
class Victim:
    def __init__(self, rank):
        self.rank = rank

    def fail(self):
        doubled = self.rank * 2
        raise ValueError(f"rank {doubled // 2} failed")  # @fail

    def stand(self):
        answer = self.rank + 40
        breakpoint()
        return answer  # @stand


def main():
    ray.init(logging_level="ERROR", log_to_driver=False)
    nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: HEAD not in node["Resources"])
    places = [nodes[0], nodes[-1], nodes[-1]]
    victims = [
        Victim.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(rank)
        for rank, node in enumerate(places)
    ]
    for victim in victims:
        with contextlib.suppress(ValueError):
            ray.get(victim.fail.remote())
    for rank, stand in enumerate([victim.stand.remote() for victim in victims]):
        try:
            print(f"rank {rank}: {ray.get(stand)}", flush=True)
        except ray.exceptions.RayActorError:
            print(f"rank {rank}: lost", flush=True)


if __name__ == "__main__":
    main()
