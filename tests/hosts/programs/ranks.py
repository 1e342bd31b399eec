"""Three ranks, each on a node of its own. The line that the test stops at wears a mark."""

import ray


@ray.remote(num_cpus=1)
class Rank:
    def __init__(self, rank):
        self.rank = rank

    def step(self, value):
        doubled = value * 2
        return doubled + self.rank  # @return


def main():
    ray.init(logging_level="ERROR", log_to_driver=False)
    group = ray.util.placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
    place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    ranks = [Rank.options(scheduling_strategy=place(group, rank)).remote(rank) for rank in range(3)]
    print("got", ray.get([rank.step.remote(20) for rank in ranks]), flush=True)


if __name__ == "__main__":
    main()
