"""Ends its Ray while a thread of its own makes garbage of references, each in a cycle."""

import threading

import ray

ray.init(num_cpus=1, include_dashboard=False)
kept = ray.put("a result")
refs = [ray.ObjectRef(kept.binary()) for _ in range(100_000)]
begun, ended = threading.Event(), threading.Event()


def work() -> None:
    while refs and not ended.is_set():
        cycle: list[object] = [refs.pop()]
        cycle.append(cycle)
        begun.set()
        for _ in range(200):
            [[]].clear()


thread = threading.Thread(target=work)
thread.start()
begun.wait()
ray.shutdown()
ended.set()
thread.join()
print("ended in order", len(refs))
