"""Which rows go where, decided from their lengths alone: evenly over the ranks, and into passes within a token budget.

Everything here is pure and runs on the driver, so that all ranks get equally many passes: a pass is collective.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise

Rows = list[int]  # row numbers, ascending


@dataclass(frozen=True)
class PassLimit:
    """How much goes through a model at once on one rank: so many sequences, or so many tokens.

    A model whose rows stand side by side computes their padding, too: it counts as tokens, with `padded_to`.
    """

    rows: int | None = None
    tokens: int | None = None  # decides where it is given
    padded_to: int | None = None  # rows are as wide as the longest, rounded up to this; None: no padding is computed

    def size(self, lengths: Sequence[int]) -> int:
        """The tokens that a pass of rows of `lengths` tokens computes.

        >>> PassLimit(tokens=100).size([3, 9]), PassLimit(tokens=100, padded_to=4).size([3, 9])
        (12, 24)
        """
        if self.padded_to is None:
            return sum(lengths)
        return len(lengths) * -(-max(lengths, default=0) // self.padded_to) * self.padded_to

    def sequences(self, longest: int) -> int:
        """How many sequences of `longest` tokens fit into a pass; at least one.

        >>> PassLimit(tokens=4000).sequences(1024)
        3
        """
        if self.tokens is not None:
            return max(1, self.tokens // longest)
        assert self.rows is not None
        return self.rows

    def __str__(self) -> str:
        if self.tokens is None:
            return f"{self.rows} sequences"
        return f"{self.tokens} tokens" if self.padded_to is None else f"{self.tokens} tokens, padding included"


@dataclass(frozen=True)
class Share:
    """One rank's rows of a batch, and which of them go through its model together."""

    rows: Rows
    passes: tuple[Rows, ...]  # positions in `rows`; together each one once


def shares(lengths: Sequence[int], ranks: int, limit: PassLimit, *, balanced: bool = True) -> list[Share]:
    """Deals rows of `lengths` tokens to the ranks and cuts each rank's into passes, equally many on every rank.

    The ranks get equally many rows (one more or less where they don't divide), `balanced` by tokens or else in order.

    Raises:
        ValueError: the rows don't divide over the ranks, so some would have fewer passes than others.
    """
    dealt = deal(lengths, ranks, balanced=balanced)
    passes = pass_rows([[lengths[row] for row in rows] for rows in dealt], limit)
    if len({len(of_rank) for of_rank in passes}) > 1:
        raise ValueError(f"{len(lengths)} rows over {ranks} ranks leave them with different numbers of passes")
    return [Share(rows, tuple(of_rank)) for rows, of_rank in zip(dealt, passes, strict=True)]


def deal(lengths: Sequence[int], ranks: int, *, balanced: bool) -> list[Rows]:
    """The rows of each rank, equally many or one more or less: evenly by tokens, or in order."""
    return partition(lengths, ranks, equal_counts=True) if balanced else _in_order(len(lengths), ranks)


def balance_metrics(lengths: Sequence[int], ranks: int) -> dict[str, float]:
    """Tokens of a rank: the fewest, the most and the mean, with rows dealt in order and (`balanced`) evenly."""
    found: dict[str, float] = {}
    for balanced, prefix in ((False, "global_seqlen/"), (True, "global_seqlen/balanced_")):
        dealt = [sum(lengths[row] for row in rows) for rows in deal(lengths, ranks, balanced=balanced)]
        found |= {f"{prefix}min": float(min(dealt)), f"{prefix}max": float(max(dealt))}
    found["global_seqlen/minmax_diff"] = found["global_seqlen/max"] - found["global_seqlen/min"]
    return found | {"global_seqlen/mean": sum(lengths) / ranks}


