"""Log-probs and entropy of response tokens from the model's last hidden state, without all logits at once.

Legend: M response tokens, D hidden size, V vocabulary. A float32 [M, V] is the largest tensor of a naive update by far
(16,384 tokens of Qwen2's vocabulary: 10 GB, and several of them); here it never exists. The logits are made a chunk of
tokens at a time, and once more for the gradient. On CUDA, those of the first tokens are kept for it instead, in the
computation's precision and within a budget, and the gradient is written over them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from trainer.config.fits import CHUNK_LOGITS, INDEXED_BY_32_BITS, KEPT_LOGITS
from trainer.learner.compiling import reason

TILE = 128  # rows of a matrix product

Statistics = Callable[..., tuple[Tensor, Tensor, Tensor]]
Gradient = Callable[..., None]


@dataclass(frozen=True)
class Plan:
    """How the tokens of a pass are cut."""

    kept: int  # tokens, the first, whose logits stay for the gradient
    rows: int  # tokens of a chunk of the others

    def parts(self, length: int) -> Iterator[slice]:
        if self.kept and length:
            yield slice(0, min(self.kept, length))
        for start in range(self.kept, length, self.rows):
            yield slice(start, start + self.rows)


def plan(weight_VD: Tensor, *, chunk_logits: int = CHUNK_LOGITS, kept_bytes: int | None = None) -> Plan:
    """`kept_bytes` is the budget of logits that are kept; by default a share of the GPU's memory, and none on a CPU."""
    vocabulary = len(weight_VD)
    if kept_bytes is None:
        kept_bytes = int(KEPT_LOGITS * _memory(weight_VD.device)) if weight_VD.is_cuda else 0
    kept = min(kept_bytes // weight_VD.element_size(), INDEXED_BY_32_BITS) // vocabulary
    rows = max(1, chunk_logits // vocabulary)
    return Plan(kept // TILE * TILE or kept, rows // TILE * TILE or rows)


@cache
def _memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)


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
    kept_bytes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probs of `labels_M` under softmax(logits / temperature) and its entropy in nats, [M] float32 each.

    With gradient to `hidden_MD`, `weight_VD` and `bias_V`. Without `entropy`, that is zeros. `compiled` fuses what is
    done to a chunk of logits (CUDA).
    """
    cut = plan(weight_VD, chunk_logits=chunk_logits, kept_bytes=kept_bytes if torch.is_grad_enabled() else 0)
    answers: tuple[Tensor, Tensor] = _Head.apply(  # type: ignore[no-untyped-call]
        hidden_MD, weight_VD, bias_V, labels_M, temperature, entropy, compiled, cut
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
        cut: Plan,
    ) -> tuple[Tensor, Tensor]:
        statistics = fused()[0] if compiled else chunk_statistics
        exact = torch.promote_types(hidden_MD.dtype, torch.float32)
        found = hidden_MD.new_empty((3, len(hidden_MD)), dtype=exact)
        ctx.kept_CV = None  # not among the saved tensors: it is overwritten
        for part in cut.parts(len(hidden_MD)):
            logits_CV = _logits(hidden_MD[part], weight_VD, bias_V, compiled)
            for row_M, x_C in zip(found, statistics(logits_CV, labels_M[part], temperature, entropy), strict=True):
                row_M[part] = x_C
            if cut.kept and part.start == 0:
                ctx.kept_CV = logits_CV
        logp_M, entropy_M, normaliser_M = found
        ctx.save_for_backward(hidden_MD, weight_VD, bias_V, labels_M, normaliser_M, entropy_M)
        ctx.options = temperature, entropy, compiled, cut
        return logp_M.clone(), entropy_M.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MD, weight_VD, bias_V, labels_M, normaliser_M, entropy_M = ctx.saved_tensors
        temperature, entropy, compiled, cut = ctx.options
        write_gradient = fused()[1] if compiled else write_chunk_gradient
        d_logp_M, d_entropy_M = gradients
        d_hidden_MD = torch.empty_like(hidden_MD)
        parts = list(cut.parts(len(hidden_MD)))
        d_weight_VD = _Sum(weight_VD, len(parts)) if ctx.needs_input_grad[1] else None
        d_bias_V = _Sum(bias_V, len(parts)) if bias_V is not None else None
        for part in parts:
            d_CV, ctx.kept_CV = ctx.kept_CV, None  # the logits, until the gradient is written over them
            if d_CV is None:
                d_CV = _logits(hidden_MD[part], weight_VD, bias_V, compiled)
            known = labels_M[part], normaliser_M[part], entropy_M[part]
            write_gradient(d_CV, *known, d_logp_M[part], d_entropy_M[part], temperature, entropy)
            torch.mm(d_CV, weight_VD, out=d_hidden_MD[part])
            if d_weight_VD is not None:
                d_weight_VD.add_product(d_CV.T, hidden_MD[part])
            if d_bias_V is not None:
                d_bias_V.add(d_CV.sum(0))
            del d_CV  # before the next are made
        sums = (each.total() if each is not None else None for each in (d_weight_VD, d_bias_V))
        return d_hidden_MD, *sums, None, None, None, None, None


def _logits(hidden_CD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, compiled: bool) -> Tensor:
    logits_CV = linear(hidden_CD, weight_VD, bias_V)
    if compiled:
        torch._dynamo.mark_static(logits_CV, 1)  # the vocabulary is a constant of the kernels, as tokens are not
    return logits_CV


class _Sum:
    """Of what `parts` chunks bring to a gradient. In float32: in bf16 each addition would round the others' sum."""

    def __init__(self, like: Tensor, parts: int) -> None:
        self._like = like
        self._exact = like.dtype if parts == 1 else torch.promote_types(like.dtype, torch.float32)
        self._sum: Tensor | None = None

    def add(self, x: Tensor) -> None:
        self._sum = x.to(self._exact) if self._sum is None else self._sum.add_(x)

    def add_product(self, a: Tensor, b: Tensor) -> None:
        """`a @ b`; where torch can, half-precision factors are multiplied into the float32 sum at once."""
        if self._exact == a.dtype or not (a.is_cuda and WIDE_PRODUCTS):
            self.add(a @ b)
        elif self._sum is None:
            self._sum = torch.mm(a, b, out_dtype=self._exact)
        else:
            torch.ops.aten.addmm.dtype_out(self._sum, a, b, self._exact, out=self._sum)

    def total(self) -> Tensor:
        return torch.zeros_like(self._like) if self._sum is None else self._sum.to(self._like.dtype)


WIDE_PRODUCTS = hasattr(torch.ops.aten.addmm, "dtype_out")  # torch 2.8 and later


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


def write_chunk_gradient(logits_CV: Tensor, *known: Any) -> None:
    """`chunk_gradient` in the logits' place."""
    logits_CV.copy_(chunk_gradient(logits_CV, *known))


def _exact(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def from_logits(logits_MV: Tensor, labels_M: Tensor, temperature: float, *, entropy: bool) -> tuple[Tensor, Tensor]:
    """The same from logits that are there already, for a model that does more to them than its head."""
    logp_M, entropy_M, _ = chunk_statistics(logits_MV, labels_M, temperature, entropy)
    return logp_M, entropy_M


@cache
def fused() -> tuple[Statistics, Gradient]:
    """`chunk_statistics` and `write_chunk_gradient` compiled; as they are, with a note, where they do not compile."""
    compiled = (
        torch.compile(chunk_statistics, dynamic=True, fullgraph=True),
        torch.compile(write_chunk_gradient, dynamic=True, fullgraph=True),
    )
    logits, labels = torch.randn(3, 40, device="cuda"), torch.arange(3, device="cuda")
    torch._dynamo.mark_static(logits, 1)
    row = torch.zeros(3, device="cuda")
    try:
        compiled[0](logits, labels, 1.0, True)
        compiled[1](logits, labels, row, row, row, row, 1.0, True)
    except Exception as error:  # noqa: BLE001 - whatever a compiler can miss on a machine: the figures are the same
        logging.getLogger(__name__).warning("log-probs are not compiled: %s", reason(error))
        return chunk_statistics, write_chunk_gradient
    return compiled
