"""Two ranks of a group with a limit of three seconds, one of which fails while the other is in a collective."""

from __future__ import annotations

import socket
from datetime import timedelta

import ray


@ray.remote(num_cpus=0)
class Trainer:
    def fit(self, rank, port):
        import torch
        import torch.distributed as dist

        where = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", where, world_size=2, rank=rank, timeout=timedelta(seconds=3))
        dist.all_reduce(torch.ones(2))
        if rank == 1:
            raise ValueError("rows of 17 and 16 tokens")  # @falls
        dist.all_reduce(torch.ones(2))


ray.init(num_cpus=1)
with socket.create_server(("127.0.0.1", 0)) as free:
    PORT = free.getsockname()[1]
ranks = [Trainer.remote() for _ in range(2)]
ray.wait([each.fit.remote(rank, PORT) for rank, each in enumerate(ranks)], num_returns=2)
