"""Memory that a trainer's rank and an engine's process on the same device can both see.

On CUDA it is device memory that the other process maps through CUDA IPC, on a CPU a file in shared memory. Filled by
the trainer, read by the engine; the bytes are never sent.
"""

from __future__ import annotations

import base64
import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer import own_files
from trainer.rollout.sums import PendingSums, pending_sums, results
from trainer.rollout.wire import Slot

ALIGNMENT = 256  # bytes: any kernel may read a tensor that begins there
SHARED_MEMORY = Path("/dev/shm")
DEVICE_ARGUMENT = 6  # of torch's rebuild_cuda_tensor: the device in the process that made the handle


class Bucket:
    """`size` bytes on `device`. Close it when the engine has let go of it."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self._path: Path | None = None
        if device.type == "cuda":
            self.memory_N = torch.empty(size, dtype=torch.uint8, device=device)
        else:
            folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else own_files.temporary()
            number, name = tempfile.mkstemp(prefix="rollout-bucket-", dir=folder)
            os.truncate(number, size)
            os.close(number)
            self._path = Path(name)
            self.memory_N = torch.from_file(name, shared=True, size=size, dtype=torch.uint8)

    def handle(self) -> str:
        """How another process gets at this memory."""
        if self._path is not None:
            return f"file:{self.size}:{self._path}"
        from torch.multiprocessing.reductions import reduce_tensor

        _, arguments = reduce_tensor(self.memory_N)
        return "cuda:" + base64.b64encode(pickle.dumps(arguments)).decode()

    def close(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


def open_handle(handle: str) -> Tensor:
    """The memory of a bucket that another process has made, [size] uint8."""
    kind, _, rest = handle.partition(":")
    if kind == "file":
        size, _, path = rest.partition(":")
        return torch.from_file(path, shared=True, size=int(size), dtype=torch.uint8)
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    arguments = list(pickle.loads(base64.b64decode(rest)))
    arguments[DEVICE_ARGUMENT] = torch.cuda.current_device()  # the same GPU has other numbers in other processes
    return rebuild_cuda_tensor(*arguments)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Filled:
    """What a bucket holds now. `pending`: the sums of the tensors, in the slots' order, empty without verification."""

    slots: tuple[Slot, ...]
    pending: tuple[PendingSums, ...]

    def summed(self) -> tuple[Slot, ...]:
        """The slots with their sums; waits for the device."""
        if not self.pending:
            return self.slots
        sums = results(list(self.pending))
        return tuple(replace(slot, sums=each) for slot, each in zip(self.slots, sums, strict=True))


class Filler:
    """Lays tensors into buckets, in the engine's dtype, until one is full.

    A tensor larger than a bucket gets a bucket of its own size: embeddings are as large as they are.
    """

    def __init__(self, dtype: torch.dtype, *, verify: bool = True) -> None:
        self.dtype = dtype
        self.verify = verify

    def fill(self, bucket: Bucket, tensors: Iterator[tuple[str, Tensor]], first: tuple[str, Tensor]) -> Any:
        """Lays `first` and what follows into `bucket` -> (Filled, the tensor that had no more room, or None)."""
        slots: list[Slot] = []
        pending: list[PendingSums] = []
        end = 0
        following: tuple[str, Tensor] | None = first
        while following is not None and end + bytes_of(following[1], self.dtype) <= bucket.size:
            name, tensor = following
            size = bytes_of(tensor, self.dtype)
            placed = bucket.memory_N[end : end + size].view(self.dtype).view(tensor.shape)
            placed.copy_(tensor)
            if self.verify:
                pending.append(pending_sums(placed))
            slots.append(Slot(name, tuple(tensor.shape), str(self.dtype).removeprefix("torch."), end, None))
            end += -(-size // ALIGNMENT) * ALIGNMENT
            following = next(tensors, None)
        return Filled(tuple(slots), tuple(pending)), following


def bytes_of(tensor: Tensor, dtype: torch.dtype) -> int:
    return tensor.numel() * dtype.itemsize


def read(memory_N: Tensor, slots: Iterable[Slot]) -> Iterator[tuple[Slot, Tensor]]:
    """The tensors of a bucket: views, no copies."""
    for slot in slots:
        dtype = getattr(torch, slot.dtype)
        count = 1
        for size in slot.shape:
            count *= size
        raw = memory_N[slot.offset : slot.offset + count * dtype.itemsize]
        yield slot, raw.view(dtype).view(slot.shape)
