"""Code of every kind that a breakpoint may be set in. The tests say what is called when."""

import asyncio
import functools
import os
import sys
import threading

import pieces
import ray
import stage


def doubled(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return 2 * function(*arguments)

    return wrapper


class ByValue:
    """Of `__main__`, so workers get it in a pickle."""

    @doubled
    def decorated(self, number):
        return number + 1  # @decorated

    @property
    def value(self):
        return 7  # @property


@ray.remote(num_cpus=0)
class Kinds:
    def decorated(self, number):
        return ByValue().decorated(number)

    def value(self, number):
        return ByValue().value * number

    def generator(self, number):
        def count():
            for each in range(number):
                yield each + 1  # @yield

        return sum(count())

    def coroutine(self, number):
        async def work():
            await asyncio.sleep(0)
            return number + 1  # @await

        return asyncio.run(work())

    def closure(self, number):
        add = pieces.make_adder(number)
        return add(1)

    def lines(self, number):
        total = sum(
            [
                number,
                number + 1,  # @inner
            ]
        )
        return total

    def package(self, number):
        import yaml

        return yaml.safe_load(f"{number}")

    def late(self, number):
        import late

        return late.Late().work(number)

    def loaded(self, name):
        return name in sys.modules

    def environment(self, name):
        return os.environ.get(name)


@ray.remote(num_cpus=0, max_concurrency=10)
class Many:
    def __init__(self):
        self.go_on = True

    def work(self, number):
        return number + 1  # @many

    def loop(self):
        rounds = 0
        while self.go_on:
            rounds += 1  # @running
            threading.Event().wait(0.01)
        return "ended"

    def end(self):
        self.go_on = False


@ray.remote(num_cpus=0)
class Ranked:
    def __init__(self, rank):
        self.rank = rank

    def steps(self, count):
        for step in range(count):
            loss = self.rank + step  # @step
        return loss


@ray.remote(num_cpus=0)
class Early:
    def __init__(self):
        self.ready = True  # @early

    def is_ready(self):
        return self.ready


def main():
    ray.init(logging_level="ERROR")
    stage.serve(sys.argv[1], globals())


if __name__ == "__main__":
    main()
