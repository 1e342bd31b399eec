"""Every kind of place in a Ray program that calls `breakpoint()`. The tests of stops say what is called when."""

import asyncio
import multiprocessing
import os
import sys
import threading

import children
import ray
import stage


@ray.remote(num_cpus=0)
def task(number):
    doubled = number * 2
    breakpoint()  # @task
    return doubled


@ray.remote(num_cpus=0)
def generate(count):
    for number in range(count):
        breakpoint()  # @generator
        yield number


@ray.remote(num_cpus=0)
class Plain:
    def stop(self, number):
        doubled = number * 2
        breakpoint()  # @plain
        return doubled

    def fail(self, number):
        return {}["missing"] + number  # @fail

    def in_thread(self):
        thread = threading.Thread(target=own_thread, name="mine")
        thread.start()
        thread.join()

    def in_child(self, method):
        """The child's exit code: what it returned."""
        child = multiprocessing.get_context(method).Process(target=children.leave, args=(40,))
        child.start()
        child.join()
        return child.exitcode

    def tracing(self):
        """Whether anything is left of a debugger: trace functions, and tools of `sys.monitoring`."""
        monitoring = getattr(sys, "monitoring", None)
        tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
        left = [tool for tool in tools if tool not in (None, "devkit-raising")]  # which counts, stop or no stop
        return [sys.gettrace() is not None, threading.gettrace() is not None, left]

    def ping(self):
        return os.getpid()  # @ping


@ray.remote(num_cpus=0, max_concurrency=4)
class Threaded(Plain.__ray_metadata__.modified_class):
    pass


@ray.remote(num_cpus=0)
class Async:
    async def stop(self, number):
        doubled = number * 2
        await asyncio.sleep(0)
        breakpoint()  # @async
        return doubled

    async def ping(self):
        return "pong"


def own_thread():
    breakpoint()  # @thread


def main():
    ray.init(logging_level="ERROR", log_to_driver=False)
    stage.serve(sys.argv[1], globals())


if __name__ == "__main__":
    main()
