"""What a training engine offers of a model on this rank: `learner/fsdp.py` and `learner/megatron/` do so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from trainer.interfaces import Critic, Policy, Trainable
from trainer.learner.scaling import LossScale


class Learner(Policy, Critic, Protocol):
    """This rank's part of a model on a training engine. Tensors go by the names that transformers has for them."""

    device: torch.device
    module: Any  # knows the model's configuration, as transformers saves it
    inert: list[str]  # settings that have no effect with this architecture, and why; known after the first pass

    def at_hand(self) -> AbstractContextManager[None]:
        """Within it the parameters lie on the device."""
        ...

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight, whole, its adapter in it, one at a time, as a rollout engine takes it. Collective."""
        ...

    def exported_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """As `full_tensors`, with all the digits that the parameters are kept with."""
        ...

    def kept_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What training goes on with: adapters by themselves. Collective."""
        ...

    def local_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of every parameter, where it holds one."""
        ...


@runtime_checkable
class TrainedLearner(Learner, Trainable, Protocol):
    """A model in training on a training engine."""

    updates: int  # done, as the learning rate's schedule counts them
    loss_scale: LossScale | None  # None: not scaled

    def training(self) -> AbstractContextManager[None]:
        """As `at_hand`, for a phase that changes the parameters."""
        ...

    def frozen(self) -> AbstractContextManager[None]:
        """Within it, updates compute and report everything but change neither weights nor schedule."""
        ...

    def optimizer_steps(self) -> int:
        """How many steps the optimizer has done."""
        ...

    def optimizer_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The optimizer's state, whole, one tensor at a time, as PARAMETER:NAME. Collective."""
        ...
