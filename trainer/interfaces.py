"""The seams of the trainer: what `ppo.py` asks of a model, of an engine, and of all workers together.

Each has an implementation for real runs (`learner/fsdp.py` and `learner/megatron/`, `rollout/hf.py`, `group.py`); the
unit tests put small fakes in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from trainer.records import LogProbs, Prompts, Rollout, Row, Sample, Scores, Totals, TrainBatch, UpdateReport

if TYPE_CHECKING:
    from trainer.asked import Asked
    from trainer.rollout.server import Answer

Args = Sequence[tuple[Any, ...] | None]  # of a phase, by rank of the run; a rank with None is left out
Clock = Callable[[str], AbstractContextManager[object]]  # times a phase under a name
Loss = Callable[[TrainBatch, Totals], "tuple[Tensor, Told]"]  # of a micro-batch, and what to report of it


@dataclass(frozen=True)
class Told:
    """What a pass reports: tensors of one number each, on its device. Whoever reads them waits for the pass."""

    figures: Mapping[str, Tensor]
    check: Callable[[], None] = lambda: None  # reads the loss; raises NotFinite


class Policy(Protocol):
    """A causal language model on this rank."""

    def log_probs(self, rollout: Rollout, *, entropy: bool) -> LogProbs:
        """With gradient. Without `entropy`, `entropy_BT` is zeros."""
        ...


class Critic(Protocol):
    """A value model on this rank."""

    def values(self, rollout: Rollout) -> Tensor:
        """[B, T] float32, 0 outside the mask; with gradient."""
        ...


@dataclass(frozen=True)
class StepOutcome:
    """What one optimizer step did."""

    grad_norm: float  # before clipping, over all ranks
    finite: bool  # otherwise the step was left out
    with_gradient: frozenset[str]  # names of the parameters whose gradient is not zero everywhere on this rank
    loss_scale: float | None = None  # that it was computed with; None: not scaled


class Trainable(Protocol):
    """A model with an optimizer on this rank; its gradients are summed over the ranks."""

    device: torch.device  # where its losses are computed

    @property
    def parameter_names(self) -> frozenset[str]: ...

    def accumulate(self, passes: Iterable[TrainBatch], totals: Totals, loss: Loss) -> Iterator[Told]:
        """Adds the gradient of `loss` over each pass; gives what it reports. A pipeline runs them overlapped."""
        ...

    def optimizer_step(self) -> StepOutcome: ...

    def advance_schedule(self) -> float:
        """Ends the update; gives the learning rate that it used."""
        ...


@dataclass(frozen=True)
class Sampling:
    """How to sample. `seed` and the prompt's uid decide every draw: the same on any number of ranks."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int  # -1: off
    do_sample: bool
    ignore_eos: bool
    seed: int
    stop: tuple[str, ...] = ()  # a turn ends with the token that completes one of these; of conversations alone


class Engine(Protocol):
    """A rollout engine on this rank."""

    version: int  # of the weights: how often they were loaded

    def generate(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        """A row whose mask is empty has no response: the engine died, and `revive` brings it back."""
        ...

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes full tensors by the names of the model's own state dict; walks to the end of them."""
        ...

    def revive(self, tensors: Iterable[tuple[str, Tensor]]) -> int:
        """Starts the engines that died, with these weights; gives how many of the run's. Collective."""
        ...

    def checksums(self) -> dict[str, str]:
        """`rollout.sums` of each tensor that it holds."""
        ...

    def sleep(self) -> None:
        """Gives back what only generation needs."""
        ...

    def wake(self) -> None:
        """Takes it again, now and not only when it is needed."""
        ...


@dataclass(frozen=True)
class Request:
    """The next turn of a conversation."""

    row: int  # among the prompts that are played
    sample: Sample
    turn: int  # from 0
    ids: Sequence[int]  # all that is read
    most: int  # tokens that it may have
    of: Row


class Talk(Protocol):
    """Conversations with an engine, turn by turn."""

    gathers: bool  # it computes what it is asked at once, as one batch
    gone: bool  # the engine has died: what is open has no answer

    @property
    def lines(self) -> Sequence[Any]:
        """What to wait for: each has a `fileno` that can be read when there is an answer."""
        ...

    def ask(self, requests: Sequence[Request]) -> None:
        """Each will have an answer, unless the engine dies. A row is asked once at a time."""
        ...

    def drop(self, row: int) -> None:
        """Nobody waits for its answer any more."""
        ...

    def patience(self) -> float | None:
        """Seconds after which `take` is to be called though no line can be read; None: it need not be."""
        ...

    def take(self) -> list[Answer]:
        """The answers that are there, by row. Raises EngineError, DeadlineError."""
        ...

    def close(self) -> None:
        """Ends them, whatever is open."""
        ...


@runtime_checkable
class Talks(Protocol):
    """An engine that answers a turn as soon as it is done, beside others. `Engine` may be one."""

    def talk(self, prompts: Prompts, sampling: Sampling) -> Talk:
        """For conversations that begin with `prompts`."""
        ...


class Calls(Protocol):
    """One phase on all ranks at once."""

    world_size: int

    def all(self, phase: str, args: Args) -> list[Any]:
        """`phase(*args[rank])` on each rank; gives the answers by rank. Raises what a rank raised.

        A rank whose arguments are None is left out, and answers None.
        """
        ...


@runtime_checkable
class SideBySide(Calls, Protocol):
    """`Calls` of which several can be under way at a time: those of ranks in processes of their own."""

    def begin(self, phase: str, args: Args) -> Any:
        """`all` without the wait; what it gives is for `first`."""
        ...

    def first(self, begun: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The first of several that is done, and its answers by rank. Raises what a rank raised in any of them."""
        ...


class Workers(Protocol):
    """All ranks together, as the driver sees them: whole batches in, whole batches out."""

    def generate(self, prompts: Prompts, step: int, *, validate: bool) -> Rollout: ...

    def score(self, rollout: Rollout) -> Scores: ...

    # What one calls these for is asked first, and computed by `together`, or by `now`.

    def log_probs(self, rollout: Rollout) -> Asked[LogProbs]: ...

    def ref_log_probs(self, rollout: Rollout) -> Asked[Tensor]: ...

    def values(self, rollout: Rollout) -> Asked[Tensor]: ...

    def update_critic(self, batch: TrainBatch, step: int) -> Asked[UpdateReport]: ...

    def update_actor(self, batch: TrainBatch, step: int) -> Asked[UpdateReport]: ...

    def together(self, asked: Mapping[str, Asked[Any]], clock: Clock) -> dict[str, Any]:
        """The results of phases that need nothing of one another, each timed under its name.

        Side by side where they have ranks of their own, else one after the other in their order.
        """
        ...

    def sync_weights(self) -> None: ...
