"""The actor's weights on their way to engines on other devices: from its first rank to every rank with an engine.

Bucket by bucket, by NCCL between GPUs and by gloo between CPUs, never the whole model at once. Before each bucket goes
what is in it, with a checksum of each tensor that the receiver computes anew. The two sides are worlds of their own
(`trainer.teams`), so the bridge has process groups beside theirs.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.errors import WeightMismatch
from trainer.rendezvous import in_time, store_at
from trainer.rollout.sums import Sums, pending_sums, results
from trainer.spec import BridgeEnd

SENDER = 0
NAMED = 3  # tensors that an error tells


@dataclass(frozen=True)
class Parcel:
    """One tensor of a bucket, as it was sent."""

    name: str
    shape: tuple[int, ...]
    sums: Sums

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Kind:
    """What travels: tensors of one type, in buckets of at most so many bytes where one tensor is not more."""

    device: torch.device
    dtype: torch.dtype
    bucket_bytes: int


class Bridge:
    """One end of it. All ends walk through `await_receivers` and `send`, or `receive`, together."""

    def __init__(self, end: BridgeEnd) -> None:
        """Waits for the other ends. Raises DeadlineError if they can not be reached."""
        self._damaged: list[str] = []
        timeout = timedelta(seconds=end.timeout_s)
        with in_time(f"end {end.rank} of the bridge", end.host, end.port, end.timeout_s):
            self._store = store_at(end.host, end.port, end.size, timeout)
            self._host = dist.ProcessGroupGloo(dist.PrefixStore("host", self._store), end.rank, end.size, timeout)
            self._groups: dict[str, Any] = {"cpu": self._host}
            if torch.cuda.is_available():
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timeout
                beside = dist.PrefixStore("device", self._store)
                self._groups["cuda"] = dist.ProcessGroupNCCL(beside, end.rank, end.size, options)

    def await_receivers(self) -> None:
        """On the actor's first rank, before it sends."""
        self._groups["cpu"].barrier().wait()

    def send(self, tensors: Iterable[tuple[str, Tensor]], kind: Kind) -> None:
        """On the actor's first rank."""
        for bucket in buckets(tensors, kind):
            sums = results([pending_sums(tensor) for _, tensor in bucket])
            parcels = [Parcel(name, tuple(t.shape), each) for (name, t), each in zip(bucket, sums, strict=True)]
            self._announce(parcels)
            self._broadcast(self._groups[kind.device.type], torch.cat([t.reshape(-1) for _, t in bucket]))
        self._announce([])

    def receive(self, kind: Kind) -> Iterator[tuple[str, Tensor]]:
        """What was sent. Walk to the end of it, then ask `require_whole`."""
        self._damaged = []
        self._groups["cpu"].barrier().wait()
        while parcels := self._announced():
            flat_N = torch.empty(sum(each.elements for each in parcels), dtype=kind.dtype, device=kind.device)
            self._broadcast(self._groups[kind.device.type], flat_N)
            flats = flat_N.split([each.elements for each in parcels])
            tensors = [flat.reshape(each.shape) for flat, each in zip(flats, parcels, strict=True)]
            sums = results([pending_sums(tensor) for tensor in tensors])
            self._damaged += [each.name for each, came in zip(parcels, sums, strict=True) if came != each.sums]
            yield from ((each.name, tensor) for each, tensor in zip(parcels, tensors, strict=True))

    def require_whole(self, rank: int) -> None:
        """Raises WeightMismatch, as of `rank`, if the last update did not come as it was sent."""
        if self._damaged:
            named = ", ".join(self._damaged[:NAMED])
            more = f" and {len(self._damaged) - NAMED} more" if len(self._damaged) > NAMED else ""
            raise WeightMismatch(
                f"the actor's weights did not reach rank {rank} as they were sent: {named}{more}",
                hint="the run has stopped before it could sample from them. Look at the network and at the device's "
                "health (`nvidia-smi -q -d ECC`)",
            )

    def _announce(self, parcels: list[Parcel]) -> None:
        text_N = torch.frombuffer(bytearray(pickle.dumps(parcels)), dtype=torch.uint8)
        self._broadcast(self._host, torch.tensor([len(text_N)]))
        self._broadcast(self._host, text_N)

    def _announced(self) -> list[Parcel]:
        size = torch.zeros(1, dtype=torch.int64)
        self._broadcast(self._host, size)
        text_N = torch.empty(int(size), dtype=torch.uint8)
        self._broadcast(self._host, text_N)
        parcels: list[Parcel] = pickle.loads(text_N.numpy().tobytes())
        return parcels

    def _broadcast(self, group: Any, tensor: Tensor) -> None:
        group.broadcast(tensor, SENDER).wait()


def buckets(tensors: Iterable[tuple[str, Tensor]], kind: Kind) -> Iterator[list[tuple[str, Tensor]]]:
    """Copies: what a learner yields may be gone with its next tensor."""
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in tensors:
        more = tensor.numel() * kind.dtype.itemsize
        if bucket and size + more > kind.bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor.detach().to(kind.device, kind.dtype, copy=True)))
        size += more
    if bucket:
        yield bucket
