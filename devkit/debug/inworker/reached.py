"""Breakpoints that a thread of the program reaches: whether this process is meant, the count, and what follows."""

from __future__ import annotations

import os
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from .identity import identify
from .words import say

if TYPE_CHECKING:
    from .agent import Agent
    from .records import Breakpoint

RANK_TRUSTED_SECONDS = 1.0

Document = dict[str, Any]


class Reached:
    """Those of this process. All but `told` is called in the program's threads."""

    def __init__(self, agent: Agent) -> None:
        self.points: dict[str, Breakpoint] = {}
        self._agent = agent
        self._errors: dict[str, str] = {}  # of conditions
        self.forget_hits()

    def forget_hits(self) -> None:
        """In a forked child: they are the parent's, and one of its threads may hold the lock for ever."""
        self._hits: dict[str, int] = {}
        self._lock = threading.Lock()

    def by(self, names: tuple[str, ...], frame: FrameType, raised: BaseException | None = None) -> None:
        """The breakpoints of a place, in the thread that reached it: each is counted, and it stops once.

        `raised`: what has just been raised there, where they are those of a type.
        """
        points = [point for name in names if (point := self.points.get(name)) and self._counts(point)]
        for point in points:
            if point.log:
                _log(point, frame)
        stopping = [point for point in points if not point.log]
        if stopping:
            limits = [point.timeout or self._agent.settings.stop_timeout for point in stopping]
            ids = tuple(point.id for point in stopping)
            timeout = (min(limits) and max(limits)) or None
            self._agent.stops.park(frame, "breakpoint", breakpoints=ids, timeout=timeout, raised=raised)

    def failed(self, name: str, problem: str) -> None:
        """A condition raised; told once, by whoever is first."""
        if name not in self._errors:
            self._errors[name] = problem
            say(f"the condition of breakpoint {name} failed and was ignored: {problem}")
            self._agent.wake()

    def told(self, name: str) -> Document:
        """How one of them stands, for the hub."""
        if self.points[name].raises:
            note = self._agent.raising.look()
            places = 0 if note else 1
        else:
            state = self._agent.arming.state(name)
            places, note = state.places, state.note
        error = self._errors.get(name, "")
        return {"places": places, "note": note, "hits": self._hits.get(name, 0), "error": error}

    def _counts(self, point: Breakpoint) -> bool:
        """Counts a hit; whether it is one to stop at."""
        if not self._is_meant(point):
            return False
        with self._lock:
            self._hits[point.id] = count = self._hits.get(point.id, 0) + 1
        self._agent.wake()
        from .specs import hit_matches

        return not point.hits or hit_matches(point.hits, count)

    def _is_meant(self, point: Breakpoint) -> bool:
        agent = self._agent
        if point.job_id and point.job_id != agent.identity.job_id:  # it may have been without a job until now
            agent.identity = identify()
            if point.job_id != agent.identity.job_id:
                return False
        if not point.role and not point.ranks:
            return True
        from .specs import matches_target

        # Asking for the rank takes longer than a line of the program: one that is known is taken for a second.
        if agent.identity.rank is None or time.monotonic() - agent.identified > RANK_TRUSTED_SECONDS:
            agent.look_who()
        return matches_target(point.role, point.ranks, agent.identity)


def _log(point: Breakpoint, frame: FrameType) -> None:
    from .values import evaluate_log

    who = identify()
    rank = "" if who.rank is None else f" rank {who.rank}"
    text = evaluate_log(point.log, frame)
    place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    print(f"devkit: {place} [{who.role}{rank}] {text}", flush=True)  # noqa: T201 - a logpoint prints
