"""Ends its Ray while a thread of its own makes garbage of references, each in a cycle."""

import threading

import ray

ray.init(num_cpus=1, include_dashboard=False)
refs = [ray.put(number) for number in range(2_000)]
begun = threading.Event()


def work() -> None:
    while refs:
        cycle: list[object] = [refs.pop()]
        cycle.append(cycle)
        begun.set()
        for _ in range(1_000):
            [[]].clear()


thread = threading.Thread(target=work)
thread.start()
begun.wait()
ray.shutdown()
thread.join()
print("ended in order")
