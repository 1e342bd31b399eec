"""Adapters on disk, in peft's layout: a folder with adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer.config.lora import CONFIG, WEIGHTS, adapter_fault
from trainer.errors import ModelError
from trainer.learner.lora import Adapters, B, is_factor
from trainer.learner.tensor_files import save_tensors

FOLDER = "lora_adapter"  # verl's name for it beside a checkpoint
PREFIX = "base_model.model."  # of every tensor in peft's files


def write_adapter(
    factors: Mapping[str, Tensor], scale: float, folder: Path, base: str | None, *, transposed: bool
) -> None:
    """`factors` by their names in the model; `base` is where that comes from. Raises OSError, SafetensorError."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = {tensor.shape[1] for name, tensor in factors.items() if name.endswith(B)}
    [rank] = ranks
    settings: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": _whole(scale * rank),
        "target_modules": sorted(name.removesuffix(B) for name in factors if name.endswith(B)),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": transposed,
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    save_tensors({f"{PREFIX}{name}": tensor.contiguous() for name, tensor in factors.items()}, folder / WEIGHTS)


def _whole(alpha: float) -> float | int:
    """What rounding has made of a whole number is that one again."""
    return round(alpha) if abs(alpha - round(alpha)) < 1e-9 * max(1.0, abs(alpha)) else alpha


@torch.no_grad()
def read_factors(model: nn.Module, adapters: Adapters) -> None:
    """The adapter in `adapters.path` into a model that has new ones. Raises ModelError unless it is one for it."""
    assert adapters.path is not None
    if fault := adapter_fault(adapters.path, adapters.rank, adapters.alpha):
        raise ModelError(f"lora_adapter_path={adapters.path} {fault[0]}", hint=fault[1])
    try:
        tensors = load_file(Path(adapters.path).expanduser() / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"lora_adapter_path={adapters.path}: {WEIGHTS} cannot be read: {str(error).splitlines()[0]:.200}",
            hint="copy the folder again: the file is incomplete",
        ) from error
    places = {name: parameter for name, parameter in model.named_parameters() if is_factor(name)}
    given = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    for name in sorted(places.keys() | given.keys()):
        if name not in given or name not in places or given[name].shape != places[name].shape:
            what = "lacks" if name not in given else "has" if name not in places else "has another shape of"
            raise ModelError(
                f"lora_adapter_path={adapters.path} {what} {name}",
                hint="set target_modules and exclude_modules to the modules that the adapter is for",
            )
        places[name].copy_(given[name])
