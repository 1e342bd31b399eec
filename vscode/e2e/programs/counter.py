"""An actor that stops by its own `breakpoint()`."""

import ray


@ray.remote
class Counter:
    def __init__(self):
        self.total = 40

    def add(self, number):
        batch = {"number": number, "twice": [number, number]}
        breakpoint()  # @pause
        self.total += number  # @next
        return self.total + len(batch["twice"])  # @last


counter = Counter.remote()
print("RESULT", ray.get(counter.add.remote(21)), flush=True)
