"""Nested tasks that hold one of two `sim` each, and wait for tasks that ask for one more."""

from __future__ import annotations

import ray


@ray.remote(resources={"sim": 1})
def inner(x: int) -> int:
    return x


@ray.remote(resources={"sim": 1})
def outer(x: int) -> int:
    return int(ray.get(inner.remote(x))) + 1  # @holds


ray.init(num_cpus=4, resources={"sim": 2})
print(ray.get([outer.remote(x) for x in range(2)]))
