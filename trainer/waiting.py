"""Phases under way on the ranks: their answers, waited for with deadlines that say who is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from trainer.failures import Failure

# Answers come in swarms. Those of a phase that follow its first within this time are waited for in one call, since
# each has its price: 6 % of a step of 64 ranks that have nothing to do.
TOGETHER_S = 0.005


class UnderWay:
    """A phase that some ranks have been called for, from now on."""

    def __init__(self, failure: Failure, timeout_s: float, patience_s: float) -> None:
        """`failure` has the calls and whom they went to. After `patience_s` it is noted once who has not answered."""
        self.failure = failure
        self.phase = failure.phase
        self._timeout_s = timeout_s
        self._began = self._last = time.monotonic()
        self._deadline, self._patience = self._began + timeout_s, self._began + patience_s
        self._answers: dict[Any, Any] = {}

    @property
    def pending(self) -> list[Any]:
        """The calls that have no answer yet."""
        return [ref for ref in self.failure.refs if ref not in self._answers]

    @property
    def answers(self) -> list[Any]:
        """In the order of the calls, once none is pending."""
        return [self._answers[ref] for ref in self.failure.refs]

    @property
    def took_s(self) -> float:
        """From its beginning to its last answer so far."""
        return self._last - self._began

    @property
    def until(self) -> float:
        """When somebody has to be told something."""
        return min(self._deadline, self._patience)

    def take(self, ref: Any) -> None:
        """The answer of a call that is done. Raises why there is none."""
        try:
            self._answers[ref] = ray.get(ref)  # at once: `ray.wait` has fetched it
        except RayError as error:
            raise self.failure.explain(self.failure.refs.index(ref), error) from error
        self._last = time.monotonic()

    def look_at(self, now: float, note: Callable[[str], None]) -> None:
        """At its deadline it raises DeadlineError."""
        if now < self.until or not (pending := self.pending):
            return
        if now >= self._deadline:
            raise self.failure.too_late(pending, self._timeout_s)
        self._patience = self._deadline
        note(
            f"{self.phase} is taking long: {now - self._began:.0f} s so far, "
            f"no answer from {self.failure.names(pending)}"
        )


def first_done(begun: Sequence[UnderWay], note: Callable[[str], None]) -> UnderWay:
    """The first phase that all of its ranks have answered; the first failure in any of them ends the wait.

    Raises WorkerDied, DeadlineError, or what a rank raised.
    """
    while True:
        for each in begun:
            if not each.pending:
                return each
        until = min(each.until for each in begun)
        pending = {ref: each for each in begun for ref in each.pending}
        done, left = ray.wait(list(pending), num_returns=1, timeout=max(0.0, until - time.monotonic()))
        if left := [ref for ref in left if done and pending[ref] is pending[done[0]]]:
            done += ray.wait(left, num_returns=len(left), timeout=TOGETHER_S)[0]
        for ref in done:
            pending[ref].take(ref)
        for each in begun:
            each.look_at(time.monotonic() if done else until, note)
