"""What a phase's memory reading says: its own peak, and the most of several ranks."""

from __future__ import annotations

import sys

import pytest
import torch

from trainer.memory import GIB, Memory, measured, memory_metrics, most

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is Linux's")
def test_a_peak_is_that_of_its_own_block() -> None:
    """Given memory that is taken and given back within a block, only that block's reading shows it."""
    readings = []
    for size in (1, 400, 1):
        with measured(CPU) as gauge:
            torch.ones(size * MIB // 4).sum()
        readings.append(gauge.reading)
    first, large, after = (reading.allocated / MIB for reading in readings)
    assert large - first > 350 and large - after > 350
    assert all(reading.reserved == reading.allocated and reading.host_used > 0 for reading in readings)


def test_most_of_several_ranks() -> None:
    assert most([Memory(1, 5, 2), Memory(3, 4, 1)]) == Memory(3, 5, 2)
    assert most([]) is None


def test_metrics_are_in_gib_and_have_verls_names() -> None:
    phases = {"gen": Memory(GIB, 3 * GIB, 5 * GIB), "update_actor": Memory(2 * GIB, 2 * GIB, 4 * GIB)}
    assert memory_metrics(phases) == {
        "memory_gb/gen": 1.0,
        "memory_gb/update_actor": 2.0,
        "perf/max_memory_allocated_gb": 2.0,
        "perf/max_memory_reserved_gb": 3.0,
        "perf/cpu_memory_used_gb": 5.0,
    }
    assert memory_metrics({}) == {}
