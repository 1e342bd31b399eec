"""An optimizer whose steps change nothing, since its parameters have no gradients when it steps.

Its loss is cut off from them, it was made of parameters that the model has no more, they are frozen, or their gradients
are cleared before. Nothing is raised: torch's optimizers leave a parameter without a gradient alone.

optimizer = torch.optim.AdamW(model.parameters())
model.head = nn.Linear(512, 10)  # in no optimizer
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from typing import Any

from .line_warnings import once
from .optimizer_steps import Seen, Watcher, parameters, passes, site
from .torch_modules import Alive, Orphans, look

AT = (3, 10, 30)  # steps, each with a backward pass before it, at which is said what is known for sure
LONG = 100  # steps after which the fact is enough
LOOKS = 4  # of this process at all of its objects
FIRST = 8  # parameters
SHOWN = 2  # their names

_working: weakref.WeakSet[Seen] = weakref.WeakSet()  # optimizers that had a gradient at a step
_looks = 0


class NoGradients(Watcher):
    """Warns of an optimizer that has never changed anything, and of what it has that no module has any more."""

    def __init__(self, known: Seen) -> None:
        self._known = known
        self._never: set[int] | None = None  # ids of parameters that had no gradient at any step
        self._calls = known.calls  # backward passes before its last step
        self._graphs = known.graphs  # of those, when it was made
        self._steps = 0  # with a backward pass before
        self._first: list[weakref.ref[Any]] = []  # parameters
        self._has_come = False  # a gradient, by the backward passes since the last step
        self._came = 0  # before how many steps
        self._at = ""  # the last backward pass

    def before(self, optimizer: Any) -> None:
        if self._never is None:
            self._never = {id(each) for each in parameters(optimizer)}
        self._strike(optimizer)
        self._count()

    def after(self, optimizer: Any) -> None:
        """Looks again if it was given a closure, which makes the gradients during the step."""
        if passes.calls > self._calls:
            self._strike(optimizer)
            self._count()
        never = self._never or set()
        whole = all(id(each) in never for each in parameters(optimizer))
        if whole and never and not self._first:
            self._first = [weakref.ref(each) for each in parameters(optimizer)[:FIRST]]
            passes.listeners.add(self)
        elif not whole:
            passes.listeners.discard(self)
        if never and (self._steps in AT or self._steps == LONG):
            self._judge(optimizer, never, whole)
        if not never or self._steps >= LONG or (not whole and self._steps >= AT[0] and not _groups(optimizer, never)):
            self.is_over = True

    def backward_ended(self) -> None:
        parameters_now = [each for each in (ref() for ref in self._first) if each is not None]
        self._has_come |= any(each.grad is not None for each in parameters_now)
        self._at = site()

    def _count(self) -> None:
        self._steps += passes.calls > self._calls
        self._came += self._has_come
        self._calls, self._has_come = passes.calls, False

    def _strike(self, optimizer: Any) -> None:
        assert self._never is not None
        for each in parameters(optimizer) if self._never else ():
            if id(each) in self._never and each.grad is not None:
                self._never.discard(id(each))
                _working.add(self._known)

    def _judge(self, optimizer: Any, never: set[int], whole: bool) -> None:
        dead = [each for each in parameters(optimizer) if id(each) in never]
        if any(not each.numel() for each in dead):  # a part of what is kept elsewhere, as FSDP does
            self.is_over = True
            return
        if whole:
            told = self._of_all(dead)
        elif self._steps == AT[0]:
            told = _replaced(optimizer, dead, self._known)
        else:
            told = _of_group(optimizer, never, self._known) if self._steps == LONG else ""
        if told:
            self.is_over = True
            once(f"no gradients {self._known.made}", told, 1)

    def _of_all(self, dead: list[Any]) -> str:
        """Why none of them has a gradient, where that is sure."""
        fact = (
            f"optimizer.step() has changed nothing in {self._known.steps} steps: none of the {len(dead)} "
            f"parameters of {self._known.named()} has a gradient when it steps"
        )
        if self._came and self._came >= self._steps - 1:
            return f"{fact}; backward() at {self._at} gives them some, which are cleared before it, as by zero_grad()"
        if self._graphs == passes.of_graphs:
            made_anew = "a tensor that no operation has made (torch.tensor(...) and detach() give such)"
            return f"{fact}; backward() at {self._at} is called on {made_anew}, and reaches no parameter"
        alive = _look()
        if twin := _twin(dead, alive):
            gone = "" if any(id(each) in alive.owned for each in dead) else ", and its own are in no module"
            return f"{fact}; {_names(twin)} have the same shapes, and gradients, and are in no optimizer{gone}"
        alone = all(each is self._known for each in _working)
        others = f"; {_names(alive.orphans[0])} have gradients, and are in no optimizer" if alive.orphans else ""
        if not any(each.requires_grad for each in dead):
            return f"{fact}: requires_grad is False for each{others}" if alone else ""
        if self._steps == LONG or (alone and any(id(each) in alive.owned for each in dead)):
            return f"{fact}{others}"
        return ""


def _look() -> Alive:
    global _looks
    _looks += 1
    return look() if _looks <= LOOKS else Alive(frozenset(), [])


def _twin(dead: list[Any], alive: Alive) -> Orphans | None:
    """A module that has parameters of the same shapes, all with gradients."""
    wanted = Counter(tuple(each.shape) for each in dead)
    shapes = [(each, Counter(tuple(one.shape) for one in each.named.values())) for each in alive.orphans]
    return next((each for each, has in shapes if wanted <= has), None)


def _replaced(optimizer: Any, dead: list[Any], known: Seen) -> str:
    """A part of the model that was made anew after the optimizer."""
    kind = sys.modules["torch"].nn.Parameter
    lost = [each for each in dead if each.requires_grad and isinstance(each, kind)]
    if not lost:
        return ""
    alive = _look()
    gone = sum(id(each) not in alive.owned for each in lost)
    used = {id(each) for each in parameters(optimizer)} - {id(each) for each in dead}
    new = next((each for each in alive.orphans if used & each.siblings), None)
    if not gone or new is None:
        return ""
    return (
        f"{gone} of the {len(parameters(optimizer))} parameters of {known.named()} are in no module, and had no "
        f"gradient in {known.steps} steps; {_names(new)} have gradients, and are in no optimizer"
    )


def _groups(optimizer: Any, never: set[int]) -> list[tuple[int, int]]:
    """(number, parameters) of each group in which nothing had a gradient, and each could have one."""
    groups = [(at, group["params"]) for at, group in enumerate(optimizer.param_groups)]
    return [
        (at, len(each)) for at, each in groups if each and all(id(one) in never and one.requires_grad for one in each)
    ]


def _of_group(optimizer: Any, never: set[int], known: Seen) -> str:
    found = _groups(optimizer, never)
    if not found:
        return ""
    at, count = found[0]
    return (
        f"optimizer.step() has left param_groups[{at}] of {known.named()} as it was in {known.steps} steps: "
        f"none of its {count} parameters had a gradient"
    )


def _names(orphans: Orphans) -> str:
    names, more = list(orphans.named)[:SHOWN], len(orphans.named) - SHOWN
    return f"{', '.join(names)}{f' and {more} more' if more > 0 else ''} of {orphans.module}"


__all__ = ["NoGradients"]
