"""A driver that passes its objects to workers, which fill their copies."""

from __future__ import annotations

import ray


@ray.remote
def fill(buffer: list[int], count: int) -> None:
    buffer.extend(range(count))


@ray.remote
def filled(buffer: list[int]) -> list[int]:
    buffer.append(1)
    return buffer


@ray.remote
class Counter:
    def count(self, *, into: dict[str, int]) -> None:
        into["rows"] += 3


def main() -> None:
    ray.init()
    rows: list[int] = []
    ray.get(fill.remote(rows, 64))
    print(len(rows))  # @read
    counter = Counter.options(num_cpus=0).remote()
    totals = {"rows": 0}
    ray.get(counter.count.remote(into=totals))
    print(totals["rows"])  # @totals
    other: list[int] = []
    print(ray.get(filled.remote(other)), len(other))


main()
