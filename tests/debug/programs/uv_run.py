"""A program that is started by `uv run`, whose workers Ray starts in the same way."""

import os

import ray


@ray.remote(num_cpus=0)
class Worker:
    def work(self):
        depth = os.environ.get("UV_RUN_RECURSION_DEPTH")
        return depth  # @uv


ray.init(logging_level="ERROR")
print("depth", ray.get(Worker.remote().work.remote()), flush=True)
