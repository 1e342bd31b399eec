"""Actor, reference and critic on Megatron, as `roles.py` asks for them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainer.config.schema import MegatronConfig, OptimConfig
from trainer.grid import Grid
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

if TYPE_CHECKING:
    from trainer.learner.megatron.model import MegatronModel
    from trainer.learner.megatron.training import MegatronTrained

READERS = {"causal_lm": read_causal_lm, "value": read_value_model}


@dataclass(frozen=True)
class Training:
    """What a model needs to be trained."""

    optim: OptimConfig
    grad_clip: float
    total_steps: int


def trained_model(
    kind: str,
    source: Source,
    megatron: MegatronConfig,
    grid: Grid,
    device: torch.device,
    training: Training,
    temperature: float = 1.0,
) -> MegatronTrained:
    """A "causal_lm" or "value" model with its weights in place, and its optimizer. Collective; raises as `_parts`."""
    whole, parts = _parts(kind, source, megatron, grid, device)
    from trainer.learner.megatron.training import MegatronTrained

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


def frozen_model(
    kind: str, source: Source, megatron: MegatronConfig, grid: Grid, device: torch.device, temperature: float = 1.0
) -> MegatronModel:
    """A model that is not trained, with its weights in place. Collective; raises as `_parts`."""
    whole, parts = _parts(kind, source, megatron, grid, device)
    from trainer.learner.megatron.model import MegatronModel

    made = MegatronModel(*parts, temperature)
    made.network.requires_grad_(False)
    made.scatter(tensors_of(whole), _fill)
    return made


def _parts(
    kind: str, source: Source, megatron: MegatronConfig, grid: Grid, device: torch.device
) -> tuple[nn.Module | None, tuple[Any, Any, Any, Any, Any]]:
    """The whole model on rank 0, and what a `MegatronModel` is made of: this rank's part of it, still without weights.

    Raises ConfigError without the right megatron-core; ModelError, on every rank, for a model that Megatron does not
    know, that cannot be split so, or that rank 0 cannot read.
    """
    require_megatron()
    _quiet()
    from trainer.learner.megatron.host import on_device
    from trainer.learner.megatron.model import join
    from trainer.learner.megatron.network import build

    structure = read_config(source)
    model = dimensions(structure, value=kind == "value")
    fitting(model, grid.tensor, grid.pipeline)
    whole = on_rank_0(lambda: READERS[kind](source, structure, torch.float32))
    join(grid, device, source.seed)
    with on_device(device):
        network = build(structure, model, megatron, compute_dtype(megatron, device.type))
    return whole, (network.to(device), model, identity_of(source, structure), grid, device)


def _fill(parameter: nn.Parameter, values: Tensor) -> None:
    parameter.data.copy_(values)


def _quiet() -> None:
    """Without TransformerEngine and apex, Megatron says so from each module on each rank; torch, what it renamed."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.")
    # What it finds old in its own calls, also where it names our line for one.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(trainer\.learner\.)?megatron\.")
    warnings.filterwarnings("ignore", category=FutureWarning, message=r"`torch\.distributed\.\w+_tensor` is deprecated")


def tensors_of(whole: nn.Module | None) -> Any:
    """A module's tensors by name; None where there is no module."""
    return None if whole is None else whole.state_dict().__getitem__


def identity_of(source: Source, structure: Any) -> nn.Module:
    """The transformers model without its weights: it knows how to save its configuration."""
    with torch.device("meta"):
        return empty_causal_lm(source, structure, torch.float32)
