"""What verl needs of flash-attn 2.8.3, on PyTorch's own flash attention: verl's critic asks for it, whatever one sets.

To use it, make this a package in a folder for `--verl-path`:

    flash_attn/__init__.py                       this file
    flash_attn/bert_padding.py                   flash-attn's own
    flash_attn/ops/triton/cross_entropy.py       flash-attn's own, and an empty __init__.py in both folders
    flash_attn-2.8.3.dist-info/METADATA          Metadata-Version, Name and Version; transformers asks for it
    flash_attn-2.8.3.dist-info/top_level.txt     flash_attn

`torch.nn.attention.varlen` is built from FlashAttention-2, and is what this trainer computes with: with this file both
have the same kernel. flash-attn's Triton cross-entropy is verl's own choice for log-probs.
"""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

__version__ = "2.8.3"
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """[N, H, E] from q [N, H, E], k and v [N, K, E]: sequences end to end."""
    if dropout_p or softcap or deterministic:
        raise NotImplementedError("this stand-in has plain attention alone")
    window = (window_size[0], 0) if causal else window_size
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    bounds = (cu_seqlens_q.int(), cu_seqlens_k.int(), int(max_seqlen_q), int(max_seqlen_k))
    out = varlen_attn(q, k, v, *bounds, scale=scale, window_size=window, **_GROUPED)
    assert isinstance(out, Tensor)
    return out


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
    """[B, T, H, E]: as `flash_attn_varlen_func` of B sequences of T tokens."""
    rows, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    ends = [torch.arange(0, (rows + 1) * n, n, dtype=torch.int32, device=q.device) for n in (queries, keys)]
    flat_q, flat_k, flat_v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    out = flash_attn_varlen_func(flat_q, flat_k, flat_v, ends[0], ends[1], queries, keys, **settings)
    return out.view(rows, queries, *out.shape[1:])


def flash_attn_with_kvcache(*_args: Any, **_settings: Any) -> NoReturn:
    raise NotImplementedError("this stand-in has no attention with a cache")
