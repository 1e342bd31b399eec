"""Weights copied into a model of this process, and proved as an engine's are: names, shapes, sums."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.rollout.sums import PendingSums, pending_sums, results
from trainer.rollout.wire import not_the_trainers


@torch.no_grad()
def copy_weights(model: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raises WeightMismatch, once all tensors are through: on some ranks they are gathered together.

    A tensor that is missing, has no place, or stands otherwise than it was sent.
    """
    weights = dict(model.named_parameters())
    missing = dict.fromkeys(weights)
    sent: dict[str, PendingSums] = {}
    findings = []
    for name, tensor in tensors:
        place = weights.get(name)
        missing.pop(name, None)
        if place is None:
            findings.append(f"{name} has no place in the model")
        elif place.shape != tensor.shape:
            findings.append(f"{name} is {list(tensor.shape)}, and {list(place.shape)} in the model")
        else:
            cast = tensor.detach().to(place.device, place.dtype)
            sent[name] = pending_sums(cast)
            place.copy_(cast)
    findings += [f"{name} got no weights" for name in missing]
    standing = results([pending_sums(weights[name]) for name in sent])
    pairs = zip(sent, standing, results(list(sent.values())), strict=True)
    findings += [f"{name} stands as {stands}, was sent as {was}" for name, stands, was in pairs if stands != was]
    if findings:
        rank = f"rank {dist.get_rank()}" if dist.is_initialized() else "this rank"
        raise not_the_trainers(f"the hf engine on {rank}", findings, len(findings))
