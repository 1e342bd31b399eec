"""An actor that the kernel kills for memory: it enters the control group whose file is named, and grows."""

import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0)
class Hungry:
    def eat(self, group):
        with open(group, "w") as file:
            file.write("0")
        return b"x" * (1 << 30)


def main(group):
    ray.init(logging_level="ERROR", log_to_driver=False)
    # On the hub's node, which reads the kernel's log itself.
    here = next(n["NodeID"] for n in ray.nodes() if "node:__internal_head__" in n["Resources"])
    hungry = Hungry.options(scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False)).remote()
    try:
        ray.get(hungry.eat.remote(group))
    except ray.exceptions.RayError as error:
        print(type(error).__name__)


main(sys.argv[1])
