"""Ranks that make a group as the environment says; one of them stays away, comes as a rank that is taken, or receives
with another tag than is sent with."""

from __future__ import annotations

import os
import socket
import sys
import time

import ray


@ray.remote(num_cpus=0)
class Trainer:
    def join(self, rank, port):
        import torch.distributed as dist

        os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo")  # @meets

    def transfer(self, rank):
        import torch
        import torch.distributed as dist

        if rank == 0:
            dist.send(torch.zeros(4), 1, tag=2)  # @sends
        else:
            dist.recv(torch.zeros(4), 0, tag=1)  # @receives

    def load(self):
        time.sleep(3600)  # @away


ray.init(**({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 1}))
with socket.create_server(("127.0.0.1", 0)) as free:
    PORT = free.getsockname()[1]
first, second, third = (Trainer.remote() for _ in range(3))
if sys.argv[1] == "tags":
    ranks = [first, second, third]
    ray.get([each.join.remote(rank, PORT) for rank, each in enumerate(ranks)])
    ray.get([each.transfer.remote(rank) for rank, each in enumerate(ranks[:2])])
calls = [first.join.remote(0, PORT), second.join.remote(1, PORT)]
calls.append(third.load.remote() if sys.argv[1] == "away" else third.join.remote(1, PORT))
ray.get(calls)
