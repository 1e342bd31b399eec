"""An actor that dies once, and that Ray starts again."""

import os

import ray


@ray.remote(max_restarts=1, max_task_retries=1)
class Counter:
    def __init__(self):
        self.process = os.getpid()

    def count(self, number):
        doubled = number * 2  # @count
        return doubled, self.process

    def die(self, flag):
        if not os.path.exists(flag):
            open(flag, "w").close()
            os._exit(1)
        return "alive"


if __name__ == "__main__":
    import sys

    ray.init()
    counter = Counter.remote()
    print("before", ray.get(counter.count.remote(1))[0], flush=True)
    print(ray.get(counter.die.remote(sys.argv[1])), flush=True)
    print("after", ray.get(counter.count.remote(2))[0], flush=True)
