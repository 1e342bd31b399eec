"""Compiled layers: the same figures, under the same names, with checkpointing and sharding around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.batches import random_ids, rollout_of
from trainer.config.schema import FsdpConfig
from trainer.learner import compiling
from trainer.learner import models as models_module
from trainer.learner.forward import ForwardOptions
from trainer.learner.fsdp import Model, Unadapted
from trainer.learner.lora import Adapters, adapted
from trainer.learner.models import Source, sharded

pytestmark = pytest.mark.ray


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
    figures = partial(figures_of, kind, models, mesh)
    plain = figures(False)
    assert not compiled
    found = figures(True)
    assert compiled["graphs"] >= 1
    assert found.saved < 0.8 * figures(True, checkpointing=False).saved  # activations are checkpointed still
    same(found, plain)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("kind", ["causal_lm", "value"])
def test_trying_what_an_architecture_allows_compiles_nothing(
    models: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Nor is a cache asked for, which would make each layer a graph of its own: of 24 layers, too many."""
    compiled: Counter[str] = Counter()

    def backend(graph: Any, inputs: Any) -> Any:
        compiled["graphs"] += 1
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    config = FsdpConfig(dtype="fp32", use_torch_compile=True)
    module = sharded(kind, Source(str(models / "qwen2"), False, 1), config, mesh, checkpointing=False)
    model = Model(module, torch.device("cpu"), options=ForwardOptions(remove_padding=True))
    caches: list[object] = []
    for layer in module.modules():
        if "DecoderLayer" in type(layer).__name__:
            layer.register_forward_pre_hook(
                lambda _, __, named: caches.append(named.get("past_key_values")), with_kwargs=True
            )
    compiled.clear()
    assert model.forward.packs
    assert caches and set(caches) == {None}
    assert not compiled
    rollout = rollout_of(random_ids([4, 1, 6], 1), random_ids([3, 5, 1], 2))
    with torch.no_grad():
        _ = model.log_probs(rollout, entropy=False) if kind == "causal_lm" else model.values(rollout)
    assert compiled["graphs"] >= 1


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit")
def test_the_compiler_chooses_what_selective_recompute_keeps(
    models: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one graph per layer, without the eager way to choose, which a compiled layer breaks on CUDA."""
    from torch._dynamo.backends.debugging import aot_eager_decomp_partition

    monkeypatch.setattr(models_module, "create_selective_checkpoint_contexts", None)
    monkeypatch.setattr(compiling, "inductor", aot_eager_decomp_partition)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, fullgraph=True))
    figures = partial(figures_of, "causal_lm", models, mesh)
    most, half, quarter = (figures(True, recompute="selective", budget=share) for share in (0.99, 0.5, 0.25))
    assert most.saved > half.saved > quarter.saved  # in one process: each share has graphs of its own
    assert half.saved == figures(True, recompute="selective").saved  # the share that is taken where none is given
    for found in (most, half, quarter):
        same(found, figures(False))


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit")
def test_compiled_adapters_act_or_not_as_they_are_asked(
    models: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one graph per layer. With them and without, in turn: a layer's graph is that of the moment."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, fullgraph=True, backend="aot_eager"))
    rollout = rollout_of(random_ids([4, 1, 6], 1), random_ids([3, 5, 1], 2))

    def answers(compile_it: bool) -> list[Tensor]:
        config, source = FsdpConfig(dtype="fp32", use_torch_compile=compile_it), Source(str(models / "qwen2"), False, 1)
        module = sharded("causal_lm", source, config, mesh, checkpointing=True, adapters=Adapters(rank=2, alpha=4.0))
        model = Model(module, torch.device("cpu"))
        dice = torch.Generator().manual_seed(1)
        for each in adapted(module).values():
            factor = each.lora_B.weight.to_local()  # type: ignore[operator]
            factor.data.copy_(0.1 * torch.randn(factor.shape, generator=dice))
        with torch.no_grad():
            turns = [model, Unadapted(model), model, Unadapted(model)]
            found = [each.log_probs(rollout, entropy=False).logp_BT for each in turns]
        out = model.log_probs(rollout, entropy=False).logp_BT
        out.square().sum().backward()
        grads = {name: p.grad.full_tensor() for name, p in module.named_parameters() if p.grad is not None}  # type: ignore[union-attr]
        return [*found, out.detach(), *(grads[name] for name in sorted(grads))]

    plain, compiled = answers(False), answers(True)
    assert (plain[0] - plain[1]).abs().max() > 1e-3 and len(plain) == 5 + 2 * 2 * 7
    for mine, other in zip(compiled, plain, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_a_machine_without_a_compiler_runs_the_layers_as_they_are(
    models: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise FileNotFoundError("No C++ compiler")

    plain = figures_of("causal_lm", models, mesh, False)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=broken))
    same(figures_of("causal_lm", models, mesh, True), plain)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("trainer")]
    assert said == ["layers are not compiled: FileNotFoundError: No C++ compiler"]


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_layer_that_cannot_be_compiled_runs_as_it_is(
    models: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Compilation is on by default: an architecture that the compiler does not know must not end a run."""

    def only_small(graph: Any, inputs: Any) -> Any:
        if len(graph.graph.nodes) > 20:
            raise NotImplementedError("this layer")
        return graph.forward

    plain = figures_of("causal_lm", models, mesh, False)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=only_small))
    same(figures_of("causal_lm", models, mesh, True), plain)
    assert "this layer" in caplog.text


@pytest.fixture(autouse=True)
def tried_anew() -> Iterator[None]:
    compiling.compiler_works.cache_clear()
    yield
    torch._dynamo.config.suppress_errors = False


@dataclass(frozen=True)
class Figures:
    answers: Tensor
    gradients: dict[str, Tensor]
    saved: int  # bytes for the backward pass


def figures_of(
    kind: str,
    models: Path,
    mesh: Any,
    compile_it: bool,
    *,
    checkpointing: bool = True,
    recompute: str = "full",
    budget: float | None = None,
) -> Figures:
    """A model's answers to a rollout, and the gradients of their squares."""
    rollout = rollout_of(random_ids([4, 1, 6], 1), random_ids([3, 5, 1], 2))
    config = FsdpConfig(dtype="fp32", use_torch_compile=compile_it)
    source = Source(str(models / "qwen2"), False, 1)
    module = sharded(kind, source, config, mesh, checkpointing=checkpointing, recompute=recompute, budget=budget)
    model = Model(module, torch.device("cpu"))
    with Saved() as saved:
        out = model.log_probs(rollout, entropy=False).logp_BT if kind == "causal_lm" else model.values(rollout)
    out.square().sum().backward()
    gradients = {name: p.grad.full_tensor() for name, p in module.named_parameters()}  # type: ignore[union-attr]
    return Figures(out.detach(), gradients, saved.bytes)


def same(found: Figures, expected: Figures) -> None:
    torch.testing.assert_close(found.answers, expected.answers, atol=1e-5, rtol=1e-5)
    assert found.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient, atol=1e-4, rtol=1e-4)
