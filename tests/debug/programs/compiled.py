"""A compiled graph of Ray."""

import sys

import ray
from ray.dag import DAGContext, InputNode  # before ray.init: it has read its limits
from stage import serve


@ray.remote
class Adder:
    def add(self, number):
        return number + 1  # @add


if __name__ == "__main__":
    ray.init(address="auto", log_to_driver=False)
    actor = Adder.remote()
    with InputNode() as number:
        graph = actor.add.bind(number)
    compiled = graph.experimental_compile()
    limits = [DAGContext.get_current().get_timeout, DAGContext.get_current().submit_timeout]
    serve(sys.argv[1], globals())
    compiled.teardown()
