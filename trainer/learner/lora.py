"""Low-rank adapters beside frozen weights (LoRA, Hu et al. 2021): what trains, and what the two are together.

    y = x W' + scale (x A') B'      W [out, in] frozen; A [r, in], B [out, r] train; scale = lora_alpha / lora_rank
    merged: W + scale B A           what a rollout engine and an export get, under the name of W

A module keeps its class's behaviour and its name, and gets two children, `lora_A` and `lora_B`, so that parameters are
called as peft calls them. They are in float32 whatever the weights are in: AdamW's small steps would round to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from trainer.config.lora import ALL_LINEAR, matches
from trainer.config.schema import CriticModelConfig, ModelConfig
from trainer.errors import ModelError

A, B = ".lora_A.weight", ".lora_B.weight"
CHUNK = 2**22  # numbers of a weight that are merged at once: 32 MiB of float64


@dataclass(frozen=True)
class Adapters:
    """What of a model is adapted, and how."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = (ALL_LINEAR,)
    exclude: tuple[str, ...] = ()
    path: str | None = None  # of the adapter to begin with, in peft's layout
    seed: int = 0  # of new ones

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def adapters_of(model: ModelConfig | CriticModelConfig, seed: int) -> Adapters | None:
    """What the configuration asks for; None: all weights train."""
    if not model.lora_rank:
        return None
    path = model.lora_adapter_path if isinstance(model, ModelConfig) else None
    exclude = tuple(model.exclude_modules or ())
    return Adapters(model.lora_rank, model.lora_alpha, tuple(model.target_modules), exclude, path, seed)


class Factor(nn.Module):
    """A or B."""

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns, dtype=torch.float32, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)


class Adapted(nn.Module):
    """What a linear module becomes, in front of its own class."""

    weight: nn.Parameter
    lora_A: Factor
    lora_B: Factor
    lora_scale: float
    lora_acts: bool

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return y + self.lora_scale * self.lora_B(self.lora_A(x)) if self.lora_acts else y

    @property
    def transposed(self) -> bool:
        """Whether the weight is [in, out]."""
        return isinstance(self, Conv1D)


