"""Packing on CUDA: the flash kernel, the compiled head, and runs beside padded ones. Needs a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.gpu.test_cuda import FP32, differences, inputs, run  # noqa: F401 - a fixture
from trainer.learner import attention, head

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # torch.compile has deprecations of its own
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(500),
]
PADDED = ("actor_rollout_ref.model.use_remove_padding=False", "critic.model.use_remove_padding=False")


@pytest.mark.parametrize("window", [None, 100])
def test_flash_attention_is_that_of_one_sequence_after_the_other(window: int | None) -> None:
    """Answers and gradients in bf16, grouped heads, against fp32 one by one."""
    attention.register()
    flash = attention._KERNEL["flash"]
    assert flash is not None, "neither torch.nn.attention.varlen (2.11) nor flash-attn is here"
    dice = torch.Generator("cuda").manual_seed(0)
    lengths = [1, 700, 13, 128, 2]
    q, k, v = (torch.randn(sum(lengths), h, 64, generator=dice, device="cuda") for h in (8, 2, 2))
    bounds = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    weights = torch.randn(sum(lengths), 8, 64, generator=dice, device="cuda")

    def answers(dtype: torch.dtype) -> list[Tensor]:
        parts = [x.to(dtype).requires_grad_() for x in (q.bfloat16(), k.bfloat16(), v.bfloat16())]
        if dtype == torch.bfloat16:
            out = flash(*parts, bounds, max(lengths), 0.125, window)
        else:
            out = attention.one_by_one(*parts, bounds, 0.125, window)
        (out * weights).sum().backward()
        return [out.detach().float(), *(part.grad.float() for part in parts if part.grad is not None)]

    for found, expected in zip(answers(torch.bfloat16), answers(torch.float32), strict=True):
        assert (found - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("kept", [0, 256, 5000])
def test_compiled_head(entropy: bool, kept: int) -> None:
    """The same numbers as without the compiler, for chunks of several sizes, with no, some and all logits kept."""
    head.fused.cache_clear()
    assert head.fused() != (head.chunk_statistics, head.write_chunk_gradient), "it did not compile: see the warning"
    dice = torch.Generator("cuda").manual_seed(0)
    hidden, weight = (
        torch.randn(*shape, generator=dice, device="cuda").bfloat16() for shape in ((700, 64), (5000, 64))
    )
    labels = torch.randint(5000, (700,), generator=dice, device="cuda")

    def answers(compiled: bool) -> list[Tensor]:
        h, w = (x.clone().requires_grad_() for x in (hidden, weight))
        logp, ent = head.log_probs(
            *(h, w, None, labels, 0.7),
            entropy=entropy,
            compiled=compiled,
            chunk_logits=300 * 5000,
            kept_bytes=kept * 5000 * 2,
        )
        (logp.sin().sum() + ent.sum()).backward()
        assert h.grad is not None and w.grad is not None
        return [logp.detach(), ent.detach(), h.grad.float(), w.grad.float()]

    for found, expected in zip(answers(True), answers(False), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_packed_run_has_the_figures_of_the_padded_one(
    inputs: dict[str, str],  # noqa: F811
    tmp_path: Path,
    precision: str,
) -> None:
    """In fp32 as sums in another order; in bf16 the first step within a few percent."""
    words = FP32 if precision == "fp32" else []
    packed, padded = (
        run(inputs, tmp_path / name, *words, *more, "trainer.total_training_steps=1")
        for name, more in (("packed", ()), ("padded", PADDED))
    )
    if precision == "fp32":
        assert not differences(packed[1], padded[1])
    else:
        for name in ("actor/entropy", "critic/vf_loss", "actor/grad_norm"):
            assert packed[1][name] == pytest.approx(padded[1][name], rel=0.1), name
