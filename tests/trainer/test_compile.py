"""Compiled layers: the same figures, under the same names, with checkpointing and sharding around them."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.batches import random_ids, rollout_of
from trainer.config.schema import FsdpConfig
from trainer.learner.fsdp import Model
from trainer.learner.models import Source, sharded


class Saved:
    """Bytes that autograd keeps for the backward pass."""

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> Saved:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _count(self, tensor: Tensor) -> Tensor:
        self.bytes += tensor.numel() * tensor.element_size()
        return tensor


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("kind", ["causal_lm", "value"])
def test_compiled_layers_change_no_figure(models: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Traced by dynamo for both passes; without the C++ compiler at the end, which a GPU's test takes."""
    compiled: Counter[str] = Counter()

    def backend(graph: Any, inputs: Any) -> Any:
        compiled["graphs"] += 1
        from torch._dynamo.backends.debugging import aot_eager

        return aot_eager(graph, inputs)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    rollout = rollout_of(random_ids([4, 1, 6], 1), random_ids([3, 5, 1], 2))

    def figures(use_torch_compile: bool, checkpointing: bool = True) -> tuple[Tensor, dict[str, Tensor], int]:
        config = FsdpConfig(dtype="fp32", use_torch_compile=use_torch_compile)
        module = sharded(kind, Source(str(models / "qwen2"), False, 1), config, mesh, checkpointing=checkpointing)
        model = Model(module, torch.device("cpu"))
        with Saved() as saved:
            out = model.log_probs(rollout, entropy=False).logp_BT if kind == "causal_lm" else model.values(rollout)
        out.square().sum().backward()
        gradients = {name: p.grad.full_tensor() for name, p in module.named_parameters()}  # type: ignore[union-attr]
        return out.detach(), gradients, saved.bytes

    plain, gradients, _ = figures(False)
    assert not compiled
    found, compiled_gradients, saved = figures(True)
    assert compiled["graphs"] >= 1
    assert saved < 0.7 * figures(True, checkpointing=False)[2]  # activations are checkpointed still
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
    assert compiled_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(compiled_gradients[name], gradient, atol=1e-4, rtol=1e-4)
