"""An optimizer whose steps change nothing, since its parameters have no gradients when it steps.

Its loss is cut off from them, it was made of parameters that the model has no more, they are frozen, or their gradients
are cleared before. Nothing is raised: torch's optimizers leave a parameter without a gradient alone.

optimizer = torch.optim.AdamW(model.parameters())
model.head = nn.Linear(512, 10)  # in no optimizer
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from contextlib import suppress
from typing import Any

from .line_warnings import once
from .optimizer_steps import Seen, Watcher, named_pass, others, parameters, passes, site
from .stacks import users_lines
from .torch_modules import Alive, Orphans, look
from .words import warn

AT = (3, 10, 30)  # steps, each with a backward pass before it, at which is said what is known for sure
LONG = 30  # steps of an optimizer that has ended, of which the fact is enough
LOOKS = 4  # of this process at all of its objects
FIRST = 8  # parameters
MOST_GROUPS = 4
SMALL = 0.05  # of all elements
SHOWN = 2  # their names

_working: weakref.WeakSet[Seen] = weakref.WeakSet()  # optimizers that had a gradient at a step
open_ends: weakref.WeakSet[NoGradients] = weakref.WeakSet()
_looks = 0


class _End:
    """What is said at the end of an optimizer, and of which line."""

    def __init__(self, file: str, line: int) -> None:
        self.file, self.line, self.text = file, line, ""
        self.pid = os.getpid()


class _Claim:
    """What can be said, if the gradients that it is concluded from are others a step later, and not left by others."""

    def __init__(self, told: str, orphans: Orphans | None = None) -> None:
        self.told = told
        self.is_sure = orphans is None
        if orphans is not None:
            smallest = min(orphans.named.values(), key=lambda each: int(each.numel()))
            self._parameter = weakref.ref(smallest)
            self._gradient = smallest.grad  # itself, until the next step
            self._version = _version(smallest.grad)

    def is_so(self) -> bool:
        if self.is_sure:
            return True
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None:
            return False
        return gradient is not self._gradient or _version(gradient) != self._version


def _version(gradient: Any) -> int:
    """How often it was changed; of a sharded one, its part here."""
    return int(getattr(gradient, "_local_tensor", gradient)._version)


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
        self._at = self._giver = ""  # the last backward pass, and the last one that gave some
        self._end: _End | None = None
        self._claims: list[_Claim] = []  # until the next step
        self._judged = 0  # after so many steps
        self._was_whole = True  # what they are of

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
        elif not whole or self._steps > AT[-1]:
            passes.listeners.discard(self)
        if self._steps > self._judged:
            claims, self._claims = self._claims, []
            self._say(claims if whole is self._was_whole else [])
            if never and self._steps in AT:
                self._judged = self._steps
                self._judge(optimizer, never, whole)
        if not never or (self._steps >= (AT[-1] if whole else AT[0]) and not _groups(optimizer, never)):
            self.is_over = not self._claims
        self._look_ahead(optimizer, never)

    def backward_ended(self) -> None:
        self._at = site()
        parameters_now = [each for each in (ref() for ref in self._first) if each is not None]
        if not self._has_come and any(each.grad is not None for each in parameters_now):
            self._has_come, self._giver = True, self._at

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
        claims = self._of_all(dead) if whole else _replaced(optimizer, dead, self._known)
        if claims and claims[0].is_sure:
            self._say(claims)
        else:
            self._claims, self._was_whole = claims, whole

    def _say(self, claims: list[_Claim]) -> None:
        told = next((each.told for each in claims if each.is_so()), "")
        if told and not self.is_over:
            self.is_over = True
            once(f"no gradients {self._known.made}", told, 1)

    def _of_all(self, dead: list[Any]) -> list[_Claim]:
        """Why none of them has a gradient, where that is sure."""
        fact = (
            f"optimizer.step() has changed nothing in {self._known.steps} steps: none of the {len(dead)} "
            f"parameters of {self._known.named()} has a gradient when it steps"
        )
        if self._came and self._came >= self._steps - 1:
            giver = named_pass(self._giver)
            cleared = f"{giver} gives them some, which are cleared before it, as by zero_grad()"
            return [_Claim(f"{fact}; {cleared}")]
        if self._graphs == passes.of_graphs:
            made_anew = "a tensor that no operation has made (torch.tensor(...) and detach() give such)"
            return [_Claim(f"{fact}; {named_pass(self._at)} is called on {made_anew}, and reaches no parameter")]
        alive = _look()
        is_owned = any(id(each) in alive.owned for each in dead)
        gone = "" if is_owned else ", and its own are in no module"
        claims = [
            _Claim(f"{fact}; {_names(each)} have the same shapes, and gradients, and are in no optimizer{gone}", each)
            for each in _twins(dead, alive)
        ]
        is_frozen = not any(each.requires_grad for each in dead)
        alone = all(each is self._known for each in (*_working, *others))
        if alone and (is_frozen or is_owned):
            fact += ": requires_grad is False for each" * is_frozen
            claims += [
                _Claim(f"{fact}; {_names(each)} have gradients, and are in no optimizer", each)
                for each in alive.orphans
            ]
            claims.append(_Claim(fact))
        return claims

    def _look_ahead(self, optimizer: Any, never: set[int]) -> None:
        """What is to be said if it ends like this: other steps may still come to have gradients, and are waited for."""
        groups = _groups(optimizer, never) if self._steps >= LONG and not self.is_over else []
        if not groups:
            self._end = None
            return
        if self._end is None:
            at = next(users_lines(sys._getframe(1)), None)
            self._end = _End(str(at["file"]), int(at["line"])) if at else _End("", 0)
            open_ends.add(self)
            weakref.finalize(optimizer, self.ended)
        self._end.text = _of_groups(groups, len(optimizer.param_groups), self._known)

    def ended(self) -> None:
        """The optimizer is gone, or its process ends."""
        end, self._end = self._end, None
        if end is not None and end.file and end.pid == os.getpid():
            with suppress(Exception):  # at the very end of Python
                warn(end.file, end.line, end.text)


def _look() -> Alive:
    global _looks
    _looks += 1
    return look() if _looks <= LOOKS else Alive(frozenset(), [])


def _twins(dead: list[Any], alive: Alive) -> list[Orphans]:
    """Modules that have parameters of the same shapes, all with gradients."""
    wanted = Counter(tuple(each.shape) for each in dead)
    return [each for each in alive.orphans if wanted <= Counter(tuple(one.shape) for one in each.named.values())]


def _replaced(optimizer: Any, dead: list[Any], known: Seen) -> list[_Claim]:
    """A part of the model that was made anew after the optimizer."""
    kind = sys.modules["torch"].nn.Parameter
    lost = [each for each in dead if each.requires_grad and isinstance(each, kind)]
    if not lost:
        return []
    alive = _look()
    gone = sum(id(each) not in alive.owned for each in lost)
    used = {id(each) for each in parameters(optimizer)} - {id(each) for each in dead}
    told = (
        f"{gone} of the {len(parameters(optimizer))} parameters of {known.named()} are in no module, and had no "
        f"gradient in {known.steps} steps; "
    )
    made_anew = [each for each in alive.orphans if used & each.siblings] if gone else []
    return [_Claim(f"{told}{_names(each)} have gradients, and are in no optimizer", each) for each in made_anew]


def _groups(optimizer: Any, never: set[int]) -> list[tuple[int, int]]:
    """(number, parameters) of each group in which nothing had a gradient, and each could have one.

    Small ones are no news: a layer that is not used, as many models have, may be a group by itself.
    """
    groups = optimizer.param_groups
    if len(groups) > MOST_GROUPS:
        return []
    sizes = [sum(int(one.numel()) for one in each["params"]) for each in groups]
    return [
        (at, len(each["params"]))
        for at, each in enumerate(groups)
        if sizes[at] > SMALL * sum(sizes) and all(id(one) in never and one.requires_grad for one in each["params"])
    ]


def _of_groups(groups: list[tuple[int, int]], total: int, known: Seen) -> str:
    at, count = groups[0]
    what = f"param_groups[{at}] of {known.named()}" if len(groups) < total else known.named()
    count = count if len(groups) < total else sum(each for _, each in groups)
    return (
        f"optimizer.step() has changed nothing of {what} in all of its {known.steps} steps: "
        f"none of the {count} parameters had a gradient"
    )


def _names(orphans: Orphans) -> str:
    names, more = list(orphans.named)[:SHOWN], len(orphans.named) - SHOWN
    return f"{', '.join(names)}{f' and {more} more' if more > 0 else ''} of {orphans.module}"


def tell_ends() -> None:
    """Of the optimizers that this process still has, when it ends."""
    for each in list(open_ends):
        each.ended()


__all__ = ["NoGradients", "tell_ends"]
