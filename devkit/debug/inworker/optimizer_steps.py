"""What an optimizer's steps and the backward passes between them come to: seen by watchers, one of each kind for each.

torch calls its hooks for every optimizer; `torch.autograd.backward` is what `loss.backward()` calls, and has none.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .imports import on_import
from .passing import unframed
from .stacks import users_lines

_MARK = "__devkit_steps__"


class Seen:
    """An optimizer, as it was made and has stepped so far. Holds nothing of it."""

    def __init__(self, made: str) -> None:
        self.made = made  # "train.py:12", or ""
        self.calls, self.graphs, self.not_finite = passes.calls, passes.of_graphs, passes.not_finite  # before
        self.steps = 0
        self.watchers: list[Watcher] | None = None  # until its first step

    def named(self) -> str:
        """As it is called in a sentence."""
        return f"the optimizer that was made at {self.made}" if self.made else "this optimizer"


class Watcher:
    """Looks at the steps of one optimizer until it says that it is over."""

    is_over = False

    def before(self, optimizer: Any) -> None:
        """Its step begins."""

    def after(self, optimizer: Any) -> None:
        """Its step has ended."""

    def backward_begins(self) -> None:
        """Of any loss; only for one that listens."""

    def backward_ended(self) -> None:
        """As before."""


class Passes:
    """The backward passes of this process."""

    def __init__(self) -> None:
        self.calls = 0
        self.of_graphs = 0  # of a tensor that operations have made
        self.not_finite = 0  # of a loss that is NaN or infinite, on the CPU
        self.listeners: weakref.WeakSet[Watcher] = weakref.WeakSet()


passes = Passes()
others: weakref.WeakSet[Seen] = weakref.WeakSet()  # optimizers that step by a way of their own, which nobody knows here
_seen: weakref.WeakKeyDictionary[Any, Seen] = weakref.WeakKeyDictionary()
_kinds: list[Callable[[Seen], Watcher]] = []


def watch(*kinds: Callable[[Seen], Watcher]) -> None:
    """Gives each optimizer a watcher of each of these kinds, once it steps."""
    _kinds[:] = kinds
    on_import("torch.autograd", _watch_backward)
    on_import("torch.optim.optimizer", _watch_optimizers)


def seen(optimizer: Any) -> Seen:
    """What is known of it."""
    if optimizer not in _seen:
        _seen[optimizer] = Seen("")
    return _seen[optimizer]


def is_torchs(optimizer: Any) -> bool:
    """Whether its step is one of torch's own, which take what is in `.grad` and leave a parameter without alone."""
    return str(getattr(type(optimizer).step, "__module__", "")).startswith("torch.optim.")


def parameters(optimizer: Any) -> list[Any]:
    """Of all of its groups."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def site(depth: int = 1) -> str:
    """The program's line that is under way, as `train.py:12`; of `depth` callers of this nothing is said."""
    at = next(users_lines(sys._getframe(depth)), None)
    return f"{os.path.basename(at['file'])}:{at['line']}" if at else ""


def named_pass(at: str) -> str:
    """A backward pass, as it is called in a sentence; `at` is its `site`, which a library's thread has none of."""
    return f"backward() at {at}" if at else "backward()"


def _watch_optimizers(module: Any) -> None:
    torch = sys.modules["torch"]
    kind = module.Optimizer
    original = kind.__init__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def made(self: Any, *arguments: Any, **options: Any) -> None:
        try:
            original(self, *arguments, **options)
        except BaseException as error:
            unframed(error)
            raise
        if not torch.compiler.is_compiling():
            with suppress(Exception):  # one of somebody's own make, which can't be a key: it is none of ours
                _seen[self] = Seen(site(2))

    def before(optimizer: Any, _arguments: Any, _options: Any) -> None:
        if not torch.compiler.is_compiling():  # asked first: a compiled step is made as if we were not there
            _before(optimizer)

    def after(optimizer: Any, _arguments: Any, _options: Any) -> None:
        if not torch.compiler.is_compiling():
            _after(optimizer)

    setattr(made, _MARK, True)
    kind.__init__ = made
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _before(optimizer: Any) -> None:
    with suppress(Exception):  # nothing of ours is worth a step of the program
        known = seen(optimizer)
        is_others = not is_torchs(optimizer) or optimizer._optimizer_step_pre_hooks  # which may bring the gradients
        if is_others and known not in others:
            others.add(known)
            known.watchers = []
        if known.watchers is None:
            known.watchers = [each(known) for each in _kinds]
        if known.watchers:
            known.watchers = [each for each in known.watchers if not each.is_over]
            known.steps += 1
            _all(known.watchers, "before", optimizer)


def _after(optimizer: Any) -> None:
    with suppress(Exception):
        if watchers := seen(optimizer).watchers:
            _all(watchers, "after", optimizer)


def _all(watchers: list[Watcher], what: str, *arguments: Any) -> None:
    for each in watchers:
        if not each.is_over:
            try:
                getattr(each, what)(*arguments)
            except Exception:  # noqa: BLE001 - of another torch, or a tensor of somebody's own make: this kind knows nothing of it
                each.is_over = True


def _watch_backward(module: Any) -> None:
    torch = sys.modules["torch"]
    original = module.backward
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def backward(tensors: Any, *arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(tensors, *arguments, **options)
        passes.calls += 1
        if not _is_leaf(tensors):
            passes.of_graphs += 1
        if _is_not_finite(torch, tensors):
            passes.not_finite += 1
        listens = bool(passes.listeners)
        if listens:
            _listen("backward_begins")
        try:
            result = original(tensors, *arguments, **options)
        except BaseException as error:
            unframed(error)
            raise
        if listens:
            _listen("backward_ended")
        return result

    setattr(backward, _MARK, True)
    module.backward = backward


def _listen(what: str) -> None:
    with suppress(RuntimeError):  # another thread's optimizer begins to listen meanwhile
        _all(list(passes.listeners), what)


def _is_leaf(tensors: Any) -> bool:
    """Whether it is surely a tensor that no operation has made: what it reaches is itself."""
    with suppress(Exception):  # a tensor of somebody's own make
        if isinstance(tensors, (list, tuple)):
            return bool(tensors) and all(map(_is_leaf, tensors))
        return getattr(tensors, "grad_fn", passes) is None
    return False


def _is_not_finite(torch: Any, loss: Any) -> bool:
    """Of a plain number on the CPU, for which nobody has to wait."""
    if type(loss) is not torch.Tensor or torch._C._len_torch_dispatch_stack():
        return False
    with suppress(Exception):  # a tensor without a value, as inside of `vmap`
        return loss.device.type == "cpu" and loss.numel() == 1 and not math.isfinite(loss.item())
    return False


__all__ = [
    "Passes",
    "Seen",
    "Watcher",
    "is_torchs",
    "named_pass",
    "others",
    "parameters",
    "passes",
    "seen",
    "site",
    "watch",
]
