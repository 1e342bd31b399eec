"""How ranks meet: a store that the first of them opens, and the process group over it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from trainer.errors import DeadlineError
from trainer.network import require_interfaces

_STORES: dict[int, dist.TCPStore] = {}  # by port: those of this process live as long as it does


def open_store(world_size: int, timeout_s: float) -> int:
    """A rendezvous in this process; gives its port."""
    store = dist.TCPStore(
        "0.0.0.0", 0, world_size, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
    _STORES[store.port] = store
    return int(store.port)


def store_at(host: str, port: int, world_size: int, timeout: timedelta) -> dist.TCPStore:
    """The rendezvous there, which may be this process's own."""
    own = _STORES.get(port)
    return own or dist.TCPStore(host, port, world_size, is_master=False, timeout=timeout)


def connect(rank: int, world_size: int, host: str, port: int, timeout_s: float) -> None:
    """Join the process group: gloo for host tensors, NCCL beside it where there is CUDA.

    Raises ConfigError for a network interface that is not here, DeadlineError if the others can not be reached.
    """
    cuda = torch.cuda.is_available()
    require_interfaces(os.environ, f"rank {rank}'s node ({socket.gethostname()})", nccl=cuda)
    timeout = timedelta(seconds=timeout_s)
    with in_time(f"rank {rank}", host, port, timeout_s):
        store = store_at(host, port, world_size, timeout)
        backend = "cpu:gloo,cuda:nccl" if cuda else "cpu:gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


@contextmanager
def in_time(who: str, host: str, port: int, timeout_s: float) -> Iterator[None]:
    """Makes a DeadlineError of what torch raises when the others can not be reached."""
    try:
        yield
    except RuntimeError as error:  # of torch's store, gloo or NCCL: a broken line, a closed port, a time limit
        raise DeadlineError(
            f"{who} on {socket.gethostname()} could not reach the other ranks at {host}:{port} within "
            f"{timeout_s:.0f} s: {str(error).splitlines()[0]}",
            hint="nodes must reach each other on all ports: `devkit doctor` tests each pair; NCCL_SOCKET_IFNAME and "
            "GLOO_SOCKET_IFNAME choose the network",
        ) from error


def leave() -> None:
    """Leave the process group and close the rendezvous."""
    dist.destroy_process_group()
    _STORES.clear()
