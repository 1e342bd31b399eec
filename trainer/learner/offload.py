"""State of a model that waits in host memory while other phases use the device.

A tensor moves by its storage: the bytes go to the host, and the storage gives up its own until they come back. So
nothing that refers to the tensor changes: neither the DTensor, nor FSDP2's flat view of its shard, nor the optimizer's
state. FSDP2 frees gathered parameters in the same way. On a CPU the same lines copy from host memory to host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

# torch's allocator of pinned memory rounds each piece up to a power of two, so pieces are of such a size.
CHUNK_BYTES = 64 * 2**20


class HostMemory:
    """Bytes in host memory, pinned where the device is a GPU; taken once and used again."""

    def __init__(self, *, pinned: bool, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._pinned = pinned
        self._chunk_bytes = chunk_bytes
        self._chunks: list[Tensor] = []

    def reserve(self, size: int) -> None:
        while len(self._chunks) * self._chunk_bytes < size:
            self._chunks.append(torch.empty(self._chunk_bytes, dtype=torch.uint8, pin_memory=self._pinned))

    def pieces(self, start: int, size: int) -> Iterator[tuple[Tensor, int]]:
        """The `size` bytes from `start` on, in pieces: uint8 [n], and where the piece lies within the `size` bytes."""
        done = 0
        while done < size:
            chunk, within = divmod(start + done, self._chunk_bytes)
            length = min(size - done, self._chunk_bytes - within)
            yield self._chunks[chunk][within : within + length], done
            done += length


class Offload:
    """Some tensors on a device that lie there only within `at_hand`; without `enabled`, always."""

    def __init__(
        self,
        tensors: Callable[[], Iterable[Tensor]],
        device: torch.device,
        *,
        enabled: bool = True,
        before_leaving: Callable[[], None] = lambda: None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """`tensors` is asked again each time that they leave: an optimizer has its state only after its first step."""
        self.enabled = enabled
        self._tensors = tensors
        self._device = device
        self._before_leaving = before_leaving
        self._side = torch.cuda.Stream(device) if device.type == "cuda" and enabled else None
        self._host = HostMemory(pinned=device.type == "cuda", chunk_bytes=chunk_bytes)
        self._storages: Sequence[torch.UntypedStorage] = ()  # of what is away
        self._sizes: Sequence[int] = ()
        self._addresses: Sequence[int] = ()  # where it came back to
        self._away = False
        self._users = 0
        self._changed = True

    @property
    def host_bytes(self) -> int:
        """What waits in host memory now."""
        return sum(self._sizes) if self._away else 0

    @contextmanager
    def at_hand(self, *, changes: bool = False) -> Iterator[None]:
        """Within it the tensors lie on the device. What changes them says so: else the bytes on the host still hold.

        May be nested.
        """
        self._users += 1
        self._changed |= changes
        try:
            self.bring()
            yield
        finally:
            self._users -= 1
            if not self._users:
                self.put_away()

    def require(self) -> None:
        """Raises RuntimeError if the tensors are away: torch would read where nothing is."""
        if self._away:
            raise RuntimeError("parameters are used that wait in host memory: the phase lacks an `at_hand`")

    def put_away(self) -> None:
        """To the host, unless they are there. The host does not wait for the copies: the device's memory does."""
        if not self.enabled or self._away:
            return
        self._before_leaving()
        storages = distinct_storages(self._tensors(), self._device)
        unlike = [storage.data_ptr() for storage in storages] != self._addresses
        self._storages, self._sizes = storages, [storage.nbytes() for storage in storages]
        if self._changed or unlike:
            self._host.reserve(sum(self._sizes))
            self._copy(to_host=True)
        for storage in storages:
            storage.resize_(0)
        self._away, self._changed = True, False

    def bring(self) -> None:
        """To the device, unless they are there. Work that is queued on it from now on finds them whole."""
        if not self._away:
            return
        for storage, size in zip(self._storages, self._sizes, strict=True):
            storage.resize_(size)
        self._copy(to_host=False)
        self._addresses = [storage.data_ptr() for storage in self._storages]
        self._storages, self._away = (), False  # what is replaced from now on is not kept alive

    def _copy(self, *, to_host: bool) -> None:
        """All bytes, on a stream of their own: after what the device has queued, and without making the host wait."""
        side, start = self._side, 0
        if side is not None:
            side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side) if side is not None else nullcontext():
            for storage, size in zip(self._storages, self._sizes, strict=True):
                bytes_N = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
                for piece_n, at in self._host.pieces(start, size):
                    there = bytes_N[at : at + len(piece_n)]
                    target, source = (piece_n, there) if to_host else (there, piece_n)
                    target.copy_(source, non_blocking=True)
                if side is not None and to_host:
                    bytes_N.record_stream(side)  # freed next: not for others to have before the copy is done
                start += size
        if side is not None and not to_host:
            torch.cuda.current_stream(self._device).wait_stream(side)


class Gradients:
    """A model's gradients between the passes of a mini-batch: their sum waits in host memory, where `enabled`."""

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device, *, enabled: bool) -> None:
        self._parameters = list(parameters)
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._offload = Offload(lambda: (local(grad) for grad in self._sums.values()), device, enabled=enabled)

    def put_away(self) -> None:
        """Adds the gradients of a backward pass to the sum, and takes them from the parameters."""
        if not self._offload.enabled:
            return
        with self._offload.at_hand(changes=True):
            for parameter in self._parameters:
                grad, parameter.grad = parameter.grad, None
                if grad is not None:
                    self._sums[parameter] = self._sums[parameter].add_(grad) if parameter in self._sums else grad

    def bring(self) -> None:
        """The sums as the parameters' gradients, on the device."""
        self._offload.bring()
        for parameter, total in self._sums.items():
            parameter.grad = total
        self._sums.clear()


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def distinct_storages(tensors: Iterable[Tensor], device: torch.device) -> list[torch.UntypedStorage]:
    """The storages on `device` that lie under `tensors`, each once; empty ones are left out.

    So are those that numpy or another process looks at: on a CPU alone, where nothing is gained by moving them.
    """
    found = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors if t.device.type == device.type}
    return [storage for address, storage in found.items() if address and storage.nbytes() and storage.resizable()]
