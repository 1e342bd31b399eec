"""Three ranks, each on a node of its own, that train until one of them is told to do something wrong.

train.py FOLDER. `FOLDER/do`, "RANK WHAT", names the rank and one of its methods below; `FOLDER/done` says that it is
about to happen, `FOLDER/trains` that all ranks have made some steps.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import ray
import torch
import torch.distributed as dist

WORLD = 3


@ray.remote(num_cpus=1, max_restarts=0)
class Trainer:
    def __init__(self, rank, folder):
        self.rank, self.folder, self.step = rank, Path(folder), 0

    def where(self):
        with socket.socket() as free:
            free.bind(("", 0))
            return ray.util.get_node_ip_address(), free.getsockname()[1]

    def train(self, ip, port):
        (self.folder / f"init{self.rank}").touch()
        dist.init_process_group("gloo", f"tcp://{ip}:{port}", world_size=WORLD, rank=self.rank)  # @init
        self.pairs = dist.new_group(list(range(WORLD)), group_desc="pairs")
        self.gradients = torch.ones(64)
        while True:
            self.step += 1
            if self.step == 3 and self.rank == 0:
                (self.folder / "trains").touch()
            self.forward()
            dist.all_reduce(self.gradients)  # @reduce

    def forward(self):
        time.sleep(0.02)
        try:
            rank, what = (self.folder / "do").read_text().split()
        except (OSError, ValueError):
            return
        if int(rank) == self.rank:
            self.about_to(what)
            getattr(self, what)()

    def about_to(self, what):
        (self.folder / "do").unlink()
        (self.folder / "done").write_text(f"{what} {os.getpid()}")

    def sleeps(self):
        time.sleep(3600)  # @sleeps

    def differs(self):
        dist.broadcast(self.gradients, 1)  # @differs

    def crosses(self):
        dist.all_reduce(self.gradients, group=self.pairs)  # @crosses

    def raises(self):
        raise ValueError("advantages are not finite")  # @raises

    def freezes(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def dies(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def holds(self):
        """A library that waits and does not let Python go on meanwhile."""
        ctypes.PyDLL(None).sleep(3600)  # @holds

    def reads(self):
        path = self.folder / "pipe"
        os.mkfifo(path)
        path.read_text()  # @reads

    def locks(self):
        first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

        def save():
            with second:
                both.wait()
                with first:  # @save_waits
                    pass

        threading.Thread(target=save, name="saver", daemon=True).start()
        with first:
            both.wait()
            second.acquire()  # @main_waits

    def eats(self):
        """Until the kernel ends it."""
        self.eaten = [bytes(range(256)) * 4096 for _ in range(1 << 20)]  # @eats


def main(folder):
    ray.init(logging_level="ERROR")
    nodes = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
    group = ray.util.placement_group([{"CPU": 1, f"node:{ip}": 0.01} for ip in nodes[:WORLD]], strategy="STRICT_SPREAD")
    place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    ranks = [Trainer.options(scheduling_strategy=place(group, rank)).remote(rank, folder) for rank in range(WORLD)]
    ip, port = ray.get(ranks[0].where.remote())
    for work in [each.train.remote(ip, port) for each in ranks]:
        ray.get(work)  # one after the other, so that what a later one raises is not seen


main(*sys.argv[1:])
