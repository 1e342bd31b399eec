"""Parameters that a step makes NaN or infinite: they stay so, and a run goes on to its end with them.

Only tensors on the CPU are looked at, since a look at others makes the program wait for its device. What `GradScaler`
leaves out is no step.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from .line_warnings import once
from .optimizer_steps import Seen, Watcher, parameters, passes

EVERY = 100  # steps, each whose number is a power of two, and each after a loss that was not finite
SHARE = 200  # otherwise: as long as the looks take no more than this part of the time


class NotFinite(Watcher):
    """Warns of the first look at which what was finite is so no more."""

    def __init__(self, known: Seen) -> None:
        self._known = known
        self._finite: set[int] | None = None  # ids of parameters that were so before the first step
        self._began = self._spent = 0.0  # seconds
        self._losses = known.not_finite  # before its last step
        self._last = 0  # step at which they all were

    def before(self, optimizer: Any) -> None:
        if self._finite is None:
            self._began = time.perf_counter()
            self._finite = {id(each) for each in parameters(optimizer) if _is_finite(each)}
            self.is_over = not self._finite
            self._spent = time.perf_counter() - self._began

    def after(self, optimizer: Any) -> None:
        step, now = self._known.steps, time.perf_counter()
        is_due = not step & (step - 1) or not step % EVERY or passes.not_finite > self._losses
        self._losses = passes.not_finite
        if not is_due and self._spent * SHARE > now - self._began:
            return
        finite = self._finite or set()
        bad = [each for each in parameters(optimizer) if id(each) in finite and _is_finite(each) is False]
        if bad:
            self.is_over = True
            once(f"not finite {self._known.made}", self._told(bad, parameters(optimizer)), 1)
        self._last = step
        self._spent += time.perf_counter() - now

    def _told(self, bad: list[Any], every: list[Any]) -> str:
        gradients = [None if each.grad is None else _is_finite(each.grad) for each in bad]
        is_whole = all(id(each) in (self._finite or ()) for each in every)  # others were not looked at, or not finite
        least, were = ("", "all were") if is_whole else ("at least ", "these were")
        since = f"after step {self._last} {were} finite" if self._last else f"before it {were} finite"
        reason = ""
        if wrong := gradients.count(False):
            known = "at least " * (None in gradients)
            reason = f"; the gradients of {known}{wrong} of them are not finite either"
        elif all(gradients):
            reason = "; their gradients are finite"
        return (
            f"after optimizer.step() number {self._known.steps}, {least}{len(bad)} of the {len(every)} parameters of "
            f"{self._known.named()} have values that are {_kind(bad)}; {since}{reason}"
        )


def _is_finite(tensor: Any) -> bool | None:
    """Whether each of its elements is; None where it can't be known without a wait."""
    torch: Any = sys.modules["torch"]
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return None
    if tensor.layout is not torch.strided or not tensor.is_floating_point() or torch._C._len_torch_dispatch_stack():
        return None
    with torch._C.DisableTorchFunction(), torch.no_grad():
        # One pass without a copy tells it, but for a sum that is too large for its type.
        return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def _kind(bad: list[Any]) -> str:
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        return "NaN" if any(bool(torch.isnan(each).any()) for each in bad) else "infinite"


__all__ = ["NotFinite"]
