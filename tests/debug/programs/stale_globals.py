"""A driver that adapts what its tasks and actors read: they have it as it was at their first call."""

from __future__ import annotations

import ray

COEFFICIENT = 0.1
LIMITS = {"low": 1, "high": 9}
SAME = "as it was"
COUNT = 0
API_KEY = "sk-first-secret-000"


def penalty(kl: float) -> float:
    return COEFFICIENT * kl


@ray.remote
def loss(kl: float) -> tuple[float, str, int]:
    return penalty(kl), SAME, len(API_KEY)


@ray.remote
class Clipper:
    def clip(self, value: int) -> int:
        global COUNT
        COUNT += 1
        return min(max(value, LIMITS["low"]), LIMITS["high"])


def main() -> None:
    global COEFFICIENT, API_KEY, COUNT
    ray.init()
    clipper = Clipper.remote()  # @made
    for step in range(3):
        print(ray.get([loss.remote(2.0), clipper.clip.remote(20)]))  # @sent
        COEFFICIENT, LIMITS["high"], API_KEY, COUNT = COEFFICIENT * 2, 10 + step, "sk-second-secret-000", 7


main()
