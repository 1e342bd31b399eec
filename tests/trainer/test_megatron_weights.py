"""Weights by Hugging Face's names and by Megatron's: the same numbers in another order, whatever the sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.learner.megatron.structure import dimensions
from trainer.learner.megatron.weights import Dimensions, Entry, entries, fuse, part, unfuse, whole


@st.composite
def models(draw: st.DrawFn) -> tuple[Dimensions, int, int]:
    """A model with the tensor and pipeline sizes that it can be split over."""
    tensor, pipeline = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    groups = tensor * draw(st.integers(1, 2))
    value = draw(st.booleans())
    model = Dimensions(
        layers=pipeline * draw(st.integers(1, 2)),
        hidden=tensor * draw(st.integers(1, 3)),
        heads=groups * draw(st.integers(1, 3)),
        groups=groups,
        head=draw(st.sampled_from([2, 4])),
        ffn=tensor * draw(st.integers(1, 3)),
        vocab=draw(st.integers(3, 11)),
        qkv_bias=draw(st.booleans()),
        tied=draw(st.booleans()) and not value,
        value=value,
    )
    return model, tensor, pipeline


def numbered(model: Dimensions, pipeline: int) -> dict[str, Tensor]:
    """Hugging Face's tensors of a model, no number twice."""
    found, start = {}, 0
    for entry in entries(model, pipeline):
        for name, like in zip(entry.sources, unfuse(entry, torch.empty(entry.shape), model), strict=True):
            if not entry.copy:
                found[name] = torch.arange(start, start + like.numel()).reshape(like.shape)
                start += like.numel()
    return found


@settings(max_examples=60, deadline=None)
@given(models())
def test_a_round_trip_is_exact(sizes: tuple[Dimensions, int, int]) -> None:
    model, tensor, pipeline = sizes
    tensors = numbered(model, pipeline)
    back: dict[str, Tensor] = {}
    for entry in entries(model, pipeline):
        fused = fuse(entry, [tensors[name] for name in entry.sources], model)
        assert fused.shape == entry.shape
        parts = [part(entry, fused, rank, tensor) for rank in range(tensor)]
        assert len({slice_.shape for slice_ in parts}) == 1
        back |= zip(entry.sources, unfuse(entry, whole(entry, parts), model), strict=True)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


@settings(max_examples=30, deadline=None)
@given(models())
def test_stages_hold_every_parameter_once(sizes: tuple[Dimensions, int, int]) -> None:
    """But for a tied embedding, of which the last stage has a copy."""
    model, _, pipeline = sizes
    found = list(entries(model, pipeline))
    per_stage = model.layers // pipeline
    names = [(entry.stage, entry.local_name(per_stage)) for entry in found]
    assert len(set(names)) == len(names)
    assert {entry.layer for entry in found if entry.layer is not None} == set(range(model.layers))
    assert all(entry.stage == entry.layer // per_stage for entry in found if entry.layer is not None)
    copies = [entry for entry in found if entry.copy]
    assert len(copies) == (model.tied and pipeline > 1)
    sources = [name for entry in found if not entry.copy for name in entry.sources]
    assert len(set(sources)) == len(sources)


TINY = Dimensions(layers=1, hidden=2, heads=4, groups=2, head=1, ffn=4, vocab=5, qkv_bias=True, tied=False, value=False)


def entry_of(kind: str) -> Entry:
    return next(entry for entry in entries(TINY) if entry.kind == kind)


def test_each_group_has_its_queries_its_key_and_its_value_side_by_side() -> None:
    """Megatron's order: group 0 has queries 0 and 1, group 1 has 2 and 3; two tensor ranks take a group each."""
    bias = next(entry for entry in entries(TINY) if entry.name.endswith("linear_qkv.bias"))
    queries, keys, values = torch.tensor([0, 1, 2, 3]), torch.tensor([10, 11]), torch.tensor([20, 21])
    fused = fuse(bias, [queries, keys, values], TINY)
    assert fused.tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert part(bias, fused, 1, 2).tolist() == [2, 3, 11, 21]


def test_a_slice_of_the_mlp_has_half_of_the_gate_and_half_of_the_up_projection() -> None:
    fused = torch.arange(8)[:, None].expand(8, 2)
    assert part(entry_of("gate_up"), fused, 1, 2)[:, 0].tolist() == [2, 3, 6, 7]


def test_the_vocabulary_is_padded_with_zeros() -> None:
    entry, table = entry_of("vocab"), torch.ones(5, 2)
    assert part(entry, table, 1, 2).tolist() == [[1, 1], [1, 1], [0, 0]]
    assert TINY.padded_vocab(2) == 6


@pytest.mark.parametrize("name", ["qwen2", "qwen2-tied", "llama"])
def test_names_and_shapes_are_those_of_the_folder(models: Path, name: str) -> None:
    """What `transformers` calls the weights of a model."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models / name)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    sizes = dimensions(model.config, value=False)
    found = {
        source: tuple(tensor.shape)
        for entry in entries(sizes)
        for source, tensor in zip(entry.sources, unfuse(entry, torch.empty(entry.shape), sizes), strict=True)
    }
    assert found == expected
