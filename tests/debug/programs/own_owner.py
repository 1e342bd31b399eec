"""An object outlives the actor that has put it: who asks for it gets nothing."""

from __future__ import annotations

import sys
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


how = sys.argv[1]
ray.init(num_cpus=2)
loader = Loader.remote()  # type: ignore[attr-defined]
parts = ray.get(loader.load.remote())
if how == "later":
    time.sleep(3)
ray.kill(loader)
time.sleep(1)
print(ray.get(use.remote(parts)) if how == "task" else len(ray.get(parts[0])))  # @asks
