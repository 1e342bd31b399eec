"""An actor that waits for processes which it has forked, and which can never go on.

lock  they want a lock that another thread held when they were forked
ray   they ask Ray for something
"""

import multiprocessing
import os
import sys
import threading
import time

import ray


class Writer:
    def __init__(self):
        self.guard = threading.Lock()

    def add(self, value):
        with self.guard:  # @lock
            return value

    def flush(self):
        while True:
            with self.guard:  # @takes
                time.sleep(0.3)
            time.sleep(0.001)


@ray.remote(num_cpus=0)
class Store:
    def get(self):
        return 1


@ray.remote(num_cpus=0)
class Owner:
    def run(self, how):
        writer, store = Writer(), Store.remote()
        threading.Thread(target=writer.flush, name="flusher", daemon=True).start()
        time.sleep(0.1)
        context = multiprocessing.get_context("fork")
        done = context.SimpleQueue()
        work = {"lock": lambda: writer.add(1), "ray": lambda: ray.get(store.get.remote())}[how]  # @ray
        for _ in range(2):
            context.Process(target=lambda: done.put(work()), daemon=True).start()  # @fork
        return done.get()  # @waits


ray.init(**({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 1}))
ray.get(Owner.remote().run.remote(sys.argv[1]))
