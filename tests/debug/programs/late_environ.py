"""A driver that sets variables of its environment when Ray has started: workers do not have them."""

from __future__ import annotations

import os

import ray


@ray.remote
class Actor:
    def step(self) -> float:
        return float(os.environ.get("RANK_SCALE", "1.0"))  # @read

    def given(self) -> str:
        return os.environ["GIVEN_TO_ONE"]


@ray.remote
def bonus() -> tuple[bool, str | None]:
    return "BONUS_OF_ALL" in os.environ, os.getenv("SET_BEFORE")  # @task


def main() -> None:
    os.environ["SET_BEFORE"] = "1"
    ray.init()  # @init
    os.environ["RANK_SCALE"] = "0.5"  # @scale
    os.environ.update(BONUS_OF_ALL="3")  # @bonus
    os.environ["GIVEN_TO_ONE"] = "2"
    actor = Actor.options(runtime_env={"env_vars": {"GIVEN_TO_ONE": "2"}}).remote()
    print(ray.get([actor.step.remote(), actor.given.remote(), bonus.remote()]))


main()
