"""The shape of verl's `main_ppo`: Ray with a runtime_env of its own, and a remote runner that makes the workers.

verl_main.py         two workers, in a Ray of its own
verl_main.py NNODES  a worker on each of so many nodes of the cluster that runs
"""

import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(num_cpus=0)
class ActorRolloutRefWorker:
    def __init__(self, rank):
        self.rank = rank

    def update_actor(self, step):
        loss = 1.0 / (step + self.rank + 1)
        return {"actor/pg_loss": loss}  # @update


@ray.remote(num_cpus=1)
class TaskRunner:
    def run(self, config):
        group = placement_group([{"CPU": 1}] * config["n"], strategy=config["strategy"])
        ray.get(group.ready())
        workers = [
            ActorRolloutRefWorker.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
                name=f"worker_{rank}",
            ).remote(rank)
            for rank in range(config["n"])
        ]
        for step in range(3):
            print("step", step, ray.get([worker.update_actor.remote(step) for worker in workers]))


def main(nnodes=None):
    if not ray.is_initialized():
        env = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "VLLM_LOGGING_LEVEL": "WARN"}
        ray.init(runtime_env={"env_vars": env}, num_cpus=None if nnodes else 4)
    runner = TaskRunner.remote()
    ray.get(runner.run.remote({"n": nnodes or 2, "strategy": "STRICT_SPREAD" if nnodes else "PACK"}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
