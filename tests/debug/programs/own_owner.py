"""An object outlives the actor that has put it: the task that asks for it gets nothing."""

from __future__ import annotations

import os
import time
from typing import Any

import ray


@ray.remote
class Loader:
    def load(self) -> list[Any]:
        return [ray.put(bytes(1 << 20))]  # @puts


@ray.remote
def use(parts: list[Any]) -> int:
    return len(ray.get(parts[0]))  # @uses


ray.init(**({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 2}))
loader = Loader.remote()  # type: ignore[attr-defined]
parts = ray.get(loader.load.remote())
ray.kill(loader)  # @kills
time.sleep(1)
print(ray.get(use.remote(parts)))
