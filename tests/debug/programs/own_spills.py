"""An actor keeps more than the object store has room for: it goes to the disk, and comes back."""

from __future__ import annotations

import numpy as np
import ray

MIB = 1 << 20


@ray.remote
class Loader:
    def __init__(self) -> None:
        self.kept: list[ray.ObjectRef] = []

    def load(self) -> None:
        for number in range(100_000):
            self.kept.append(ray.put(np.full(8 * MIB, number % 250, dtype=np.uint8)))  # @puts
            if len(self.kept) > 40:
                self.kept.pop(0)


ray.init(num_cpus=1, object_store_memory=100 * MIB)
ray.get(Loader.remote().load.remote())  # type: ignore[attr-defined]
