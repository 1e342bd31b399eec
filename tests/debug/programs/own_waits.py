"""Starts a Ray of its own, and waits for what does not come, in the way that its word says."""

import asyncio
import fcntl
import os
import queue as std_queue
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path

import ray
from ray.util.queue import Queue

FOLDER = Path(tempfile.mkdtemp())
LOCK = FOLDER / "cache.lock"


def warm_cache():
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # @hook


@ray.remote(num_cpus=0)
class Env:
    def step(self):
        return {}["reward"]  # @retries


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Engine:
    def __init__(self):
        os._exit(1)  # @restarts

    def generate(self):
        return "text"


@ray.remote(num_cpus=0)
class Rollout:
    @ray.method(num_returns="streaming")
    def stream(self, rows):
        for row in range(rows):  # noqa: UP028 - Ray uses `send`, which a range has not
            yield row

    def stats(self):
        return 1


@ray.remote(num_cpus=0)
def produce(queue):
    for row in range(9):
        queue.put(row)  # @queue


@ray.remote(num_cpus=0)
class Manager:
    async def report(self, value):
        pass

    async def run(self, scorer):
        return ray.get(scorer.remote(ray.get_runtime_context().current_actor))  # @coroutine


@ray.remote(num_cpus=0)
def score(manager):
    ray.get(manager.report.remote(1))


@ray.remote(num_cpus=0)
class Loader:
    def __init__(self):
        self.ready = std_queue.Queue()
        self.thread = threading.Thread(target=self.fill, name="prefetch", daemon=True)
        self.thread.start()

    def fill(self):
        self.ready.put(1)

    def next(self):
        return self.ready.get()  # @thread


@ray.remote(num_cpus=0)
class Server:
    def __init__(self):
        self.version = asyncio.Event()

    async def update(self):
        raise KeyError("grad_norm")  # @task

    async def wait(self):
        self.loop_task = asyncio.get_running_loop().create_task(self.update())
        await self.version.wait()


def thread():
    loader = Loader.remote()
    ray.get([loader.next.remote() for _ in range(2)])


def task():
    ray.get(Server.remote().wait.remote())


def coroutine():
    ray.get(Manager.remote().run.remote(score))


def retries():
    env = Env.remote()
    while True:
        try:
            return ray.get(env.step.remote())
        except KeyError:
            time.sleep(0.2)


@ray.remote(num_cpus=0)
class Client:
    def __init__(self):
        self.permits = asyncio.Semaphore(2)

    async def score(self, text):
        await self.permits.acquire()  # @permits
        if not text:
            return 0.0
        await asyncio.sleep(0.1)
        self.permits.release()
        return 1.0


@ray.remote(num_cpus=0)
def check(text):
    if not text:
        raise ValueError("no text")


@ray.remote(num_cpus=0)
class Episodes:
    def __init__(self):
        self.slots = asyncio.Semaphore(1)

    async def run(self, text):
        await self.slots.acquire()  # @leaks
        await check.remote(text)
        self.slots.release()

    async def generate(self, texts):
        await asyncio.gather(*map(self.run, texts), return_exceptions=True)


@ray.remote(num_cpus=0)
class Streamer:
    def __init__(self):
        self.running, self.version = True, 0

    def stop(self):
        self.running = False

    def set_weights(self, version):
        self.version = version

    def run(self):
        while self.running:
            sum(range(10_000))
            time.sleep(0.05)  # @behind


@ray.remote(num_cpus=0)
class Hub:
    def __init__(self):
        self.closing = asyncio.Event()

    async def run(self):
        while not self.closing.is_set():
            await asyncio.sleep(0.2)

    async def flush(self):
        return 0

    async def close(self):
        self.closing.set()


@ray.remote(num_cpus=0)
class Store:
    def lookup(self, key):
        return {"b": 1}[key]

    def fetch(self, key):
        while True:
            try:
                return self.lookup(key)
            except KeyError:
                time.sleep(300)  # @handles


@ray.remote(num_cpus=0, max_concurrency=2)
class Meeting:
    def __init__(self):
        self.barrier = threading.Barrier(3)

    def arrive(self):
        self.barrier.wait()  # @barrier


