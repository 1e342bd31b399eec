"""Checksums of weights that can be compared between a whole tensor and its shards.

A tensor [d0, d1, ...] is read as a matrix of d0 rows; its elements count as integers, by their bits. `rows` weighs
each row's sum with a number that belongs to the row, `columns` each column's. So both notice a changed, moved or
swapped row or column, and both are additive: cut a tensor along its first or second dimension, and the sums of the
parts, taken with the parts' offsets, add up to those of the whole. All arithmetic is modulo 2**64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MODULUS = 2**64
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Sums:
    """Of one tensor, or of a part of one.

    >>> Sums(1, 2) + Sums(3, 4)
    Sums(rows=4, columns=6)
    """

    rows: int
    columns: int

    def __add__(self, other: Sums) -> Sums:
        return Sums((self.rows + other.rows) % MODULUS, (self.columns + other.columns) % MODULUS)

    def __str__(self) -> str:
        return f"{self.rows:016x}{self.columns:016x}"


def matrix(tensor: Tensor) -> Tensor:
    """`tensor` as [rows, columns]; one of a single dimension is a column."""
    return tensor.reshape(tensor.shape[0], -1) if tensor.dim() else tensor.reshape(1, 1)


def factors(start: int, count: int, salt: int, device: torch.device) -> Tensor:
    """An odd 64-bit number for each of the positions `start ... start + count - 1`, [count] int64.

    The mixing steps of splitmix64 (Steele, Lea and Flood 2014): neighbours have nothing in common.
    """
    x = torch.arange(start, start + count, dtype=torch.int64, device=device) * _signed(0x9E3779B97F4A7C15) + salt
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return x | 1


def _signed(word: int) -> int:
    return word - MODULUS if word >= MODULUS // 2 else word


def _shifted(x: Tensor, count: int) -> Tensor:
    """A logical shift to the right: torch's own drags the sign along."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def sums_of(tensor: Tensor, *, row: int = 0, column: int = 0) -> Sums:
    """The sums of a tensor, or of a part that begins at `row` and `column` of a whole. Reads it twice."""
    return pending_sums(tensor, row=row, column=column).result()


@dataclass(frozen=True)
class PendingSums:
    """Sums that a device may still be computing: asking for many at once waits only once."""

    pair_2: Tensor  # int64

    def result(self) -> Sums:
        rows, columns = self.pair_2.tolist()
        return Sums(rows % MODULUS, columns % MODULUS)


def pending_sums(tensor: Tensor, *, row: int = 0, column: int = 0) -> PendingSums:
    """`sums_of` without waiting for the device."""
    whole = matrix(tensor.detach())
    bits = whole.contiguous().view(_BITS[whole.element_size()])
    row_sums, column_sums = bits.sum(1, dtype=torch.int64), bits.sum(0, dtype=torch.int64)
    by_row = (row_sums * factors(row, len(row_sums), 0, bits.device)).sum()
    by_column = (column_sums * factors(column, len(column_sums), 1, bits.device)).sum()
    return PendingSums(torch.stack([by_row, by_column]))


def results(pending: list[PendingSums]) -> list[Sums]:
    """All of them, after one wait."""
    if not pending:
        return []
    pairs = torch.stack([each.pair_2 for each in pending]).tolist()
    return [Sums(rows % MODULUS, columns % MODULUS) for rows, columns in pairs]
