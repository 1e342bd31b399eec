"""The sizes of a language model that decide what its training takes, from its configuration: transformers' names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config.model_folder import Unreadable, read_object

# Whose feed-forward network has no gate: two matrices, not three.
PLAIN = frozenset(
    {"gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "phi", "starcoder2"}
)
# Whose queries and keys are normalised.
NORMED = ("qwen3", "olmo2", "olmo3", "gemma3")
TIED = ("gpt", "gemma", "bloom", "opt", "falcon", "starcoder2")  # where the configuration does not say it


@dataclass(frozen=True)
class Shape:
    """Widths are counted in numbers per token.

    >>> qwen2 = {"model_type": "qwen2", "hidden_size": 1536, "num_hidden_layers": 28, "intermediate_size": 8960,
    ...          "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}
    >>> shape_of(qwen2).parameters
    1543569408
    """

    layers: int
    hidden: int
    queries: int  # heads times head size
    keys: int  # key-value heads times head size
    feed_forward: int  # what a token takes of it: of a mixture of experts, those that it is sent to
    all_feed_forward: int  # of all experts
    vocabulary: int
    tied: bool  # the output layer is the embedding
    gated: bool = True
    normed: bool = False
    positions: int = 0  # learnt, one vector each

    @property
    def mixture(self) -> bool:
        return self.all_feed_forward != self.feed_forward

    @property
    def of_layer(self) -> int:
        """Parameters; biases and norms are left out."""
        feed_forward = (3 if self.gated else 2) * self.hidden * self.all_feed_forward
        return feed_forward + 2 * self.hidden * (self.queries + self.keys)

    @property
    def of_embeddings(self) -> int:
        """Parameters outside the layers, with an output layer of their own if there is one."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.positions * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.of_layer + self.of_embeddings


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """None where a size is missing that the formulas need."""
    text = config.get("text_config")
    merged = {**config, **text} if isinstance(text, dict) else dict(config)

    def size(*names: str, default: int = 0) -> int:
        found = (merged.get(name) for name in names)
        return next((value for value in found if type(value) is int and value > 0), default)

    kind = str(merged.get("model_type", ""))
    hidden, layers = size("hidden_size", "n_embd", "d_model"), size("num_hidden_layers", "n_layer", "num_layers")
    heads, vocabulary = size("num_attention_heads", "n_head", "num_heads"), size("vocab_size")
    if not (hidden and layers and heads and vocabulary):
        return None
    head_size = size("head_dim", default=hidden // heads)
    dense = size("intermediate_size", "n_inner", "d_ff", "ffn_dim", default=4 * hidden)
    experts = size("num_experts", "num_local_experts", "n_routed_experts")
    each = size("moe_intermediate_size", default=dense)
    shared = size("shared_expert_intermediate_size", default=size("n_shared_experts") * each) if experts else 0
    tied = merged.get("tie_word_embeddings")
    return Shape(
        layers=layers,
        hidden=hidden,
        queries=heads * head_size,
        keys=size("num_key_value_heads", default=heads) * head_size,
        feed_forward=size("num_experts_per_tok", "top_k", default=2) * each + shared if experts else dense,
        all_feed_forward=experts * each + shared if experts else dense,
        vocabulary=vocabulary,
        tied=tied if isinstance(tied, bool) else kind.startswith(TIED),
        gated=kind not in PLAIN,
        normed=kind.startswith(NORMED),
        positions=size("n_positions"),
    )


def shape_in(folder: Path) -> Shape | None:
    """Of the model in a folder; None where there is none that can be read."""
    try:
        return shape_of(read_object(folder / "config.json"))
    except (Unreadable, OSError):
        return None
