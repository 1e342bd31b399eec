"""Every way in which a Ray program's code can fail, each in a worker of its own. The lines that fail wear a mark.

crash_kinds.py KIND...      runs these, one beside the other, and prints what the driver is told of each
"""

import ctypes
import os
import signal
import sys
import threading

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class Unpicklable(Exception):
    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


def look_up(table, key):
    return table[key]  # @missing


@ray.remote(num_cpus=0, max_retries=0)
def chained(rank, secret):
    batch = np.arange(6.0).reshape(2, 3)
    batch[0, 0] = np.nan
    api_key, settings = secret, {"lr": 0.5, "password": secret}
    try:
        look_up({"here": 1}, "missing")
    except KeyError as error:
        raise ValueError(f"bad batch of rank {rank}") from error  # @chained
    return batch, api_key, settings


@ray.remote(num_cpus=0, max_retries=0)
def nested(level):
    depth = level * 10
    if level == 0:
        raise RuntimeError(f"the depth is {depth}")  # @nested
    return ray.get(nested.remote(level - 1))


@ray.remote(num_cpus=0, max_retries=2, retry_exceptions=True)
def retried():
    weight = 0.25
    raise OSError(f"flaky {weight}")  # @retried


@ray.remote(num_cpus=0)
class Machine:
    def __init__(self, wheels, rank=None):
        self.wheels = wheels
        self.rank = rank
        if wheels < 0:
            raise ValueError("less than no wheels")  # @init

    def drive(self, speed):
        return speed / self.wheels  # @method

    def stream(self, count):
        for number in range(count):  # noqa: UP028 - Ray cannot `send` into a range
            yield number
        raise LookupError("the stream broke")  # @actor_stream

    def in_thread(self):
        thread = threading.Thread(target=self.background, args=(41,), name="loader")
        thread.start()
        thread.join()
        return "the thread is over"

    def background(self, number):
        next_number = number + 1
        raise BufferError(f"thread has {next_number}")  # @thread

    def ping(self):
        return "pong"


@ray.remote(num_cpus=0)
class Loop:
    async def method(self, patience):
        raise TimeoutError(f"patience {patience} is over")  # @async_method

    async def stream(self, count):
        for number in range(count):
            yield number
        raise EOFError("the async stream broke")  # @async_stream


@ray.remote(num_cpus=0, max_retries=0)
def stream(count):
    for number in range(count):  # noqa: UP028
        yield number
    raise StopAsyncIteration("the task's stream broke")  # @task_stream


@ray.remote(num_cpus=0, max_retries=0)
def unpicklable():
    environ = dict(os.environ)
    padding = {str(number): "x" * 5000 for number in range(100)}
    raise Unpicklable(f"holds a lock, {len(environ) + len(padding)} values")  # @unpicklable


@ray.remote(num_cpus=0, max_retries=0)
def exits():
    code = 3
    sys.exit(code)  # @exits


@ray.remote(num_cpus=0)
class Faulty:
    def ping(self):
        return "pong"

    def read_null(self):
        ctypes.string_at(0)  # @segfault

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


def head():
    return next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])


def drain(values):
    return [ray.get(value) for value in values]


def begin(kind):
    """What to wait for."""
    spread = {"scheduling_strategy": "SPREAD"}
    match kind:
        case "chained":
            return chained.options(**spread).remote(7, f"hunter{1}-{2**40}")
        case "nested":
            return nested.remote(2)
        case "retried":
            return retried.remote()
        case "init":
            return Machine.remote(-1).ping.remote()
        case "method":
            return Machine.options(**spread).remote(0, rank=5).drive.remote(80)
        case "actor_stream":
            return Machine.remote(4).stream.options(num_returns="streaming").remote(2)
        case "thread":
            return Machine.remote(4).in_thread.remote()
        case "async_method":
            return Loop.remote().method.remote(3)
        case "async_stream":
            return Loop.remote().stream.options(num_returns="streaming").remote(2)
        case "task_stream":
            return stream.options(num_returns="streaming").remote(2)
        case "unpicklable":
            return unpicklable.remote()
        case "exits":
            return exits.remote()
        case "segfault" | "killed":
            # On the hub's node, which reads the log itself: elsewhere another worker must live on to read it.
            here = NodeAffinitySchedulingStrategy(head(), soft=False)
            faulty = Faulty.options(scheduling_strategy=here).remote()
            ray.get(faulty.ping.remote())
            return faulty.read_null.remote() if kind == "segfault" else faulty.die.remote()
    raise AssertionError(kind)


def main(kinds):
    ray.init(logging_level="ERROR", log_to_driver=False)
    waited = {kind: begin(kind) for kind in kinds if kind != "driver"}
    for kind, result in waited.items():
        try:
            value = drain(result) if kind.endswith("stream") else ray.get(result)
            print(f"{kind}: {value}", flush=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the driver is told
            print(f"{kind}: {type(error).__name__}", flush=True)
    print("all kinds have failed", flush=True)
    if "driver" in kinds:
        epoch = 12
        raise ArithmeticError(f"the driver fails in epoch {epoch}")  # @driver


if __name__ == "__main__":
    main(sys.argv[1:])
