"""A model without the adapters that it has: what an actor was before it was trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from torch import Tensor

from trainer.learner import lora
from trainer.learner.fsdp import Model
from trainer.records import LogProbs, Rollout


class Unadapted:
    """A model as it is without its adapters: the reference of an actor that has some."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.module = model.module
        self.device = model.device
        self.inert: list[str] = []  # what has no effect, the model itself says

    def at_hand(self) -> AbstractContextManager[None]:
        return self.model.at_hand()

    def log_probs(self, rollout: Rollout, *, entropy: bool) -> LogProbs:
        with lora.without(self.module):
            return self.model.log_probs(rollout, entropy=entropy)

    def values(self, rollout: Rollout) -> Tensor:
        with lora.without(self.module):
            return self.model.values(rollout)

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return self.model.gathered(lambda name: not lora.is_factor(name))

    exported_tensors = kept_tensors = full_tensors

    def local_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor) for name, tensor in self.model.local_tensors() if not lora.is_factor(name))
