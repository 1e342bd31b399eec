"""The lines of the debugger's table of figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One figure: what it is, how much, what is to be reached, and what stands beside it."""

    name: str
    figure: str
    reach: str
    beside: str


def table(rows: Sequence[Row]) -> str:
    lines = [("what", "figure", "reach", "beside it, in the same run")]
    lines += [(row.name, row.figure, row.reach, row.beside) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    texts = ["  ".join(line[column].ljust(widths[column]) for column in range(4)).rstrip() for line in lines]
    return "\n".join([texts[0], "-" * (sum(widths) + 6), *texts[1:]])


def in_turn(measures: dict[str, Callable[[], float]], runs: int) -> dict[str, list[float]]:
    """Each measured `runs` times, one after another, after a round that isn't counted."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(runs + 1):
        for name, measure in measures.items():
            figure = measure()
            if number:
                found[name].append(figure)
    return found


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def ratio(of: Sequence[float], to: Sequence[float]) -> float:
    """The median of the ratios, pair by pair: the speed of a shared machine drifts."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))