@torch.no_grad()
def merged(weight: Tensor, a: Tensor, b: Tensor, scale: float, *, transposed: bool = False) -> Tensor:
    """The weight with its adapter in it, in float32 at least.

    Computed in float64, then rounded: whatever order a rank or device sums in hardly ever makes another bit of it.
    """
    left, right = (a.T, b.T) if transposed else (b, a)
    found = torch.empty_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
    rows = max(1, CHUNK // max(1, weight.shape[1]))
    for part, of_left, target in zip(weight.split(rows), left.split(rows), found.split(rows), strict=True):
        target.copy_(part.double() + scale * (of_left.double() @ right.double()))
    return found


# ------------------------------------------------------------------------------------------------ making a model adapt


@cache
def _kind(kind: Any) -> Any:
    return type(f"Adapted{kind.__name__}", (Adapted, kind), {})


def adapt(model: nn.Module, adapters: Adapters) -> None:
    """Freezes the weights and adds the adapters, B all zeros: the model says what it said. A value head trains whole.

    Raises ModelError where there is nothing to be adapted, or something that cannot be.
    """
    modules = dict(_named(model))
    chosen = [modules[name] for name in chosen_names(model, adapters)]
    model.requires_grad_(False)
    head: Any = getattr(model, "value_head", None)
    if head is not None:
        head.float().requires_grad_(True)  # FSDP takes what trains in one precision alone
    dice = torch.Generator().manual_seed(adapters.seed)
    for module in chosen:
        _adapt(module, adapters, dice)


def _adapt(module: Any, adapters: Adapters, dice: torch.Generator) -> None:
    device, shape = module.weight.device, module.weight.shape
    width, height = shape if isinstance(module, Conv1D) else reversed(shape)
    kind: Any = type(module)
    module.__class__ = _kind(kind)
    module.lora_A, module.lora_B = Factor(adapters.rank, width, device), Factor(height, adapters.rank, device)
    module.lora_scale, module.lora_acts = adapters.scale, True
    if device.type != "meta":  # uniform with a variance of 1 / (3 in), as the paper's authors and peft have it
        module.lora_A.weight.data.uniform_(-(width**-0.5), width**-0.5, generator=dice)


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules by the names that a causal language model has for them, of a value model too."""
    backbone: Any = getattr(model, "backbone", None)
    prefix = f"{backbone.base_model_prefix}." if backbone is not None else ""
    for name, module in (model if backbone is None else backbone).named_modules():
        yield f"{prefix}{name}", module


def linear_names(model: nn.Module) -> list[str]:
    """What `all-linear` stands for: every linear module but the output layer."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    return [name for name, module in _named(model) if isinstance(module, (nn.Linear, Conv1D)) and module is not output]


def chosen_names(model: nn.Module, adapters: Adapters) -> list[str]:
    """The modules that are adapted. Raises ModelError."""
    modules = dict(_named(model))
    named = [name for name in modules if name and matches(name, adapters.targets)]
    chosen = [*linear_names(model), *named] if ALL_LINEAR in adapters.targets else named
    chosen = [name for name in dict.fromkeys(chosen) if not matches(name, adapters.exclude)]
    targets = f"target_modules={list(adapters.targets)}"
    if not chosen:
        some = ", ".join(sorted({name.rpartition(".")[2] for name in linear_names(model)})[:8])
        raise ModelError(f"{targets} names no module of the model", hint=f"its linear modules are {some}")
    for name in chosen:
        _require_adaptable(name, modules[name], model, targets)
    return chosen


def _require_adaptable(name: str, module: nn.Module, model: nn.Module, targets: str) -> None:
    if not isinstance(module, (nn.Linear, Conv1D)):
        what = f"{targets} names {name} ({type(module).__name__}): linear modules alone have adapters"
        raise ModelError(what, hint=f"leave it out, or set target_modules={ALL_LINEAR}")
    others = [other for other in model.modules() if other is not module and not isinstance(other, Adapted)]
    if any(parameter is module.weight for other in others for parameter in other._parameters.values()):
        what = f"{targets} names {name}, whose weight is also another module's"
        raise ModelError(what, hint=f"leave it out, or set target_modules={ALL_LINEAR}")


# ------------------------------------------------------------------------------------------------- an adapted model


def is_factor(name: str) -> bool:
    """Whether a parameter is a part of an adapter."""
    return name.endswith((A, B))


def is_adapted(module: Any) -> bool:
    return isinstance(module, Adapted)


def adapted(module: nn.Module) -> dict[str, Adapted]:
    """The modules with adapters, by the names of their weights."""
    return {f"{name}.weight": each for name, each in module.named_modules() if isinstance(each, Adapted)}


@contextmanager
def without(module: nn.Module) -> Iterator[None]:
    """Within it the model computes as if it had no adapters."""
    found = adapted(module).values()
    for each in found:
        each.lora_acts = False
    try:
        yield
    finally:
        for each in found:
            each.lora_acts = True


def folded(tensors: Mapping[str, Tensor], scale: float, *, transposed: bool) -> dict[str, Tensor]:
    """The whole tensors of an adapted model as those of a plain one, in the precision of its weights.

    `transposed` says how square ones are kept; of others the shape does: GPT-2's output layer is not as its layers are.
    """
    found = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight")
        if f"{stem}{A}" in tensors:
            a, b = tensors[f"{stem}{A}"], tensors[f"{stem}{B}"]
            square = tensor.shape[0] == tensor.shape[1]
            turned = transposed if square else tensor.shape == (a.shape[1], b.shape[0])
            tensor = merged(tensor, a, b, scale, transposed=turned).to(tensor.dtype)
        if not is_factor(name):
            found[name] = tensor
    return found
