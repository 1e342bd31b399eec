"""What a reward function looks like: verl's `compute_score`, called with keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Scorer(Protocol):
    """Scores one response.

    Gives a number, or a mapping with the number under "score"; its other numbers are reported beside the reward.
    """

    def __call__(
        self, *, data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any]
    ) -> float | Mapping[str, Any]: ...
