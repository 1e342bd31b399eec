"""Causal attention over sequences that stand end to end in one row, as an implementation for transformers.

Legend: N tokens of all sequences, H heads, K key-value heads, E numbers per head.

On CUDA in half precision it is one flash-attention kernel for all sequences: torch's own (2.11 and later), or that of
the package flash-attn. Elsewhere, torch's `scaled_dot_product_attention` sequence by sequence, which is exact too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

NAME = "packed"  # in transformers' registry
# Further terms of an attention, by their names in transformers, that none of these kernels knows.
UNKNOWN_TERMS = ("softcap", "s_aux", "position_bias", "head_mask")
FLASH_HEAD_LIMIT = 256  # numbers per head
AMPERE = (8, 0)  # the first GPUs that run it

Flash = Callable[[Tensor, Tensor, Tensor, Tensor, int, float, int | None], Tensor]


class NotPackable(Exception):
    """A model whose attention cannot be computed over a packed row."""


def register() -> None:
    """Makes `NAME` known to transformers. Raises NotPackable if this transformers has no such registry."""
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    except ImportError as error:
        raise NotPackable("transformers is older than 4.53") from error
    # Of an implementation without a mask function of its own, transformers leaves the mask None.
    assert NAME not in ALL_MASK_ATTENTION_FUNCTIONS
    AttentionInterface.register(NAME, attend)
    _KERNEL.setdefault("flash", _find_flash())


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """`query` [1, H, N, E], `key` and `value` [1, K, N, E] -> [1, N, H, E]. Raises NotPackable.

    Without bounds, of level rows: [B, H, S, E] and [B, K, S, E] -> [B, S, H, E].
    """
    if max_length_q is None:
        raise NotPackable("the bounds of the sequences do not reach its attention")
    unknown = [term for term in UNKNOWN_TERMS if others.get(term) is not None]
    if unknown or attention_mask is not None or dropout:
        raise NotPackable(f"its attention has {', '.join(unknown) or 'a mask or a dropout'}")
    if others.get("is_causal") is False or not getattr(module, "is_causal", True):
        raise NotPackable("its attention is not causal")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if cu_seq_lens_q is None:
        return side_by_side(query, key, value, scale, sliding_window), None
    q_NHE, k_NKE, v_NKE = (x[0].transpose(0, 1) for x in (query, key, value))
    flash = _KERNEL["flash"]
    if flash is not None and _fits_flash(query) and value.shape == key.shape:
        out_NHE = flash(q_NHE, k_NKE, v_NKE, cu_seq_lens_q, max_length_q, scale, sliding_window)
    else:
        out_NHE = one_by_one(q_NHE, k_NKE, v_NKE, cu_seq_lens_q, scale, sliding_window)
    return out_NHE[None], None


def side_by_side(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
    """[B, S, H, E]: torch takes the best kernel of the machine, cuDNN's on Hopper. Raises NotPackable."""
    if window is not None:
        raise NotPackable("its attention has a window")
    grouped = query.shape[1] != key.shape[1]
    out_BHSE = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
    return out_BHSE.transpose(1, 2).contiguous()


def _fits_flash(query: Tensor) -> bool:
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] <= FLASH_HEAD_LIMIT
        and query.shape[-1] % 8 == 0
    )


_KERNEL: dict[str, Flash | None] = {}  # chosen once, and not while a layer is compiled


def _find_flash() -> Flash | None:
    """The flash kernel of this machine; None if there is none."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < AMPERE:
        return None
    return _torch_flash() or _package_flash()


def _torch_flash() -> Flash | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    if not {"window_size", "scale"} <= set(known):  # torch 2.10
        return None
    grouped: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in known else {}

    def flash(
        q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float, window: int | None
    ) -> Tensor:
        out = varlen_attn(
            *(q, k, v, bounds, bounds, longest, longest), scale=scale, window_size=_window(window), **grouped
        )
        assert isinstance(out, Tensor)
        return out

    return flash


def _package_flash() -> Flash | None:
    try:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None

    def flash(
        q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float, window: int | None
    ) -> Tensor:
        bounds_of_both = (bounds, bounds, longest, longest)
        out: Tensor = flash_attn_varlen_func(
            q, k, v, *bounds_of_both, softmax_scale=scale, causal=True, window_size=_window(window)
        )
        return out

    return flash


def _window(sliding: int | None) -> tuple[int, int]:
    """Flash's (left, right) of a causal attention; transformers' sliding window counts the token itself."""
    return (-1, 0) if sliding is None else (sliding - 1, 0)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def one_by_one(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, scale: float, window: int | None) -> Tensor:
    """[N, H, E] from q [N, H, E], k and v [N, K, E]: each sequence by itself."""
    lengths = bounds.diff().tolist()
    outputs = []
    for q_n, k_n, v_n in zip(*(x.transpose(0, 1).split(lengths, dim=1) for x in (q, k, v)), strict=True):
        length = q_n.shape[1]
        band = None
        if window is not None and length > window:
            band = torch.ones(length, length, dtype=torch.bool, device=q.device).tril().triu(1 - window)
        outputs.append(
            scaled_dot_product_attention(
                *(q_n[None], k_n[None], v_n[None]),
                attn_mask=band,
                is_causal=band is None,
                scale=scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )[0]
        )
    return torch.cat(outputs, dim=1).transpose(0, 1)
