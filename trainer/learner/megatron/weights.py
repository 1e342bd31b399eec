"""Weights by Hugging Face's names and by Megatron's: which tensors make which, and which rank holds which part.

Pure: no process group, no Megatron. One `Entry` per parameter of the whole Megatron model; `fuse` makes it of the
tensors of a Hugging Face folder and `unfuse` gives those back, `part` takes a tensor rank's slice and `whole` joins the
slices; all four only move numbers, so a round trip is exact to the bit.

    qkv        rows of each query group lie together: its queries, its key, its value
    gate_up    the gate's rows, then the up projection's; a slice holds half of each
    vocab      rows padded with zeros to a multiple of the tensor ranks
    column     rows are split, as they stand
    row        columns are split
    same       every tensor rank holds the whole
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dimensions:
    """What the mapping needs to know of a model."""

    layers: int
    hidden: int
    heads: int
    groups: int  # heads of keys and values
    head: int  # width of one head
    ffn: int
    vocab: int
    qkv_bias: bool
    tied: bool  # the output layer is the embedding
    value: bool  # a value head in place of the output layer

    def padded_vocab(self, tensor: int) -> int:
        """Rows of the embedding over `tensor` ranks."""
        return -(-self.vocab // tensor) * tensor


@dataclass(frozen=True)
class Entry:
    """One parameter of the whole Megatron model."""

    name: str  # Megatron's, with `{}` for the number of the layer within its stage
    kind: str
    sources: tuple[str, ...]  # Hugging Face's names
    shape: tuple[int, ...]  # of the whole parameter, without padding
    layer: int | None = None  # None: outside the layers
    stage: int = 0  # of the pipeline
    copy: bool = False  # a second copy of a tied embedding, on the last stage

    def local_name(self, layers_per_stage: int) -> str:
        """Its name on the stage that holds it."""
        return self.name if self.layer is None else self.name.format(self.layer % layers_per_stage)


def entries(model: Dimensions, stages: int = 1) -> Iterator[Entry]:
    """Every parameter in the order of Hugging Face's state dict; `stages` divide the layers evenly."""
    prefix = "backbone." if model.value else "model."
    last, per_stage = stages - 1, model.layers // stages
    embedding, table = f"{prefix}embed_tokens.weight", (model.vocab, model.hidden)
    yield Entry("embedding.word_embeddings.weight", "vocab", (embedding,), table)
    for layer in range(model.layers):
        yield from _layer(model, f"{prefix}layers.{layer}.", layer, layer // per_stage)
    yield Entry("decoder.final_layernorm.weight", "same", (f"{prefix}norm.weight",), (model.hidden,), stage=last)
    if model.value:
        yield Entry("output_layer.weight", "same", ("value_head.weight",), (1, model.hidden), stage=last)
        yield Entry("output_layer.bias", "same", ("value_head.bias",), (1,), stage=last)
    elif not model.tied:
        yield Entry("output_layer.weight", "vocab", ("lm_head.weight",), table, stage=last)
    elif stages > 1:
        yield Entry("output_layer.weight", "vocab", (embedding,), table, stage=last, copy=True)


def _layer(model: Dimensions, prefix: str, layer: int, stage: int) -> Iterator[Entry]:
    def entry(name: str, kind: str, sources: str, *shape: int) -> Entry:
        named = tuple(prefix + source for source in sources.split())
        return Entry(f"decoder.layers.{{}}.{name}", kind, named, shape, layer, stage)

    rows, hidden = (model.heads + 2 * model.groups) * model.head, model.hidden
    attention = "self_attn.{0}_proj.{1}"
    weights, biases = (" ".join(attention.format(part, kind) for part in "qkv") for kind in ("weight", "bias"))
    yield entry("self_attention.linear_qkv.weight", "qkv", weights, rows, hidden)
    if model.qkv_bias:
        yield entry("self_attention.linear_qkv.bias", "qkv", biases, rows)
    projection = attention.format("o", "weight")
    yield entry("self_attention.linear_proj.weight", "row", projection, hidden, model.heads * model.head)
    gate_up = "mlp.gate_proj.weight mlp.up_proj.weight"
    yield entry("mlp.linear_fc1.weight", "gate_up", gate_up, 2 * model.ffn, hidden)
    yield entry("mlp.linear_fc2.weight", "row", "mlp.down_proj.weight", hidden, model.ffn)
    yield entry("input_layernorm.weight", "same", "input_layernorm.weight", hidden)
    yield entry("pre_mlp_layernorm.weight", "same", "post_attention_layernorm.weight", hidden)


def fuse(entry: Entry, tensors: Sequence[Tensor], model: Dimensions) -> Tensor:
    """The whole Megatron parameter of its `sources`."""
    if entry.kind == "qkv":
        grouped = [tensor.reshape(model.groups, -1, *tensor.shape[1:]) for tensor in tensors]
        return torch.cat(grouped, dim=1).reshape(-1, *tensors[0].shape[1:])
    return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]


def unfuse(entry: Entry, tensor: Tensor, model: Dimensions) -> tuple[Tensor, ...]:
    """What `fuse` was given."""
    if entry.kind == "qkv":
        grouped = tensor.reshape(model.groups, -1, *tensor.shape[1:])
        queries = model.heads // model.groups * model.head
        parts = grouped.split([queries, model.head, model.head], dim=1)
        return tuple(part.reshape(-1, *tensor.shape[1:]) for part in parts)
    return tuple(tensor.chunk(len(entry.sources)))


def part(entry: Entry, tensor: Tensor, rank: int, ranks: int) -> Tensor:
    """The slice of tensor rank `rank` of `ranks`."""
    if ranks == 1 or entry.kind == "same":
        return tensor
    if entry.kind == "row":
        return tensor.chunk(ranks, dim=1)[rank]
    if entry.kind == "gate_up":
        return torch.cat([half.chunk(ranks)[rank] for half in tensor.chunk(2)])
    if entry.kind == "vocab":
        missing = -tensor.shape[0] % ranks
        tensor = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor
    return tensor.chunk(ranks)[rank]


def whole(entry: Entry, parts: Sequence[Tensor]) -> Tensor:
    """The tensor of which `parts` are the slices, by tensor rank."""
    if len(parts) == 1 or entry.kind == "same":
        return parts[0]
    if entry.kind == "row":
        return torch.cat(list(parts), dim=1)
    if entry.kind == "gate_up":
        gates, ups = zip(*(slice_.chunk(2) for slice_ in parts), strict=True)
        return torch.cat([*gates, *ups])
    return torch.cat(list(parts))[: entry.shape[0]]