@ray.remote(num_cpus=0)
class Weights:
    def __init__(self):
        self.lock = asyncio.Lock()

    async def publish(self, engine):
        async with self.lock:
            await engine.update.remote(ray.get_runtime_context().current_actor)

    async def fetch(self):
        async with self.lock:  # @lock
            return 1


@ray.remote(num_cpus=0)
class Replica:
    def update(self, weights):
        return ray.get(weights.fetch.remote())


@ray.remote(num_cpus=0)
class Board:
    def __init__(self):
        self.version = 0

    def get(self):
        return self.version


@ray.remote(num_cpus=0)
class Collector:
    def collect(self, board):
        while True:
            version = ray.get(board.get.remote())
            if version >= 1:
                return version
            time.sleep(0.5)  # @polls


@ray.remote(num_cpus=0)
class Learner:
    def train(self, batch):
        return batch

    def publish(self):
        return 1


@ray.remote(num_cpus=0)
class Judge:
    async def score(self, text):
        time.sleep(0.4)  # @blocks
        return len(text)


@ray.remote(num_cpus=0)
class Launcher:
    def launch(self):
        threading.Event().wait()  # @argument


@ray.remote(num_cpus=0)
class Scorer:
    def __init__(self, address):
        self.address = address

    def score(self):
        return self.address


def argument():
    """An actor that waits for an argument of its `__init__`."""
    launcher = Launcher.remote()
    ray.get(Scorer.remote(launcher.launch.remote()).score.remote())


def permits():
    client = Client.remote()
    ray.get([client.score.remote("") for _ in range(2)])  # Ray may begin an async actor's calls in any order
    ray.get([client.score.remote(text) for text in "abcd"])


def leaks():
    ray.get(Episodes.remote().generate.remote(["", "a", "b"]))


def behind():
    streamers = [Streamer.remote() for _ in range(2)]
    running = [each.run.remote() for each in streamers]
    ray.get([each.set_weights.remote(1) for each in streamers])
    del running


def joined():
    hub = Hub.remote()
    refs = [hub.flush.remote(), hub.run.remote()]
    ray.wait(refs, num_returns=len(refs))  # @joined
    ray.get(hub.close.remote())


async def control():
    results = [await check.remote("a")]
    while len(results) < 8:
        await asyncio.sleep(0.05)  # @drives


def drives():
    asyncio.run(control())


def handles():
    ray.get(Store.remote().fetch.remote("a"))


def barrier():
    meeting = Meeting.remote()
    ray.get([meeting.arrive.remote() for _ in range(3)])


def lock():
    ray.get(Weights.remote().publish.remote(Replica.remote()))


def polls():
    learner = Learner.remote()
    trained = learner.train.remote(Collector.remote().collect.remote(Board.remote()))
    ray.get([learner.publish.remote(), trained])


def blocks():
    judge = Judge.remote()
    ray.get([judge.score.remote("x") for _ in range(1000)])


def restarts():
    ray.get(Engine.remote().generate.remote())


def hook():
    ray.get(produce.remote(None))


def command():
    launcher = FOLDER / "launcher"
    launcher.write_text("#!/bin/sh\necho 'error: no such package' >&2\nexit 1\n")
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    ray.get(produce.options(runtime_env={"py_executable": str(launcher)}).remote(None))


def queue():
    ray.get(produce.remote(Queue(maxsize=2, actor_options={"num_cpus": 0})))


def stream():
    rollout = Rollout.remote()
    refs = rollout.stream.options(_generator_backpressure_num_objects=2).remote(20)
    print(ray.get(next(refs)))
    ray.get(rollout.stats.remote())  # @stream


def lists():
    rollout = Rollout.options(name="rollout-0", namespace="serving").remote()
    ray.get(rollout.stats.remote())
    while not ray.util.list_named_actors():  # @lists
        time.sleep(0.2)


def main(how):
    held = LOCK.open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    environment = {"worker_process_setup_hook": warm_cache} if how == "hook" else {}
    own = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 2, "object_store_memory": 100 * 1024**2}
    ray.init(namespace="trainer", runtime_env=environment, **own)
    globals()[how]()


if __name__ == "__main__":
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    main(sys.argv[1])
