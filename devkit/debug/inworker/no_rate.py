"""Steps with a learning rate of 0, which change nothing: from the first one on, or since a schedule has run out.

A warm-up begins with 0 as well, and other optimizers may have their turn: those are given time.
"""

from __future__ import annotations

import weakref
from typing import Any

from .line_warnings import once
from .optimizer_steps import Seen, Watcher, others, parameters, passes

FIRST = 10  # steps, each with a gradient
FIRST_SCHEDULED = 30  # of an optimizer that has a scheduler, which may be warming up
FIRST_OF_SEVERAL = 100  # where another optimizer steps
RUN_OUT = 30  # steps, and as many as there were before
MOVING_ANYWAY = ("Rprop", "LBFGS")  # their steps are not as long as the rate is large

_stepping: weakref.WeakSet[Seen] = weakref.WeakSet()


class NoRate(Watcher):
    """Warns of an optimizer that has no learning rate in any of its groups, for long."""

    def __init__(self, known: Seen) -> None:
        self._known = known
        self._calls = known.calls  # backward passes before its last step
        self._moving = 0  # steps
        self._standing = 0  # one after the other, with a gradient
        self._since = 0  # the number of the first of them
        _stepping.add(known)

    def after(self, optimizer: Any) -> None:
        has_pass, self._calls = passes.calls > self._calls, passes.calls
        if any(type(group["lr"]) not in (int, float) or group["lr"] for group in optimizer.param_groups):
            self._moving += 1
            self._standing = 0
            self.is_over = "initial_lr" not in optimizer.param_groups[0]  # nothing of torch's changes it any more
        elif any(each.__name__ in MOVING_ANYWAY for each in type(optimizer).__mro__):
            self.is_over = True
        elif has_pass and any(each.grad is not None for each in parameters(optimizer)):
            self._standing += 1
            if self._standing == 1:
                self._since = self._known.steps
            if told := self._told("initial_lr" in optimizer.param_groups[0]):
                self.is_over = True
                once(f"no rate {self._known.made}", told, 1)

    def _told(self, is_scheduled: bool) -> str:
        alone = all(each is self._known for each in (*_stepping, *others))
        rate = f"the learning rate of {self._known.named()} was 0, which changes nothing, in"
        if not self._moving:
            wait = FIRST_SCHEDULED if is_scheduled else FIRST
            wait = wait if alone else FIRST_OF_SEVERAL
            return f"{rate} each of its {self._known.steps} steps so far" if self._standing == wait else ""
        if alone and is_scheduled and self._standing == max(RUN_OUT, self._moving):
            return f"{rate} {self._standing} steps since step {self._since}: has its scheduler run out?"
        return ""


__all__ = ["NoRate"]
