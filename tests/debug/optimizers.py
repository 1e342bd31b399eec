"""What the tests of optimizers share: those of this test alone are watched, and what was said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from devkit.debug.inworker import line_warnings, no_gradients, optimizer_steps


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, *kinds: Callable[[Any], Any]) -> Iterator[None]:
    """By watchers of these kinds, until the end of the test. Needs torch."""
    import torch
    from torch.optim import optimizer

    with monkeypatch.context() as patch:
        patch.setattr(optimizer.Optimizer, "__init__", optimizer.Optimizer.__init__)
        patch.setattr(torch.autograd, "backward", torch.autograd.backward)
        for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
            patch.setattr(optimizer, hooks, type(getattr(optimizer, hooks))())
        patch.setattr(line_warnings, "_told", set())
        patch.setattr(no_gradients, "_looks", 0)
        optimizer_steps.watch(*kinds)
        yield


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The texts of the warnings since it was asked last."""
    return [line.partition("DevkitWarning: ")[2] for line in capfd.readouterr().err.splitlines() if ".py:" in line]
