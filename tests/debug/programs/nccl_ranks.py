"""Two ranks of an NCCL group, each with a GPU of its own, that train until rank 1 does something else.

nccl_ranks.py FOLDER WHAT. `FOLDER/done` says that it is about to happen.
"""

import os
import socket
import sys
import time
from pathlib import Path

import ray
import torch
import torch.distributed as dist

WORLD = 2


@ray.remote(num_cpus=0, num_gpus=1)
class Trainer:
    def __init__(self, rank):
        self.rank = rank

    def where(self):
        with socket.socket() as free:
            free.bind(("", 0))
            return ray.util.get_node_ip_address(), free.getsockname()[1]

    def train(self, ip, port, folder, what):
        if what == "blocks":
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # then a call waits itself, and not only the GPU
        dist.init_process_group("nccl", f"tcp://{ip}:{port}", world_size=WORLD, rank=self.rank)
        self.pairs = dist.new_group(list(range(WORLD)), group_desc="pairs")
        self.gradients = torch.ones(64, device="cuda")
        for step in range(6 if what == "rests" else 1_000_000):
            odd = step == 5 and self.rank == 1
            if odd:
                (Path(folder) / "done").touch()
            if odd and what != "keeps":
                getattr(self, what)()
            dist.all_reduce(self.gradients)  # @all_reduce: returns at once, the GPU waits
            if odd and what == "keeps":
                self.keeps()
            self.exchange()
            self.gradients.sum().item()  # @item
            time.sleep(0.02)

    def exchange(self):
        """As two stages of a pipeline do."""
        theirs = torch.empty_like(self.gradients)
        ops = [(dist.isend, self.gradients), (dist.irecv, theirs)]
        for work in dist.batch_isend_irecv([dist.P2POp(op, value, 1 - self.rank, self.pairs) for op, value in ops]):
            work.wait()  # @exchange

    def steps(self):
        pass

    def rests(self):
        pass

    def keeps(self):
        time.sleep(3600)  # @keeps

    def sleeps(self):
        time.sleep(3600)  # @sleeps

    def blocks(self):
        time.sleep(3600)  # @blocks

    def crosses(self):
        dist.all_reduce(self.gradients, group=self.pairs)  # @crosses
        self.gradients.sum().item()  # @crossed

    def raises(self):
        raise ValueError("advantages are not finite")  # @raises


def main(folder, what):
    ray.init(logging_level="ERROR", log_to_driver=False)
    ranks = [Trainer.remote(rank) for rank in range(WORLD)]
    ip, port = ray.get(ranks[0].where.remote())
    for work in [each.train.remote(ip, port, folder, what) for each in ranks]:
        ray.get(work)  # one after the other, so that what a later one raises is not seen
    time.sleep(3600)


main(*sys.argv[1:])
