"""Which processes a session over all ranks is for: those of a job, of some ranks, or all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from devkit.debug.targets import rank_matcher


@dataclass(frozen=True)
class Choice:
    """A test that processes and stops pass, or don't."""

    job: str | None
    is_rank: Callable[[int], bool] | None
    ranks: str = ""  # as they were written; empty: all

    @classmethod
    def of(cls, job: str | None, ranks: str | None) -> Choice:
        """Raises UsageError for ranks that can't be read."""
        return cls(job, None if ranks is None else rank_matcher(ranks), "".join((ranks or "").split()))

    def matches(self, who: Mapping[str, Any]) -> bool:
        """
        >>> Choice.of("01", "0,2:4").matches({"job_id": "01", "rank": 3})
        True
        >>> Choice.of(None, "0").matches({"job_id": "01", "rank": None})
        False
        """
        if self.job is not None and who.get("job_id") != self.job:
            return False
        rank = who.get("rank")
        return self.is_rank is None or (isinstance(rank, int) and self.is_rank(rank))

    def among(self, documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [each for each in documents if self.matches(each)]
