"""Whether records that came from a file fit together: their tensors' shapes and kinds, by the names of their fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.config.schema import Config
from trainer.records import Prompts, Rollout, Row, Scores, TrainBatch
from trainer.scan import has_no_gaps

# What a letter at the end of a name stands for: see `records.py`.
_SHAPES = {"_B": ("B",), "_BT": ("B", "T"), "_BP": ("B", "P")}
_WHOLE = {
    "ids_BP",
    "mask_BP",
    "uid_B",
    "sample_B",
    "response_BT",
    "mask_BT",
    "present_BT",
    "turn_B",
    "room_B",
}  # of int64; the others are of float32
_MASKS = {"mask_BP", "mask_BT", "present_BT"}
LARGEST_ID = 2**31


def require_shapes(batch: TrainBatch, scores: Scores, order: Mapping[str, Sequence[Sequence[int]]]) -> None:
    """Raises ValueError that names the first field that does not fit."""
    rollout = batch.experience.rollout
    sizes = {"B": len(rollout.prompts.rows)}
    for name, letter in (("response_BT", "T"), ("ids_BP", "P")):
        tensor = rollout.response_BT if letter == "T" else rollout.prompts.ids_BP
        if tensor.dim() != 2:
            raise ValueError(f"{name} has the shape {list(tensor.shape)}")
        sizes[letter] = tensor.shape[1]
    if not sizes["B"]:
        raise ValueError("it has no rows")
    for name, tensor in (*_tensors(batch), *_tensors(scores)):
        _require(name, tensor, sizes)
    for name, tensor in scores.extras.items():
        _require(f"{name}_B", tensor, sizes)
    _require_turns(rollout)
    for role, steps in order.items():
        if any(type(row) is not int or not 0 <= row < sizes["B"] for step in steps for row in step):
            raise ValueError(f"the order of {role} names rows that are not there")


def require_parts(batch: TrainBatch, config: Config) -> None:
    """Raises ValueError that names what the run's own settings need and the batch does not have."""
    seen, algorithm = batch.experience, config.algorithm
    if seen.values_BT is None and algorithm.adv_estimator == "gae":
        raise ValueError("values_BT is missing, and adv_estimator=gae needs it")
    if seen.ref_logp_BT is None and (algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss):
        raise ValueError("ref_logp_BT is missing, and the KL to the reference needs it")


def _require_turns(rollout: Rollout) -> None:
    """Of conversations: turns lie where the mask is, one behind the other, and the model reads what was sampled."""
    if (rollout.episodes is None) != (rollout.present_BT is None):
        raise ValueError("episodes and present_BT come together")
    if rollout.episodes is None or rollout.present_BT is None:
        return
    if len(rollout.episodes) != len(rollout):
        raise ValueError(f"there are {len(rollout.episodes)} episodes")
    if not has_no_gaps(rollout.present_BT.bool()) or bool((rollout.mask_BT > rollout.present_BT).any()):
        raise ValueError("present_BT has gaps, or leaves out what was sampled")
    for row, episode in enumerate(rollout.episodes):
        sampled = [column for turn in episode.turns for column in range(turn.start, turn.end)]
        if not sampled or sampled != rollout.mask_BT[row].nonzero().flatten().tolist():
            raise ValueError(f"the turns of row {row} are not where its mask is")


def _tensors(record: Any) -> Iterator[tuple[str, Tensor]]:
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            yield field.name, value
        elif dataclasses.is_dataclass(value) and not isinstance(value, (Row, type)):
            yield from _tensors(value)
        elif isinstance(record, Prompts) and field.name == "rows" and not all(isinstance(row, Row) for row in value):
            raise ValueError("a row is none")


def _require(name: str, tensor: Tensor, sizes: Mapping[str, int]) -> None:
    letters = _SHAPES["_" + name.rpartition("_")[2]]
    if list(tensor.shape) != [sizes[letter] for letter in letters]:
        raise ValueError(f"{name} has the shape {list(tensor.shape)}")
    if tensor.dtype != (torch.int64 if name in _WHOLE else torch.float32):
        raise ValueError(f"{name} is of {tensor.dtype}")
    if name in _MASKS and not bool(((tensor == 0) | (tensor == 1)).all()):
        raise ValueError(f"{name} is no mask")
    if name in _WHOLE and not bool(((tensor >= 0) & (tensor < LARGEST_ID)).all()):
        raise ValueError(f"{name} holds numbers that it cannot")
