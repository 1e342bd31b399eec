"""Log-probs and entropy of response tokens from the model's last hidden state, without all logits at once.

Legend: M response tokens, D hidden size, V vocabulary. A float32 [M, V] is the largest tensor of a naive update by far
(16,384 tokens of Qwen2's vocabulary: 10 GB, and several of them); here it never exists. The logits are made a chunk of
tokens at a time, and once more for the gradient.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from trainer.learner.compiling import reason

CHUNK_LOGITS = 2**28  # logits at once: 1 GiB in float32

Statistics = Callable[..., tuple[Tensor, Tensor, Tensor]]
Gradient = Callable[..., Tensor]


def log_probs(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    labels_M: Tensor,
    temperature: float,
    *,
    entropy: bool,
    compiled: bool = False,
    chunk_logits: int = CHUNK_LOGITS,
) -> tuple[Tensor, Tensor]:
    """Log-probs of `labels_M` under softmax(logits / temperature) and its entropy in nats, [M] float32 each.

    With gradient to `hidden_MD`, `weight_VD` and `bias_V`. Without `entropy`, that is zeros. `compiled` fuses what is
    done to a chunk of logits (CUDA).
    """
    rows = max(1, chunk_logits // len(weight_VD))
    rows = rows // 128 * 128 or rows  # whole tiles of the matrix product
    answers: tuple[Tensor, Tensor] = _Head.apply(  # type: ignore[no-untyped-call]
        hidden_MD, weight_VD, bias_V, labels_M, temperature, entropy, compiled, rows
    )
    return answers


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_MD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        labels_M: Tensor,
        temperature: float,
        entropy: bool,
        compiled: bool,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        statistics = fused()[0] if compiled else chunk_statistics
        exact = torch.promote_types(hidden_MD.dtype, torch.float32)
        found = hidden_MD.new_empty((3, len(hidden_MD)), dtype=exact)
        for part in _parts(len(hidden_MD), rows):
            logits_CV = linear(hidden_MD[part], weight_VD, bias_V)
            found[:, part] = torch.stack(statistics(logits_CV, labels_M[part], temperature, entropy))
        logp_M, entropy_M, normaliser_M = found
        ctx.save_for_backward(hidden_MD, weight_VD, bias_V, labels_M, normaliser_M, entropy_M)
        ctx.options = temperature, entropy, compiled, rows
        return logp_M.clone(), entropy_M.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MD, weight_VD, bias_V, labels_M, normaliser_M, entropy_M = ctx.saved_tensors
        temperature, entropy, compiled, rows = ctx.options
        gradient = fused()[1] if compiled else chunk_gradient
        d_logp_M, d_entropy_M = gradients
        d_hidden_MD = torch.empty_like(hidden_MD)
        # Sums over chunks in float32: in bf16 each addition would round what the others brought.
        exact = torch.promote_types(weight_VD.dtype, torch.float32)
        d_weight_VD = torch.zeros_like(weight_VD, dtype=exact) if ctx.needs_input_grad[1] else None
        d_bias_V = torch.zeros_like(bias_V, dtype=exact) if bias_V is not None else None
        for part in _parts(len(hidden_MD), rows):
            logits_CV = linear(hidden_MD[part], weight_VD, bias_V)
            known = labels_M[part], normaliser_M[part], entropy_M[part]
            d_logits_CV = gradient(logits_CV, *known, d_logp_M[part], d_entropy_M[part], temperature, entropy)
            d_hidden_MD[part] = d_logits_CV @ weight_VD
            if d_weight_VD is not None:
                d_weight_VD += d_logits_CV.T @ hidden_MD[part]
            if d_bias_V is not None:
                d_bias_V += d_logits_CV.sum(0)
        d_weight = d_weight_VD.to(weight_VD.dtype) if d_weight_VD is not None else None
        d_bias = d_bias_V.to(weight_VD.dtype) if d_bias_V is not None else None
        return d_hidden_MD, d_weight, d_bias, None, None, None, None, None


def _parts(length: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, length, rows))


def chunk_statistics(
    logits_CV: Tensor, labels_C: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of the label, entropy (nats) and normaliser of each row of logits, in float32."""
    scaled_CV = _exact(logits_CV) / temperature
    normaliser_C = torch.logsumexp(scaled_CV, dim=-1)
    logp_C = scaled_CV.gather(-1, labels_C[:, None]).squeeze(-1) - normaliser_C
    if not entropy:
        return logp_C, torch.zeros_like(logp_C), normaliser_C
    mean_C = ((scaled_CV - normaliser_C[:, None]).exp() * scaled_CV).sum(-1)
    return logp_C, normaliser_C - mean_C, normaliser_C


def chunk_gradient(
    logits_CV: Tensor,
    labels_C: Tensor,
    normaliser_C: Tensor,
    entropy_C: Tensor,
    d_logp_C: Tensor,
    d_entropy_C: Tensor,
    temperature: float,
    entropy: bool,
) -> Tensor:
    """The gradient to the logits, in their type: of log p_y it is 1{y} - p, of the entropy H it is -p (log p + H)."""
    log_p_CV = _exact(logits_CV) / temperature - normaliser_C[:, None]
    p_CV = log_p_CV.exp()
    hit_CV = torch.arange(logits_CV.shape[-1], device=logits_CV.device) == labels_C[:, None]
    d_CV = d_logp_C[:, None] * (hit_CV.to(p_CV.dtype) - p_CV)
    if entropy:
        d_CV = d_CV - d_entropy_C[:, None] * p_CV * (log_p_CV + entropy_C[:, None])
    return (d_CV / temperature).to(logits_CV.dtype)


def _exact(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def from_logits(logits_MV: Tensor, labels_M: Tensor, temperature: float, *, entropy: bool) -> tuple[Tensor, Tensor]:
    """The same from logits that are there already, for a model that does more to them than its head."""
    logp_M, entropy_M, _ = chunk_statistics(logits_MV, labels_M, temperature, entropy)
    return logp_M, entropy_M


@cache
def fused() -> tuple[Statistics, Gradient]:
    """`chunk_statistics` and `chunk_gradient` compiled; as they are, with a note, where they do not compile."""
    compiled = (
        torch.compile(chunk_statistics, dynamic=True, fullgraph=True),
        torch.compile(chunk_gradient, dynamic=True, fullgraph=True),
    )
    logits, labels = torch.randn(3, 40, device="cuda"), torch.arange(3, device="cuda")
    row = torch.zeros(3, device="cuda")
    try:
        compiled[0](logits, labels, 1.0, True)
        compiled[1](logits, labels, row, row, row, row, 1.0, True)
    except Exception as error:  # noqa: BLE001 - whatever a compiler can miss on a machine: the figures are the same
        logging.getLogger(__name__).warning("log-probs are not compiled: %s", reason(error))
        return chunk_statistics, chunk_gradient
    return compiled
