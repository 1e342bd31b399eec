"""Facts of tensors and arrays, without ever waiting for another rank or for a device that hangs.

What a subclass overrides is not called: a DTensor's `min` would be a collective, and the other ranks may be stopped.
"""

from __future__ import annotations

import sys
import time
from typing import Any

MOST_ELEMENTS = 1 << 26  # of a larger array the first ones are looked at; the facts say so
CHUNK = 1 << 22
INFERENCE = ", inference"  # made in inference mode: no step may be taken back through it
FEW = 32  # elements that are shown all
DEVICE_SECONDS = 0.5  # how long the kernels in front may take

Facts = dict[str, Any]


def array_facts(value: Any) -> Facts | None:
    """Shape, dtype, device, min, max, mean, NaN count, hash, and the values if few; None for what is not an array.

    >>> import numpy
    >>> facts = array_facts(numpy.array([1.0, float("nan"), 4.0]))
    >>> {name: facts[name] for name in ("shape", "dtype", "min", "max", "mean", "nan")}
    {'shape': [3], 'dtype': 'float64', 'min': 1.0, 'max': 4.0, 'mean': 2.5, 'nan': 1}
    """
    kind = type(value)
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    if tensor is not None and issubclass(kind, tensor):
        return _torch_facts(torch, value)
    numpy = sys.modules.get("numpy")
    array = getattr(numpy, "ndarray", None)
    if array is not None and issubclass(kind, array):
        return _numpy_facts(numpy, value)
    return None


def facts_text(facts: Facts) -> str:
    """One line of facts.

    >>> facts_text({"kind": "tensor", "dtype": "int64", "shape": [2], "device": "cpu", "min": 1, "max": 2,
    ...             "mean": 1.5, "nan": 0, "hash": "0a1b2c3d", "values": [1, 2]})
    'tensor int64[2] cpu min=1 max=2 mean=1.5 #0a1b2c3d [1, 2]'
    """
    parts = [facts["kind"], f"{facts['dtype']}{facts['shape']}"]
    parts += [facts[name] for name in ("device", "placements") if facts.get(name)]
    for name in ("min", "max", "mean"):
        if facts.get(name) is not None:
            parts.append(f"{name}={_figure(facts[name])}")
    if facts.get("nan"):
        parts.append(f"nan={facts['nan']}")
    if facts.get("hash"):
        parts.append(f"#{facts['hash']}")
    if facts.get("values") is not None:
        parts.append(f"[{', '.join(_figure(each) for each in facts['values'])}]")
    if facts.get("note"):
        parts.append(f"({facts['note']})")
    return " ".join(parts)


