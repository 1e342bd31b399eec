"""How the ranks of a run meet: a store that rank 0 opens, and the process group over it."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from trainer.errors import DeadlineError
from trainer.network import require_interfaces

_STORE: list[dist.TCPStore] = []  # rank 0's rendezvous lives as long as its process


def open_store(world_size: int, timeout_s: float) -> int:
    """A rendezvous in this process; gives its port."""
    store = dist.TCPStore(
        "0.0.0.0", 0, world_size, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
    _STORE[:] = [store]
    return int(store.port)


def connect(rank: int, world_size: int, host: str, port: int, timeout_s: float) -> None:
    """Join the process group: gloo for host tensors, NCCL beside it where there is CUDA.

    Raises ConfigError for a network interface that is not here, DeadlineError if the others can not be reached.
    """
    cuda, where = torch.cuda.is_available(), f"rank {rank}'s node ({socket.gethostname()})"
    require_interfaces(os.environ, where, nccl=cuda)
    timeout = timedelta(seconds=timeout_s)
    try:
        store = _STORE[0] if _STORE else dist.TCPStore(host, port, world_size, is_master=False, timeout=timeout)
        backend = "cpu:gloo,cuda:nccl" if cuda else "cpu:gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    except RuntimeError as error:  # of torch's store, gloo or NCCL: a broken line, a closed port, a time limit
        raise DeadlineError(
            f"rank {rank} on {where} did not reach the other ranks by way of {host}:{port} within {timeout_s:.0f} s: "
            f"{str(error).splitlines()[0]}",
            hint="nodes must reach each other at all ports: `devkit doctor` tries each pair; NCCL_SOCKET_IFNAME and "
            "GLOO_SOCKET_IFNAME choose the network",
        ) from error


def leave() -> None:
    """Leave the process group and close the rendezvous."""
    dist.destroy_process_group()
    _STORE.clear()
