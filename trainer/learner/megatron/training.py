"""A Megatron model in training: its gradients, Megatron's AdamW (distributed or not), the schedule, and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor, nn

from trainer.config.schema import MegatronConfig, OptimConfig
from trainer.interfaces import Loss, StepOutcome, Told
from trainer.learner.megatron.host import on_device
from trainer.learner.megatron.model import MegatronModel
from trainer.learner.scaling import LossScale
from trainer.learner.schedule import Scheduled
from trainer.records import Totals, TrainBatch

MOMENTS = ("exp_avg", "exp_avg_sq")  # Adam's, by torch's names


class MegatronTrained(MegatronModel, Scheduled):
    """Implements `protocol.TrainedLearner`."""

    loss_scale: LossScale | None = None  # there is no fp16

    def __init__(
        self, *args: Any, optim: OptimConfig, megatron: MegatronConfig, grad_clip: float, total_steps: int, **more: Any
    ) -> None:
        MegatronModel.__init__(self, *args, **more)
        self.grad_clip = grad_clip
        with on_device(self.device):
            self.network = data_parallel(self.network, megatron)
            optimizer = adamw(self.network, optim, megatron, self.dtype)
        self._sharded = isinstance(optimizer, DistributedOptimizer)
        Scheduled.__init__(self, optimizer, optim, total_steps)

    def training(self) -> AbstractContextManager[None]:
        """Nothing leaves the device."""
        return nullcontext()

    # -- gradients

    def accumulate(self, passes: Iterable[TrainBatch], totals: Totals, loss: Loss) -> Iterator[Told]:
        """See `interfaces.Trainable`. The last stage of a pipeline alone reports."""
        told: list[Told] = []
        rows = list(passes)

        def finish(number: int, output_BSX: Tensor) -> Tensor:
            self._output_BSX = output_BSX
            value, found = loss(rows[number], totals)
            self._output_BSX = None
            told.append(found)
            return value

        self.run([self._tokens(each.experience.rollout) for each in rows], finish, train=True)
        yield from told

    def optimizer_step(self) -> StepOutcome:
        """Reduce, clip, step, clear. A gradient that is not finite is cleared without a step."""
        trained = self._with_gradient()
        with on_device(self.device):
            finalize_model_grads([self.network])
            self.optimizer.prepare_grads()
            grad_norm = float(self.optimizer.clip_grad_norm(self.grad_clip))
            finite = math.isfinite(grad_norm)
            if finite and self.learning:
                self.optimizer.step_with_ready_grads()
            self.optimizer.zero_grad()
            self.network.zero_grad_buffer()
        return StepOutcome(grad_norm, finite, trained)

    def _with_gradient(self) -> frozenset[str]:
        """Parameters with a gradient on any rank of this copy, by Hugging Face's names."""
        entries = list(self._entries())
        parameters = [self.parameter(entry) for entry in entries]
        buffers = [getattr(parameter, "main_grad", torch.zeros((), device=self.device)) for parameter in parameters]
        seen = torch.stack([buffer.norm() for buffer in buffers])
        touched = (seen != 0).int()  # a gradient that is not a number counts
        dist.all_reduce(touched, dist.ReduceOp.MAX, group=parallel_state.get_model_parallel_group())
        flags = zip(entries, touched.tolist(), strict=True)
        return frozenset(name for entry, flag in flags if flag for name in entry.sources)

    # -- state: the float32 weights and Adam's moments, by Hugging Face's names

    def optimizer_steps(self) -> int:
        """How many steps the optimizer has done."""
        inner = self.optimizer.optimizer
        return max((int(state["step"]) for state in inner.state.values()), default=0)

    def state_tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """("weight" or a moment, name, whole float32 tensor). Collective."""
        for kind in ("weight", *MOMENTS) if self.optimizer_steps() else ("weight",):
            for name, tensor in self._kept(kind):
                yield kind, name, tensor

    def _kept(self, kind: str) -> Iterator[tuple[str, Tensor]]:
        return self.gathered(lambda parameter: self._read(parameter, kind), torch.float32)

    def kept_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The optimizer's float32 weights. Collective."""
        return self._kept("weight")

    def optimizer_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Moments and steps, as torch's AdamW has them: whole, one at a time, as PARAMETER:NAME. Collective."""
        if steps := self.optimizer_steps():
            for kind in MOMENTS:
                for name, tensor in self._kept(kind):
                    yield f"{name}:{kind}", tensor
            for name in sorted(self.parameter_names):
                yield f"{name}:step", torch.tensor(float(steps))

    def set_state(self, kind: str, tensors: Callable[[str], Tensor] | None) -> None:
        """Takes the weights or a moment that rank 0 has, by name. Collective."""
        self.scatter(tensors, lambda parameter, values: self._write(parameter, kind, values))

    def set_steps(self, steps: int) -> None:
        """Adam's count of steps, before its moments are set; 0 forgets the moments."""
        inner = self.optimizer.optimizer
        inner.state.clear()
        for group in inner.param_groups if steps else ():
            for main in group["params"]:
                moments = {moment: torch.zeros_like(main, dtype=torch.float32) for moment in MOMENTS}
                inner.state[main] = {"step": torch.tensor(float(steps)), **moments}

    def _read(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """The whole tensor of this tensor rank's slice; a distributed optimizer has a piece on each rank."""
        piece = self._piece(parameter, kind)
        if not self._sharded:
            assert piece is not None
            return piece.detach().float()
        flat = torch.zeros(parameter.numel(), device=self.device)
        if piece is not None:
            flat[self._range(parameter)] = piece.detach().float()
        dist.all_reduce(flat, group=parallel_state.get_data_parallel_group())
        return flat.view(parameter.shape)

    def _write(self, parameter: nn.Parameter, kind: str, values: Tensor) -> None:
        if kind == "weight":
            parameter.data.copy_(values)
        piece = self._piece(parameter, kind)
        if piece is not None:
            piece.data.copy_(values.reshape(-1)[self._range(parameter)] if self._sharded else values)

    def _piece(self, parameter: nn.Parameter, kind: str) -> Tensor | None:
        """What this rank's optimizer holds of a parameter or its moment."""
        if self._sharded and parameter not in self.optimizer.model_param_group_index_map:
            return None
        if self._sharded:
            group, position = self.optimizer.model_param_group_index_map[parameter]
            main = self.optimizer.optimizer.param_groups[group]["params"][position]
        else:
            main = getattr(parameter, "main_param", parameter)
        return main if kind == "weight" else self.optimizer.optimizer.state[main][kind]  # type: ignore[no-any-return]

    def _range(self, parameter: nn.Parameter) -> slice:
        found = self.optimizer._get_model_param_range_map(parameter)["param"]
        return slice(found.start, found.end)


def data_parallel(network: nn.Module, megatron: MegatronConfig) -> Any:
    """Gradients in float32 and in one buffer, summed over the copies."""
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=megatron.use_distributed_optimizer
    )
    return DistributedDataParallel(network.config, config, network)


def adamw(network: Any, optim: OptimConfig, megatron: MegatronConfig, dtype: torch.dtype) -> Any:
    """As `torch.optim.AdamW` in the other engine: every parameter decays, biases and norms too."""
    config = OptimizerConfig(
        optimizer="adam",
        lr=optim.lr,
        weight_decay=optim.weight_decay,
        adam_beta1=optim.betas[0],
        adam_beta2=optim.betas[1],
        adam_eps=1e-8,
        bf16=dtype is torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=megatron.use_distributed_optimizer,
        clip_grad=0.0,  # `optimizer_step` clips
    )
    optimizer = get_megatron_optimizer(config, [network], config_overrides={}, use_gloo_process_groups=False)
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    assert len(chained) == 1, "a dense model has one optimizer"
    return chained[0]
