"""Actors that wait for each other, in each way that there is, and beside it without a circle."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import ray


@ray.remote
class Node:
    def meet(self, other: Any) -> None:
        self.other = other

    def ask(self) -> Any:
        time.sleep(0.5)  # until the other one asks, too
        return ray.get(self.other.answer.remote())  # @ask

    def answer(self) -> int:
        return 1


@ray.remote
class Me:
    def meet(self, me: Any) -> None:
        self.me = me

    def outer(self) -> Any:
        return ray.get(self.me.inner.remote())  # @outer

    def inner(self) -> int:
        return 1


@ray.remote
def through(tasker: Any) -> Any:
    return ray.get(tasker.answer.remote())  # @through


@ray.remote
class Tasker:
    def meet(self, me: Any) -> None:
        self.me = me

    def go(self) -> Any:
        return ray.get(through.remote(self.me))  # @go

    def answer(self) -> int:
        return 1


@ray.remote
class Async:
    def meet(self, other: Any) -> None:
        self.other = other

    async def ask(self) -> Any:
        await asyncio.sleep(0.5)
        first, _ = await asyncio.gather(self.other.answer.remote(), self.other.answer.remote())  # @gather
        return first

    async def answer(self) -> int:
        return 1


@ray.remote(concurrency_groups={"io": 1})
class Grouped:
    def meet(self, other: Any) -> None:
        self.other = other

    def ask(self) -> Any:
        time.sleep(0.5)
        return ray.get(self.other.answer.remote())  # @grouped

    @ray.method(concurrency_group="io")
    def answer(self) -> int:
        time.sleep(SLOW)
        return 1


@ray.remote
class Late:
    def step(self, made: int) -> int:
        return made

    def push(self) -> int:
        return 1


@ray.remote
def never() -> int:
    while True:
        time.sleep(1.0)


def behind() -> list[Any]:
    """A call that has its arguments, after one that has not: Ray sends them in turn."""
    late = Late.remote()
    return [late.step.remote(never.remote()), late.push.remote()]


SLOW = 60.0


@ray.remote(max_concurrency=2)
class Wide:
    def meet(self, other: Any) -> None:
        self.other = other

    def ask(self) -> Any:
        time.sleep(0.5)
        return ray.get(self.other.answer.remote())  # @wide

    def answer(self) -> int:
        time.sleep(SLOW)
        return 1


def two(kind: Any, **options: Any) -> list[Any]:
    one, other = kind.options(**options).remote(), kind.options(**options).remote()
    ray.get([one.meet.remote(other), other.meet.remote(one)])
    return [one.ask.remote(), other.ask.remote()]


def with_itself(kind: Any, method: str) -> list[Any]:
    one = kind.remote()
    ray.get(one.meet.remote(one))
    return [getattr(one, method).remote()]


KINDS = {
    "actors": lambda: two(Node),
    "itself": lambda: with_itself(Me, "outer"),
    "task": lambda: with_itself(Tasker, "go"),
    "async": lambda: two(Async, max_concurrency=1),
    "groups": lambda: two(Grouped),
    "wide": lambda: two(Wide),
    "behind": behind,
}

ray.init()
ray.get(KINDS[sys.argv[1]]())