def pass_rows(lengths_by_rank: Sequence[Sequence[int]], limit: PassLimit) -> list[list[Rows]]:
    """The passes of each rank, equally many where the ranks have equally many rows.

    By tokens, as few as hold the budget on every rank, of about equal size, the largest first: if memory does not
    suffice, that shows at once. A row beyond the budget goes alone. Where padding counts, rows of like length go
    together.
    """
    if limit.tokens is None:
        size = limit.rows
        assert size is not None
        return [[list(range(n))[i : i + size] for i in range(0, n, size)] for n in map(len, lengths_by_rank)]
    if limit.padded_to is not None:
        return _padded_passes(lengths_by_rank, limit, limit.tokens)
    most = min(len(lengths) for lengths in lengths_by_rank)
    parts = min(most, max(1, *(-(-sum(lengths) // limit.tokens) for lengths in lengths_by_rank)))
    while True:
        passes = [partition(lengths, parts) for lengths in lengths_by_rank]
        if parts == most or all(
            sum(lengths[row] for row in rows) <= limit.tokens
            for lengths, of_rank in zip(lengths_by_rank, passes, strict=True)
            for rows in of_rank
        ):
            return passes
        parts += 1


def _padded_passes(lengths_by_rank: Sequence[Sequence[int]], limit: PassLimit, budget: int) -> list[list[Rows]]:
    """Rows of like length together, as few passes as hold the budget; a rank that needs fewer than others halves some.

    From the longest row on, each pass takes as many as fit: no way of cutting sorted rows needs fewer passes.
    """

    def tokens(lengths: Sequence[int], rows: Rows) -> int:
        return limit.size([lengths[row] for row in rows])

    by_rank: list[list[Rows]] = []
    for lengths in lengths_by_rank:
        passes: list[Rows] = []
        for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
            if passes and tokens(lengths, [*passes[-1], row]) <= budget:
                passes[-1].append(row)
            else:
                passes.append([row])
        by_rank.append(passes)
    parts = max(map(len, by_rank))
    for lengths, passes in zip(lengths_by_rank, by_rank, strict=True):
        while len(passes) < min(parts, len(lengths)):
            widest = max((rows for rows in passes if len(rows) > 1), key=lambda rows: tokens(lengths, rows))
            half = len(widest) // 2
            passes.append(widest[half:])
            del widest[half:]
        passes.sort(key=lambda rows: -tokens(lengths, rows))
    return [[sorted(rows) for rows in passes] for passes in by_rank]


def partition(lengths: Sequence[int], parts: int, *, equal_counts: bool = False) -> list[Rows]:
    """The rows in `parts` groups of about equal sums, largest sum first; none is empty if there are rows enough.

    `equal_counts` makes the groups differ by at most one row. The largest differencing method (Karmarkar and Karp
    1982; for more than two groups and equal counts as in Michiels et al. 2003): from partial solutions, take the two
    whose groups differ most, and join the largest group of one with the smallest of the other, and so on.

    >>> partition([5, 8, 4, 7, 6], 2)
    [[0, 2, 3], [1, 4]]
    >>> partition([9, 1, 1, 1], 2, equal_counts=True)
    [[0, 3], [1, 2]]
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    step = parts if equal_counts else 1
    number = count()  # settles ties: the same lengths give the same groups everywhere
    heap: list[tuple[int, int, list[tuple[int, Rows]]]] = []
    for start in range(0, max(1, len(order)), step):
        groups = [(lengths[row], [row]) for row in order[start : start + step]]
        groups += [(0, []) for _ in range(parts - len(groups))]
        heapq.heappush(heap, (groups[-1][0] - groups[0][0], next(number), groups))
    while len(heap) > 1:
        one, other = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        joined = [(a + b, rows + more) for (a, rows), (b, more) in zip(one, reversed(other), strict=True)]
        joined.sort(key=lambda group: (-group[0], -len(group[1])))
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], next(number), joined))
    return [sorted(rows) for _, rows in heap[0][2]]


def _in_order(rows: int, parts: int) -> list[Rows]:
    """Runs whose lengths differ by one at most, the longer first."""
    size, more = divmod(rows, parts)
    starts = [part * size + min(part, more) for part in range(parts + 1)]
    return [list(range(a, b)) for a, b in pairwise(starts)]