def _figure(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def plain_tensor(torch: Any, value: Any) -> tuple[Any, str]:
    """The tensor of this process behind a parameter or DTensor, and why there is none (a subclass of its own)."""
    placements = getattr(value, "_placements", None) or getattr(getattr(value, "_spec", None), "placements", None)
    if placements is not None and hasattr(value, "_local_tensor"):
        value = value._local_tensor
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None, f"{type(value).__name__}: not looked into"
    if value.is_meta or value.layout is not torch.strided or value.is_quantized:
        return None, "meta" if value.is_meta else str(value.layout)
    return value.detach(), ""


def _torch_facts(torch: Any, value: Any) -> Facts:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        facts: Facts = {"kind": "tensor", "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        facts["device"] = str(value.device) + (INFERENCE if value.is_inference() else "")
        plain, why = plain_tensor(torch, value)
        if plain is not None and plain is not value and list(plain.shape) != facts["shape"]:
            facts["placements"] = f"local{list(plain.shape)}"
        if plain is not None and plain.is_cuda and not _device_is_idle(torch, plain.device):
            plain, why = None, "the device is busy"
        if plain is None:
            return facts | {"note": why}
        return _with_statistics(facts, plain, lambda chunk: _chunk_of_tensor(torch, chunk))


def _device_is_idle(torch: Any, device: Any) -> bool:
    """Waits a little for the kernels in front. A collective among them may wait for ranks that are stopped."""
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            return False
        event = torch.cuda.Event()
        event.record()
        deadline = time.monotonic() + DEVICE_SECONDS
        while not event.query():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True


def _chunk_of_tensor(torch: Any, chunk: Any) -> tuple[Any, Any]:
    """Its bytes and its values, as numpy arrays."""
    chunk = chunk.reshape(-1).cpu().contiguous()
    if chunk.is_conj() or chunk.is_neg():
        chunk = chunk.resolve_conj().resolve_neg()
    wide = chunk.float() if chunk.is_floating_point() and chunk.dtype != torch.float64 else chunk
    return chunk.view(torch.uint8).numpy(), wide.numpy()


def _numpy_facts(numpy: Any, value: Any) -> Facts:
    plain = numpy.ndarray.view(value, numpy.ndarray)
    facts: Facts = {"kind": "array", "dtype": str(plain.dtype), "shape": list(plain.shape)}
    if plain.dtype.kind not in "fiubc":
        return facts
    return _with_statistics(facts, plain, _chunk_of_array)


def _chunk_of_array(chunk: Any) -> tuple[Any, Any]:
    import numpy

    flat = numpy.ascontiguousarray(chunk).reshape(-1)
    return flat.view(numpy.uint8), flat


def _with_statistics(facts: Facts, plain: Any, split: Any) -> Facts:
    numpy = sys.modules.get("numpy")
    count = int(_product(plain.shape))
    if numpy is None or count == 0:
        return facts | {"note": "empty" if count == 0 else "no numpy here"}
    head = _head(plain, MOST_ELEMENTS)
    # Of the shape too, so that equal bytes in another shape are another value.
    tally = _Tally(numpy, f"{facts['dtype']}{facts['shape']}")
    for chunk in _chunks(head):
        tally.add(*split(chunk))
    facts |= tally.result()
    if count <= FEW:
        facts["values"] = split(plain)[1].tolist()
    if head is not plain:
        facts["note"] = f"of the first {_product(head.shape)} elements"
    return facts


def _chunks(array: Any) -> Any:
    """Pieces of at most CHUNK elements, in order."""
    if _product(array.shape) <= CHUNK:
        yield array
        return
    rows = CHUNK * array.shape[0] // _product(array.shape)
    if rows == 0:
        for row in range(array.shape[0]):
            yield from _chunks(array[row])
        return
    for first in range(0, array.shape[0], rows):
        yield array[first : first + rows]


def _head(array: Any, most: int) -> Any:
    while _product(array.shape) > most:
        rows = most * array.shape[0] // _product(array.shape)
        array = array[:rows] if rows else array[0]
    return array


def _product(shape: Any) -> int:
    product = 1
    for size in shape:
        product *= int(size)
    return product


class _Tally:
    """Adds up the facts of an array, chunk by chunk."""

    def __init__(self, numpy: Any, salt: str) -> None:
        import hashlib

        self._numpy = numpy
        self._digest = hashlib.blake2b(salt.encode(), digest_size=4)
        self._low: Any = None
        self._high: Any = None
        self._sum: Any = 0
        self._count = 0
        self._nan = 0

    def add(self, raw: Any, values: Any) -> None:
        numpy = self._numpy
        self._digest.update(raw)
        if values.dtype.kind in "fc":
            nan = numpy.isnan(values)
            self._nan += int(nan.sum())
            values = values[~nan] if nan.any() else values
        if values.dtype.kind == "c" or not values.size:
            return
        low, high = values.min().item(), values.max().item()
        self._low = low if self._low is None else min(self._low, low)
        self._high = high if self._high is None else max(self._high, high)
        with numpy.errstate(all="ignore"):
            self._sum += values.sum(dtype=numpy.float64).item()
        self._count += values.size

    def result(self) -> Facts:
        mean = self._sum / self._count if self._count else None
        return {"min": self._low, "max": self._high, "mean": mean, "nan": self._nan, "hash": self._digest.hexdigest()}
