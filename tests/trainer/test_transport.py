"""What passes between driver and ranks arrives as it was: every type, at any depth, whatever its tensors look like."""

from __future__ import annotations

import dataclasses
import pickle
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.batches import train_batch
from trainer import roles
from trainer.interfaces import Sampling
from trainer.memory import Memory
from trainer.records import LogProbs, MiniBatch, Rollout, Row, Scores, Totals, UpdateReport
from trainer.rows import runs, split, take
from trainer.transport import LARGE, Packed, pack, pack_each, unpack

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)


def same(a: Any, b: Any) -> bool:
    """Equal in value and type at any depth; tensors to the bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a) == bits(b)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def bits(tensor: Tensor) -> bytes:
    # A copy: a tensor of one element counts as contiguous whatever its strides, and then has no view as bytes.
    whole = tensor.detach().clone(memory_format=torch.contiguous_format)
    return bytes(whole.flatten().view(torch.uint8).tolist())


def as_ray_hands_over(packed: Packed) -> Packed:
    """Large tensors come as read-only memory."""
    if isinstance(packed, bytes):
        return packed
    return packed[0], *(memoryview(bytes(buffer)) for buffer in packed[1:])


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Of up to three dimensions, some of them 0; as they are, turned, of every second column, or with a gradient."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    raw = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    tensor = raw.to(dtype)
    if dtype.is_floating_point and draw(st.booleans()):
        tensor = tensor.where(tensor != 0, torch.nan)
    look = draw(st.sampled_from(("plain", "turned", "every second", "of a larger one", "with gradient")))
    if look == "turned":
        return tensor.permute(tuple(reversed(range(tensor.dim()))))
    if look == "every second" and tensor.dim():
        return tensor[..., ::2]
    if look == "of a larger one":
        return torch.stack([tensor, tensor, tensor])[1]
    if look == "with gradient" and dtype.is_floating_point:
        return tensor.clone().requires_grad_()
    return tensor


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(
    plain | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Scores, tensors(), st.dictionaries(st.text(max_size=3), inner, max_size=2))
        | st.builds(LogProbs, inner, inner)
        | st.builds(MiniBatch, inner, st.builds(Totals, *[st.floats(0, 9)] * 3), st.tuples(inner))
    ),
    max_leaves=8,
)


@given(trees)
@settings(deadline=None)
def test_what_arrives_is_what_was_packed(value: Any) -> None:
    arrived = unpack(pack(value))
    assert same(value, arrived)
    assert not any(tensor.requires_grad for tensor in tensors_of(arrived))


def tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = [getattr(value, f.name) for f in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for item in value for found in tensors_of(item)] if isinstance(value, (list, tuple)) else []


def records() -> list[Any]:
    """One of each type that a phase takes or gives."""
    batch = train_batch(6)
    rollout = batch.experience.rollout
    return [
        (rollout.prompts, Sampling(5, 1.0, 0.9, -1, True, False, 3)),
        rollout,
        dataclasses.replace(batch.experience, ref_logp_BT=None, values_BT=None),
        (MiniBatch(batch, Totals(3.0, 2.0, 4.0), (torch.tensor([1, 0]), torch.tensor([2]))),),
        Scores(torch.rand(6), {"format": torch.rand(6)}),
        UpdateReport(({"grad_norm": float("inf")},), ("lm_head.weight",), 1e-6, 1, 2.0**16),
        Memory(1, 2, 3),
        Row(17, "train.parquet", "openai/gsm8k", ["72", 72.0], {"nested": {"index": [1, None]}}),
        None,
        (),
    ]


@pytest.mark.parametrize("record", records(), ids=lambda record: type(record).__name__)
def test_each_record_arrives_as_it_was(record: Any) -> None:
    assert same(record, unpack(pack(record)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_large_tensors_arrive_too(dtype: torch.dtype, over: int) -> None:
    large = torch.arange(LARGE // dtype.itemsize + over).to(dtype)
    value = {"large": large, "small": torch.arange(3), "turned": large[: LARGE // 64].view(8, -1).T, "again": large}
    packed = pack(value)
    assert isinstance(packed, bytes) == (over < 0)
    assert same(value, unpack(as_ray_hands_over(packed)))


@pytest.mark.parametrize("size", [3, LARGE])
def test_tensors_that_arrive_share_no_memory_and_can_be_written_to(size: int) -> None:
    original = torch.zeros(size)
    packed = pack(original)
    for _ in range(2):  # what was written the first time is not seen the second time
        arrived = unpack(packed)
        assert not arrived.any()
        arrived += 1
    assert not original.any()


def test_the_same_arguments_are_packed_once() -> None:
    share, other = (torch.arange(3),), (torch.arange(3),)
    packed = list(pack_each([share, None, share, other]))
    assert packed[0] is packed[2] and packed[0] == packed[3] and packed[0] is not packed[3] and packed[1] is None


# ------------------------------------------------------------------------------------------------ rows of a record


@given(st.lists(st.lists(st.integers(0, 7), max_size=4), min_size=1, max_size=5))
@settings(deadline=None)
def test_split_takes_the_rows_of_each_part(parts: list[list[int]]) -> None:
    batch = dataclasses.replace(train_batch(8), weights_BT=None)
    for part, rows in zip(split(batch, parts), parts, strict=True):
        assert same(take(batch, torch.tensor(rows, dtype=torch.int64)), part)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_runs_follow_each_other(sizes: Sequence[int]) -> None:
    rollout: Rollout = take(train_batch(12), slice(0, sum(sizes))).experience.rollout
    cut = runs(rollout, sizes)
    assert [len(run) for run in cut] == list(sizes)
    assert [row for run in cut for row in run.prompts.rows] == list(rollout.prompts.rows)
    assert same(torch.cat([run.mask_BT for run in cut]), rollout.mask_BT.contiguous())


# ------------------------------------------------------------------------------------------------------- failures


def test_arguments_that_do_not_unpack_fail_in_the_call() -> None:
    """Not in Ray, which would say that the rank had died."""
    rank = SimpleNamespace(device=torch.device("cpu"), score=len, rescued=nullcontext)
    with pytest.raises(pickle.UnpicklingError) as caught:
        roles.call(cast(roles.Roles, rank), "score", b"no pickle")
    assert "roles.py" in "".join(traceback.format_exception(caught.value))
