"""A driver that looks for an actor by its name, in the wrong namespace, and tries again and again."""

from __future__ import annotations

import os
import time
from typing import Any

import ray


@ray.remote(num_cpus=0)
class Store:
    def get(self) -> int:
        return 1


def find(name: str) -> Any:
    while True:
        try:
            return ray.get_actor(name)  # @looks
        except ValueError:
            time.sleep(0.2)


ray.init(namespace="mine", **({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 1}))
store = Store.options(name=f"store-{os.getpid()}", namespace="other").remote()  # type: ignore[attr-defined]
ray.get(store.get.remote())
print(ray.get(find(f"store-{os.getpid()}").get.remote()))
