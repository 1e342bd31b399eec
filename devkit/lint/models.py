"""How many parameters a model has: from its config.json, else from its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from os.path import expanduser, join
from typing import Any

from devkit.reading import json_of, read_regular

_LARGEST = 10_000_000  # bytes of a config.json
_IN_NAME = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")
_EXPERTS_IN_NAME = re.compile(r"(?<![A-Za-z0-9.])(\d+)x(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")


@dataclass(frozen=True)
class Size:
    """Parameters in billions, how that is known, and the attention heads where they are known."""

    billions: float
    origin: str
    heads: int | None = None


def size_of(path: str) -> Size | None:
    """The size of a model folder or hub id.

    >>> size_of("Qwen/Qwen2.5-0.5B-Instruct")
    Size(billions=0.5, origin='its name', heads=None)
    """
    try:
        found = json_of(read_regular(join(expanduser(path), "config.json"), _LARGEST))
    except (OSError, ValueError):
        found = None
    size = _of_config(found) if isinstance(found, dict) else None
    return size or _of_name(path)


def _of_name(path: str) -> Size | None:
    name = path.rstrip("/").rpartition("/")[2]
    experts = _EXPERTS_IN_NAME.search(name)
    if experts:
        return Size(int(experts[1]) * float(experts[2]), "its name")
    sizes = [float(size) for size in _IN_NAME.findall(name)]
    return Size(sizes[0], "its name") if sizes and 0 < sizes[0] < 10_000 else None


def _of_config(config: dict[str, Any]) -> Size | None:
    """A dense transformer of the Llama kind, gated feed-forward; with experts, as many of it as there are."""
    text = config.get("text_config")
    numbers = {**config, **text} if isinstance(text, dict) else config
    try:
        hidden, layers, inner, words = (
            int(numbers[name]) for name in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
        )
        heads = int(numbers["num_attention_heads"])
        kv_heads = int(numbers.get("num_key_value_heads") or heads)
        head = int(numbers.get("head_dim") or hidden // max(1, heads))
        experts = int(numbers.get("num_experts") or numbers.get("num_local_experts") or 1)
        width = int(numbers.get("moe_intermediate_size") or inner) if experts > 1 else inner
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    feed_forward = 3 * hidden * width * experts
    embeddings = words * hidden * (1 if numbers.get("tie_word_embeddings") else 2)
    total = layers * (attention + feed_forward) + embeddings
    return Size(total / 1e9, "its config.json", heads) if total > 0 else None
