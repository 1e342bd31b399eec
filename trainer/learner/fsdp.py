"""Models in training under FSDP2, on gloo and CPU as on NCCL and CUDA: the same lines.

`Model` holds the shards and does forward passes over response positions; `Trained` adds the optimizer. Shapes as in
`records.py`; S = P + T.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.config.schema import OptimConfig
from trainer.interfaces import StepOutcome
from trainer.learner.schedule import lr_factor
from trainer.records import LogProbs, Metrics, Rollout, Totals, TrainBatch, concat, pad_to, take


class Model:
    """A sharded model and the forward passes that PPO needs of it."""

    def __init__(self, module: nn.Module, device: torch.device, temperature: float = 1.0) -> None:
        self.module = module
        self.device = device
        self.temperature = temperature
        target = getattr(module, "backbone", module)
        self._accepts = frozenset(inspect.signature(target.forward).parameters)
        module.train()  # gradient checkpointing acts only in training mode; dropout is off by configuration

    def log_probs(self, rollout: Rollout, *, entropy: bool) -> LogProbs:
        """Log-probs of the response tokens under the temperature-scaled distribution, [B, T] float32.

        Position i of the logits predicts token i + 1, so the response's logits start one column before it.
        """
        short = trim(rollout)
        width = short.response_BT.shape[1]
        # One more than the response: the last prompt position predicts the first response token.
        logits_BTV = self._forward(short, logits_to_keep=width + 1).logits[:, -width - 1 : -1]
        logits_BTV = logits_BTV.float() / self.temperature
        labels_BT = short.response_BT.to(self.device)
        mask_BT = short.mask_BT.to(self.device)
        normaliser_BT = torch.logsumexp(logits_BTV, dim=-1)
        logp_BT = logits_BTV.gather(-1, labels_BT[..., None]).squeeze(-1) - normaliser_BT
        if entropy:
            entropy_BT = normaliser_BT - (logits_BTV.softmax(-1) * logits_BTV).sum(-1)
        else:
            entropy_BT = torch.zeros_like(logp_BT)
        whole = rollout.response_BT.shape[1]
        return LogProbs(pad_to(logp_BT * mask_BT, whole, left=False), pad_to(entropy_BT * mask_BT, whole, left=False))

    def values(self, rollout: Rollout) -> Tensor:
        """Value before each response token is taken, [B, T] float32, 0 outside the mask."""
        short = trim(rollout)
        width = short.response_BT.shape[1]
        values_BT = self._forward(short)[:, -width - 1 : -1, 0].float() * short.mask_BT.to(self.device)
        return pad_to(values_BT, rollout.response_BT.shape[1], left=False)

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter, whole, one at a time. Collective: all ranks must walk through it together."""
        for name, parameter in self.module.named_parameters():
            yield name, whole(parameter.detach())

    def local_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of every parameter, where it holds one."""
        for name, parameter in self.module.named_parameters():
            part = local(parameter.detach())
            if part.numel():
                yield name, part

    def _forward(self, rollout: Rollout, **options: int) -> Any:
        attention_BS = rollout.attention_BS.to(self.device)
        inputs = {
            "input_ids": rollout.ids_BS.to(self.device),
            "attention_mask": attention_BS,
            # Left padding must not shift the positions.
            "position_ids": (attention_BS.cumsum(-1) - 1).clamp(min=0),
        }
        extra = {"use_cache": False, **options} if not hasattr(self.module, "backbone") else {}
        wanted = {name: value for name, value in {**inputs, **extra}.items() if name in self._accepts}
        return self.module(**wanted)


class Trained(Model):
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
    ) -> None:
        super().__init__(module, device, temperature)
        self.config = optim
        self.grad_clip = grad_clip
        self.total_steps = total_steps
        self.updates = 0
        self._learning = True
        self.optimizer = torch.optim.AdamW(
            module.parameters(), lr=optim.lr, betas=(optim.betas[0], optim.betas[1]), weight_decay=optim.weight_decay
        )
        self._set_lr()

    @property
    def parameter_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.module.named_parameters())

    def accumulate(
        self,
        passes: Sequence[TrainBatch],
        totals: Totals,
        loss: Callable[[TrainBatch, Totals], tuple[Tensor, Metrics]],
    ) -> Iterator[Metrics]:
        for rows in passes:
            value, metrics = loss(rows, totals)
            self.backward(value)
            yield metrics

    def backward(self, loss: Tensor) -> None:
        # FSDP averages gradients over the ranks; the losses of the ranks add up to the whole, so undo the average.
        (loss * dist.get_world_size()).backward()

    def optimizer_step(self) -> StepOutcome:
        """Clip, step, clear. A gradient that is not finite is cleared without a step."""
        names, gradients = zip(
            *((name, p.grad) for name, p in self.module.named_parameters() if p.grad is not None), strict=True
        )
        norms = torch.stack([local(gradient).norm() for gradient in gradients]).tolist()
        total = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.grad_clip)
        grad_norm = float(whole(total))
        finite = math.isfinite(grad_norm)
        if finite and self._learning:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepOutcome(grad_norm, finite, frozenset(n for n, norm in zip(names, norms, strict=True) if norm != 0))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within it, updates compute and report everything but change neither weights nor schedule."""
        updates, self._learning = self.updates, False
        try:
            yield
        finally:
            self._learning = True
            self.set_updates(updates)

    def advance_schedule(self) -> float:
        used = float(self.optimizer.param_groups[0]["lr"])
        self.updates += 1
        self._set_lr()
        return used

    def set_updates(self, updates: int) -> None:
        """Continue the schedule after `updates` updates."""
        self.updates = updates
        self._set_lr()

    def _set_lr(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * lr_factor(self.updates, self.config, self.total_steps)


Output = TypeVar("Output", Tensor, LogProbs)


def forward_only(compute: Callable[[Rollout], Output], rollout: Rollout, micro_size: int) -> Output:
    """`compute` over passes of `micro_size` rows without gradient, put together on the host."""
    parts: list[Output] = []
    for start in range(0, len(rollout), micro_size):
        with torch.no_grad():
            part = compute(take(rollout, slice(start, start + micro_size)))
        parts.append(part.cpu())
    return concat(parts)


def trim(rollout: Rollout) -> Rollout:
    """Without the columns that are padding in every row: no token of theirs is computed."""
    prompt_start = int(rollout.prompts.mask_BP.any(0).int().argmax())
    response_end = max(1, int(rollout.mask_BT.any(0).sum()))
    prompts = dataclasses.replace(
        rollout.prompts,
        ids_BP=rollout.prompts.ids_BP[:, prompt_start:],
        mask_BP=rollout.prompts.mask_BP[:, prompt_start:],
    )
    return dataclasses.replace(
        rollout,
        prompts=prompts,
        response_BT=rollout.response_BT[:, :response_end],
        mask_BT=rollout.mask_BT[:, :response_end],
        logp_BT=rollout.logp_BT[:, :response_end],
    )


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered on every rank; another one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
