"""The actor's weights over NCCL to an engine on another GPU. Needs two GPUs; CI has none.

    pytest tests/gpu/test_bridge.py -m gpu -s

prints the seconds of a 7B-shaped update beside a plain broadcast of the same bytes.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from trainer import rendezvous
from trainer.errors import WeightMismatch
from trainer.rollout.bridge import Bridge, Kind
from trainer.spec import BridgeEnd

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.timeout(300),
]

BUCKET = 512 * 2**20
# Qwen2.5-7B, by shape: embeddings, head, and 28 layers. docs/results/weight_sync.md has the same.
LAYER = ((3584, 3584), (512, 3584), (512, 3584), (3584, 3584), (18944, 3584), (18944, 3584), (3584, 18944), (3584,))
SHAPES = [(152064, 3584), *(LAYER * 28), (3584,), (152064, 3584)]


class Damaging(Bridge):
    """Changes one number of what it sends after it was summed up."""

    def _broadcast(self, group: Any, tensor: torch.Tensor) -> None:
        if tensor.is_cuda:
            tensor[len(tensor) // 2] += 1
        super()._broadcast(group, tensor)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def end_main(rank: int, port: int, case: Callable[[Bridge, int, Kind], None]) -> None:
    torch.cuda.set_device(rank)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", port, 2, is_master=True, wait_for_workers=False)
        rendezvous._STORES[port] = store
    kind = Damaging if case is damaged and rank == 0 else Bridge
    bridge = kind(BridgeEnd("127.0.0.1", port, rank, 2, 120.0))
    case(bridge, rank, Kind(torch.device("cuda", rank), torch.bfloat16, BUCKET))
    torch.cuda.synchronize()


def made_up(device: torch.device) -> dict[str, torch.Tensor]:
    dice = torch.Generator(device).manual_seed(3)
    return {
        str(number): torch.randn(shape, generator=dice, device=device, dtype=torch.bfloat16)
        for number, shape in enumerate(SHAPES)
    }


def arrives(bridge: Bridge, rank: int, kind: Kind) -> None:
    weights = made_up(kind.device)
    if rank == 0:
        bridge.await_receivers()
        bridge.send(iter(weights.items()), kind)
        return
    names = []
    for name, tensor in bridge.receive(kind):
        assert torch.equal(tensor, weights[name])
        names.append(name)
    bridge.require_whole(rank)
    assert names == list(weights)


def damaged(bridge: Bridge, rank: int, kind: Kind) -> None:
    weights = {"a": torch.zeros(1000, 7), "b": torch.ones(5)}
    if rank == 0:
        bridge.await_receivers()
        bridge.send(iter(weights.items()), kind)
        return
    assert len(list(bridge.receive(kind))) == 2
    with pytest.raises(WeightMismatch, match=r"did not reach rank 1 as they were sent: a$"):
        bridge.require_whole(1)


def timed(bridge: Bridge, rank: int, kind: Kind) -> None:
    weights = made_up(kind.device)
    size = sum(tensor.numel() * 2 for tensor in weights.values())
    flat_N = torch.empty(BUCKET // 2, dtype=torch.bfloat16, device=kind.device)
    taken: dict[str, list[float]] = {"bridge": [], "plain": []}
    for _ in range(5):
        taken["bridge"].append(seconds(lambda: update(bridge, rank, kind, weights)))
        taken["plain"].append(seconds(lambda: plain(bridge, flat_N, size)))
    if rank == 1:
        ours, floor = (statistics.median(taken[name][1:]) for name in ("bridge", "plain"))
        print(
            f"\n{size / 2**30:.1f} GiB: a bridge {ours:.3f} s, plain broadcasts {floor:.3f} s, {ours / floor:.2f} times"
        )


def update(bridge: Bridge, rank: int, kind: Kind, weights: dict[str, torch.Tensor]) -> None:
    if rank == 0:
        bridge.await_receivers()
        bridge.send(iter(weights.items()), kind)
    else:
        for _ in bridge.receive(kind):
            pass
        bridge.require_whole(rank)


def plain(bridge: Bridge, flat_N: torch.Tensor, size: int) -> None:
    for _ in range(-(-size // BUCKET)):
        bridge._groups["cuda"].broadcast(flat_N, 0).wait()


def seconds(act: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    act()
    torch.cuda.synchronize()
    return time.perf_counter() - began


@pytest.mark.parametrize("case", [arrives, damaged, timed])
def test_between_two_gpus(case: Callable[..., None]) -> None:
    mp.spawn(end_main, (free_port(), case), nprocs=2)
