"""A Megatron model's state on disk: whole float32 tensors by Hugging Face's names, spread over the ranks' files.

So a checkpoint can be read on any tensor, pipeline and data-parallel sizes, and one that FSDP2 wrote can be continued
here: the names of weights and moments are those of `learner/checkpoint.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from trainer.errors import CheckpointError
from trainer.learner.checkpoint import read_tensors, require_optimizer, written
from trainer.learner.megatron.training import MOMENTS, MegatronTrained
from trainer.learner.models import on_rank_0


def save(trained: MegatronTrained, folder: Path, *, optimizer: bool = True) -> None:
    """Every rank writes its share of the tensors into `folder`. Collective. Raises CheckpointError, on every rank."""
    model: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = {}
    state: dict[str, Any] = {"model": model, "updates": torch.tensor(trained.updates)}
    if optimizer:
        state["optimizer"] = {"state": moments, "steps": torch.tensor(trained.optimizer_steps())}
    for mine, (kind, name, tensor) in zip(_turns(), trained.state_tensors(), strict=False):
        if mine and kind == "weight":
            model[name] = tensor.cpu().clone()
        elif mine:
            moments.setdefault(name, {})[kind] = tensor.cpu().clone()
    with written(folder):
        dcp.save(state, checkpoint_id=folder)


def _turns() -> Iterator[bool]:
    """Whether a tensor is this rank's to write, one tensor after the other."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return (number % ranks == rank for number in count())


def load(trained: MegatronTrained, folder: Path) -> None:
    """What `save` or FSDP2 wrote, from any number of ranks. Collective. Raises CheckpointError, on every rank."""
    found = on_rank_0(lambda: _read(trained, folder))
    counts = torch.tensor([0, 0] if found is None else [found.steps, found.updates], device=trained.device)
    dist.broadcast(counts, src=0)
    steps, updates = counts.tolist()
    trained.set_steps(steps)
    for kind in ("weight", *MOMENTS) if steps else ("weight",):
        trained.set_state(kind, None if found is None else found.tensors[kind].__getitem__)
    trained.set_updates(updates)


class _Found:
    """What a checkpoint holds, read on one rank."""

    def __init__(self, folder: Path) -> None:
        state = read_tensors(folder)
        per_name = ".step"  # FSDP2's checkpoints count the steps of each tensor
        counts = [tensor for name, tensor in state.items() if name == "optimizer.steps" or name.endswith(per_name)]
        self.updates = int(state["updates"])
        # A model saved before its first update has a count and no use for it.
        self.steps = int(counts[0]) if counts and self.updates else 0
        prefix, start = "model.", "optimizer.state."
        weights = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        self.tensors = {"weight": weights}
        for moment in MOMENTS:
            end = f".{moment}"
            self.tensors[moment] = {
                name[len(start) : -len(end)]: tensor
                for name, tensor in state.items()
                if name.startswith(start) and name.endswith(end)
            }


def _read(trained: MegatronTrained, folder: Path) -> _Found:
    require_optimizer(folder)
    found = _Found(folder)
    if trained.dimensions.tied:  # FSDP2 writes the output layer too, which is the embedding once more
        found.tensors["weight"].pop("lm_head.weight", None)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.tensors["weight"].items()}
    if shapes != trained.shapes:
        odd = sorted(set(shapes.items()) ^ set(trained.shapes.items()))[0][0]
        raise CheckpointError(
            f"the checkpoint {folder} is of another model: {odd} differs",
            hint="choose one with trainer.resume_from_path, or trainer.resume_mode=disable",
        )
    return found
