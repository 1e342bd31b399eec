"""Models in training under FSDP2, on gloo and CPU as on NCCL and CUDA: the same lines.

`Model` holds the shards and answers for response tokens (`forward.py`); `Trained` adds the optimizer. Shapes as in
`records.py`; M response tokens of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from trainer.config.schema import FsdpConfig, OptimConfig, TrainedFsdpConfig
from trainer.interfaces import Loss, StepOutcome, Told
from trainer.learner import lora
from trainer.learner.forward import Forward, ForwardOptions
from trainer.learner.offload import Gradients, Offload, local
from trainer.learner.scaling import LossScale
from trainer.learner.schedule import Scheduled
from trainer.learner.stepping import Limits, read_first, read_last, reads_last, whole
from trainer.records import LogProbs, Rollout, Totals, TrainBatch
from trainer.rows import concat, take


class Model:
    """A sharded model and the forward passes that PPO needs of it."""

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        temperature: float = 1.0,
        options: ForwardOptions = ForwardOptions(),  # noqa: B008 - frozen
        *,
        memory: FsdpConfig = FsdpConfig(),  # noqa: B008 - frozen
    ) -> None:
        """`memory` says what waits in host memory; its precision is that of `module` already."""
        self.module = module
        self.device = device
        self.temperature = temperature
        self.forward = Forward(module, device, options)
        self.inert = self.forward.inert
        self.weights = Offload(
            lambda: (local(parameter.detach()) for parameter in module.parameters()),
            device,
            enabled=memory.param_offload,
            before_leaving=lambda: reshard(module),
        )
        module.train()  # gradient checkpointing acts only in training mode; dropout is off by configuration
        self.weights.put_away()

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Within it the parameters lie on the device. Around a whole phase, so that they move once."""
        with self.weights.at_hand():
            yield

    def log_probs(self, rollout: Rollout, *, entropy: bool) -> LogProbs:
        """Log-probs of the response tokens under the temperature-scaled distribution, [B, T] float32."""
        self.weights.require()
        layout = self.forward.lay_out(rollout)
        logp_M, entropy_M = self.forward.log_probs(layout, self.temperature, entropy=entropy)
        return LogProbs(layout.spread(logp_M), layout.spread(entropy_M))

    def values(self, rollout: Rollout) -> Tensor:
        """Value before each response token is taken, [B, T] float32, 0 outside the mask."""
        self.weights.require()
        layout = self.forward.lay_out(rollout)
        return layout.spread(self.forward.values(layout))

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight, whole, its adapter in it, one at a time. Collective: all ranks walk through it together."""
        adapted = lora.adapted(self.module)
        for name, weight in self.gathered(lambda name: not lora.is_factor(name)):
            if (module := adapted.get(name)) is not None:
                a, b = (whole(factor.weight.detach()) for factor in (module.lora_A, module.lora_B))
                weight = lora.merged(weight, a, b, module.lora_scale, transposed=module.transposed)
            yield name, weight

    def exported_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The same in the precision that the weights are kept in."""
        kept = {name: parameter.dtype for name, parameter in self.module.named_parameters()}
        for name, tensor in self.full_tensors():
            yield name, tensor.to(kept[name])

    def kept_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by itself: what training goes on with."""
        return self.gathered(lambda name: True)

    def factor_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The adapters alone. Collective."""
        return self.gathered(lora.is_factor)

    def gathered(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Tensor]]:
        """The parameters whose names are `wanted`, whole, one at a time. Collective."""
        reshard(self.module)  # what a forward pass has left whole is a copy of the computation's precision
        with self.weights.at_hand():
            for name, parameter in self.module.named_parameters():
                if wanted(name):
                    yield name, whole(parameter.detach())

    def local_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of every parameter, where it holds one."""
        reshard(self.module)
        with self.weights.at_hand():
            for name, parameter in self.module.named_parameters():
                part = local(parameter.detach())
                if part.numel():
                    yield name, part


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


class Trained(Model, Scheduled):
    """A model with its AdamW, learning-rate schedule and gradient clipping."""

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        optim: OptimConfig,
        *,
        grad_clip: float,
        total_steps: int,
        temperature: float = 1.0,
        options: ForwardOptions = ForwardOptions(),  # noqa: B008
        memory: TrainedFsdpConfig = TrainedFsdpConfig(),  # noqa: B008 - frozen
        loss_scale: LossScale | None = None,
    ) -> None:
        """`loss_scale` where the computation is fp16."""
        Model.__init__(self, module, device, temperature, options, memory=memory)
        optimizer = torch.optim.AdamW(
            [parameter for parameter in module.parameters() if parameter.requires_grad],
            lr=optim.lr,
            betas=(optim.betas[0], optim.betas[1]),
            weight_decay=optim.weight_decay,
            fused=device.type == "cuda" or None,  # one kernel reads and writes the state once
        )
        Scheduled.__init__(self, optimizer, optim, total_steps)
        self.grad_clip = grad_clip
        self.moments = Offload(self._optimizer_tensors, device, enabled=memory.optimizer_offload)
        self.gradients = Gradients(module.parameters(), device, enabled=memory.grad_offload)
        self.loss_scale = loss_scale

    @contextmanager
    def training(self) -> Iterator[None]:
        """As `at_hand`, for a phase that changes the parameters."""
        with self.weights.at_hand(changes=True):
            yield

    @contextmanager
    def all_at_hand(self, *, changes: bool = False) -> Iterator[None]:
        """Within it parameters and optimizer state lie on the device, for checkpoints."""
        with self.weights.at_hand(changes=changes), self.moments.at_hand(changes=changes):
            yield

    @property
    def parameter_names(self) -> frozenset[str]:
        return frozenset(name for name, parameter in self.module.named_parameters() if parameter.requires_grad)

    def accumulate(self, passes: Iterable[TrainBatch], totals: Totals, loss: Loss) -> Iterator[Told]:
        """See `interfaces.Trainable`: one pass after the other."""
        for rows in passes:
            value, told = loss(rows, totals)
            self.backward(value)
            yield told

    def backward(self, loss: Tensor) -> None:
        # FSDP averages gradients over the ranks; the losses of the ranks add up to the whole, so undo the average.
        (loss * dist.get_world_size() * self._scale).backward()
        self.gradients.put_away()

    def optimizer_step(self) -> StepOutcome:
        """Clip, step, clear. A gradient that is not finite is cleared without a step, and lowers the loss scale."""
        reshard(self.module)  # with `reshard_after_forward=False`, parameters are whole until here
        self.gradients.bring()
        limits, used = Limits(self.grad_clip, self._scale), self.loss_scale
        step = partial(read_last, optimizer=self.optimizer) if reads_last(self.optimizer) else read_first
        norms = step(self.module, limits, self._step)
        self.optimizer.zero_grad(set_to_none=True)
        if used is not None and self.learning:
            self.loss_scale = used.after(finite=norms.finite)
        return StepOutcome(norms.total, norms.finite, norms.nonzero, used.scale if used else None)

    def _step(self) -> None:
        if self.learning:
            with self.moments.at_hand(changes=True):
                self.optimizer.step()

    @property
    def _scale(self) -> float:
        return self.loss_scale.scale if self.loss_scale else 1.0

    def optimizer_steps(self) -> int:
        """How many steps the optimizer has done."""
        with self.moments.at_hand():  # a fused optimizer counts on the device
            return int(max((state["step"] for state in self.optimizer.state.values() if "step" in state), default=0))

    def optimizer_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The optimizer's state, whole, one tensor at a time, as PARAMETER:NAME. Collective."""
        with self.all_at_hand():
            for name, parameter in self.module.named_parameters():
                for key, value in self.optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        yield f"{name}:{key}", whole(value.detach())

    def _optimizer_tensors(self) -> Iterator[Tensor]:
        for state in self.optimizer.state.values():
            yield from (local(value) for value in state.values() if isinstance(value, Tensor))


Output = TypeVar("Output", Tensor, LogProbs)


def forward_only(compute: Callable[[Rollout], Output], rollout: Rollout, passes: Sequence[Tensor]) -> Output:
    """`compute` over `passes`, the row numbers of each, without gradient; answers in the rows' order, on the host."""
    parts: list[Output] = []
    for index in passes:
        with torch.no_grad():
            part = compute(take(rollout, index))
        parts.append(part.cpu())
    return take(concat(parts), torch.cat(list(passes)).argsort())


def reshard(module: nn.Module) -> None:
    """Frees whole parameters; those that are sharded already stay as they are."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
