"""Graders that share a queue; a process has ended while it had the turn to read from it."""

from __future__ import annotations

import multiprocessing
import os

import ray

context = multiprocessing.get_context("fork")


def grade(items, results):
    while True:
        results.put(items.get() ** 2)  # @turn


@ray.remote(num_cpus=0)
class Pool:
    def grade(self):
        items, results = context.Queue(), context.Queue()
        taking = context.Process(target=items._rlock.acquire, daemon=True)  # as a grader that waits for an item
        taking.start()
        taking.join()
        graders = [context.Process(target=grade, args=(items, results), daemon=True) for _ in range(3)]
        for grader in graders:
            grader.start()
        items.put(3)
        return results.get()  # @waits


ray.init(**({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 1}))
print(ray.get(Pool.remote().grade.remote()))
