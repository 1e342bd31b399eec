"""How much memory a phase took: read in the worker while it answers, so that it costs no message of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from trainer.records import Metrics

GIB = 2**30
_RESET_PEAK = "5"  # of /proc/PID/clear_refs: the peak of resident memory begins anew (Linux 4.0, proc(5))


@dataclass(frozen=True)
class Memory:
    """The most that was in use during a phase, in bytes: on one rank, or the most of any rank."""

    allocated: int  # of the device by tensors; on a CPU, the process's resident memory
    reserved: int  # of the device by torch's allocator; on a CPU, the same as `allocated`
    host_used: int  # of the node's memory, by all processes, at the phase's end


def most(readings: Iterable[Memory]) -> Memory | None:
    """Of several ranks or phases, the most of each; None of none."""
    found = list(readings)
    if not found:
        return None
    return Memory(
        max(reading.allocated for reading in found),
        max(reading.reserved for reading in found),
        max(reading.host_used for reading in found),
    )


def memory_metrics(phases: Mapping[str, Memory]) -> Metrics:
    """`memory_gb/PHASE` of each phase, and the most of all under verl's names; GiB, as verl's."""
    whole = most(phases.values())
    if whole is None:
        return {}
    metrics = {f"memory_gb/{name}": reading.allocated / GIB for name, reading in phases.items()}
    return metrics | {
        "perf/max_memory_allocated_gb": whole.allocated / GIB,
        "perf/max_memory_reserved_gb": whole.reserved / GIB,
        "perf/cpu_memory_used_gb": whole.host_used / GIB,
    }


@dataclass
class Gauge:
    """Holds what `measured` found, once its block has ended."""

    reading: Memory = field(default=Memory(0, 0, 0))


@contextmanager
def measured(device: torch.device) -> Iterator[Gauge]:
    """The peak of this process within the block. A fraction of a millisecond."""
    gauge = Gauge()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        _begin_resident_peak()
    yield gauge
    used = psutil.virtual_memory().used
    if device.type == "cuda":
        gauge.reading = Memory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device), used)
    else:
        resident = _resident_peak()
        gauge.reading = Memory(resident, resident, used)


def _begin_resident_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:  # no Linux, or a container without it: then the peak is that of the process's life
        return


def _resident_peak() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return int(psutil.Process(os.getpid()).memory_info().rss)
