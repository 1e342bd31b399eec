"""Gradients that nobody clears: each backward pass adds to those of all steps before.

for batch in loader:
    loss(batch).backward()  # no optimizer.zero_grad() before
    optimizer.step()

Whatever clears them, `zero_grad`, `.grad = None` or `.grad.data.zero_()`, it is seen in their values. What a step
leaves must be there, untouched, when the next backward pass begins, which adds something; and the next step takes that.
"""

from __future__ import annotations

import sys
import weakref
from itertools import islice
from typing import Any, NamedTuple

from .line_warnings import once
from .optimizer_steps import Seen, Watcher, named_pass, parameters, passes, site

STEPS = 4  # one after the other, between which nothing was cleared
MOST = 20  # steps that are looked at
SAMPLE = 4  # the smallest of the parameters
LARGEST = 65536  # elements of one of them
ALIKE = 0.9999  # the cosine between a gradient and what clipping or a scaler has made of it


class _Sample:
    """A gradient that a step has left, and what has become of it."""

    def __init__(self, parameter: Any) -> None:
        self._parameter = weakref.ref(parameter)
        self._gradient = parameter.grad  # itself: another one that is put in its place is another thing
        self._known = self._now()
        self.has_grown = False

    def _now(self) -> Any:
        return self._gradient.detach().clone()

    def _is_there(self) -> bool:
        parameter = self._parameter()
        return parameter is not None and parameter.grad is self._gradient and bool(self._gradient.detach().any())

    def is_same(self) -> bool:
        """Nobody has touched it since the step, or the last backward pass."""
        return self._is_there() and bool(_torch().equal(self._gradient.detach(), self._known))

    def is_alike(self) -> bool:
        """It is a multiple of what it was after the last backward pass."""
        if not self._is_there():
            return False
        one, other = (each.flatten().double() for each in (self._gradient.detach(), self._known))
        return bool(one.dot(other) >= ALIKE * one.norm() * other.norm())

    def grow(self) -> None:
        """A backward pass has ended."""
        now = self._now()
        self.has_grown |= not _torch().equal(now, self._known)
        self._known = now


class _Left(NamedTuple):
    """The gradient of a parameter as it was left, without its values."""

    parameter: Any  # weak, as the next: what the program lets go of goes
    gradient: Any
    version: int  # torch counts what is done to a tensor in place

    def is_untouched(self) -> bool:
        parameter, gradient = self.parameter(), self.gradient()
        there = parameter is not None and gradient is not None and parameter.grad is gradient
        return there and gradient._version == self.version


def _left(optimizer: Any) -> list[_Left]:
    every = ((each, each.grad) for each in parameters(optimizer))
    return [_Left(weakref.ref(one), weakref.ref(grad), grad._version) for one, grad in every if grad is not None]


class AddingUp(Watcher):
    """Warns of an optimizer's first steps, if their gradients were never cleared. Only of tensors on the CPU."""

    def __init__(self, known: Seen) -> None:
        self._known = known
        self._samples: list[_Sample] = []
        self._left: list[_Left] = []  # of all parameters: whatever clears one of them ends the suspicion
        self._optimizer: Any = None
        self._steps = 0  # one after the other
        self._at = ""  # the last backward pass

    def before(self, optimizer: Any) -> None:
        with _torch()._C.DisableTorchFunction():
            if not all(each.is_alike() for each in self._samples):
                self.is_over = True
            elif self._samples and all(each.has_grown for each in self._samples):
                self._steps += 1
            else:
                self._steps = 0
        if self._steps >= STEPS - 1 and not self.is_over:
            self.is_over = True
            once(f"adding up {self._known.made}", self._told(), 1)

    def after(self, optimizer: Any) -> None:
        if self._known.steps >= MOST:
            self.is_over = True
            return
        with _torch()._C.DisableTorchFunction():
            smallest = sorted(parameters(optimizer), key=lambda each: int(each.numel()))
            self._samples = [_Sample(each) for each in islice(filter(_fits, smallest), SAMPLE)]
            self._left, self._optimizer = _left(optimizer), weakref.ref(optimizer)
        passes.listeners.add(self)

    def backward_begins(self) -> None:
        with _torch()._C.DisableTorchFunction():
            is_same = all(each.is_untouched() for each in self._left) and all(each.is_same() for each in self._samples)
            if _torch()._C._len_torch_dispatch_stack() or not is_same:
                self.is_over = True
        if self._steps == STEPS - 2:
            self._at = site()

    def backward_ended(self) -> None:
        with _torch()._C.DisableTorchFunction():
            for each in self._samples:
                each.grow()
            optimizer = self._optimizer() if self._optimizer is not None else None
            self._left = [] if optimizer is None else _left(optimizer)

    def _told(self) -> str:
        return (
            f"the gradients of {self._known.named()} add up: they were never cleared between its last {STEPS} steps, "
            f"and {named_pass(self._at)} has added to those of all of them (is zero_grad() missing?)"
        )


def _torch() -> Any:
    return sys.modules["torch"]


def _fits(parameter: Any) -> bool:
    """Whether its gradient can be looked at, and is something."""
    torch, gradient = _torch(), parameter.grad
    if type(gradient) is not torch.Tensor or gradient.device.type != "cpu" or gradient.layout is not torch.strided:
        return False
    if not 0 < gradient.numel() <= LARGEST or torch._C._len_torch_dispatch_stack():
        return False
    return bool(gradient.detach().any())


__all__ = ["AddingUp"]
