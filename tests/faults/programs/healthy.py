"""Three ranks that train for a while, each step of which may take long in one of the ways that are no hang.

healthy.py WAY SECONDS
"""

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time

import ray
import torch
import torch.distributed as dist

WORLD = 3
LONG = 6.0  # seconds: longer than the watchdog's patience


def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.ones(64, 64) @ torch.ones(64, 64)


@ray.remote(num_cpus=1)
class Trainer:
    def __init__(self, rank):
        self.rank, self.step = rank, 0

    def where(self):
        return ray.util.get_node_ip_address()

    def train(self, ip, way, seconds):
        dist.init_process_group("gloo", f"tcp://{ip}:29555", world_size=WORLD, rank=self.rank)
        end = time.monotonic() + seconds
        more = torch.ones(1)
        while more.item() > 0:
            self.step += 1
            getattr(self, way)()
            more = torch.tensor([float(time.monotonic() < end)])
            dist.all_reduce(more, dist.ReduceOp.MIN)
        return self.step

    def steady(self):
        compute(0.05)

    def uneven(self):
        compute(0.05 + 0.5 * self.rank)

    def straggles(self):
        """One rank works for long while the others wait."""
        compute(LONG if self.rank == 1 and self.step % 2 else 0.1)

    def saves(self):
        """Rank 0 writes while the others wait."""
        if self.rank == 0 and self.step % 3 == 1:
            with tempfile.TemporaryFile() as file:
                for _ in range(200):
                    file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
        compute(0.05)

    def loads(self):
        """A loader that is late now and then."""
        ready = queue.Queue()
        threading.Thread(target=lambda: (time.sleep(1.0), ready.put(1)), daemon=True).start()
        ready.get()

    def builds(self):
        """A compiler that a rank has started, while it waits for it."""
        if self.rank == 2 and self.step % 3 == 1:
            work = f"import time; end = time.time() + {LONG}\nwhile time.time() < end: pass"
            subprocess.run([sys.executable, "-c", work], check=True)
        compute(0.05)


def main(way, seconds):
    ray.init(logging_level="ERROR")
    group = ray.util.placement_group([{"CPU": 1}] * WORLD, strategy="STRICT_SPREAD")
    place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    ranks = [Trainer.options(scheduling_strategy=place(group, rank)).remote(rank) for rank in range(WORLD)]
    ip = ray.get(ranks[0].where.remote())
    print("steps", ray.get([each.train.remote(ip, way, float(seconds)) for each in ranks]), flush=True)


main(*sys.argv[1:])
