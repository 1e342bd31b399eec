"""Training that runs to its end and has done nothing, or wrong: what is looked at in each program that uses torch."""

from __future__ import annotations

from . import optimizer_steps, sampler_epochs
from .adding_up import AddingUp
from .no_gradients import NoGradients, tell_ends
from .no_rate import NoRate
from .not_finite import NotFinite

KINDS = (NoGradients, NotFinite, AddingUp, NoRate)


def watch() -> None:
    """Warns once of each line, where something is sure."""
    optimizer_steps.watch(*KINDS)
    sampler_epochs.watch()


__all__ = ["KINDS", "tell_ends", "watch"]
