"""Actor, reference and critic on Megatron, as `roles.py` asks for them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainer.config.schema import MegatronConfig, OptimConfig
from trainer.layout import Layout
from trainer.learner.megatron.available import require_megatron
from trainer.learner.megatron.structure import dimensions, fitting
from trainer.learner.models import (
    Source,
    compute_dtype,
    empty_causal_lm,
    on_rank_0,
    read_causal_lm,
    read_config,
    read_value_model,
)

READERS = {"causal_lm": read_causal_lm, "value": read_value_model}


@dataclass(frozen=True)
class Training:
    """What a model needs to be trained."""

    optim: OptimConfig
    grad_clip: float
    total_steps: int


def megatron_model(
    kind: str,
    source: Source,
    megatron: MegatronConfig,
    layout: Layout,
    device: torch.device,
    training: Training | None = None,
    temperature: float = 1.0,
) -> Any:
    """A "causal_lm" or "value" model with its weights in place; without `training` it is frozen. Collective.

    Raises ConfigError without the right megatron-core; ModelError, on every rank, for a model that Megatron does not
    know, that cannot be split so, or that rank 0 cannot read.
    """
    require_megatron()
    _quiet()
    from trainer.learner.megatron.host import on_device
    from trainer.learner.megatron.model import MegatronModel, join
    from trainer.learner.megatron.network import build
    from trainer.learner.megatron.training import MegatronTrained

    structure = read_config(source)
    model = dimensions(structure, value=kind == "value")
    fitting(model, layout.tensor, layout.pipeline)
    whole = on_rank_0(lambda: READERS[kind](source, structure, torch.float32))
    join(layout, device, source.seed)
    with on_device(device):
        network = build(structure, model, megatron, compute_dtype(megatron, device.type))
    parts = (network.to(device), model, identity_of(source, structure), layout, device)
    made: Any
    if training is None:
        network.requires_grad_(False)
        made = MegatronModel(*parts, temperature=temperature)
        made.scatter(tensors_of(whole), lambda parameter, values: parameter.data.copy_(values))
        return made
    made = MegatronTrained(
        *parts,
        temperature=temperature,
        optim=training.optim,
        megatron=megatron,
        grad_clip=training.grad_clip,
        total_steps=training.total_steps,
    )
    made.set_state("weight", tensors_of(whole))
    return made


def _quiet() -> None:
    """Without TransformerEngine and apex, Megatron says so from each module on each rank; torch, what it renamed."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.")
    warnings.filterwarnings("ignore", category=FutureWarning, message=r"`torch\.distributed\.\w+_tensor` is deprecated")


def tensors_of(whole: nn.Module | None) -> Any:
    """A module's tensors by name; None where there is no module."""
    return None if whole is None else whole.state_dict().__getitem__


def identity_of(source: Source, structure: Any) -> nn.Module:
    """The transformers model without its weights: it knows how to save its configuration."""
    with torch.device("meta"):
        return empty_causal_lm(source, structure, torch.float32)
