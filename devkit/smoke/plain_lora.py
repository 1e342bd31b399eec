"""Adapters computed once more: each weight is W + scale B A in float64, differentiated by plain autograd.

Nothing here is the trainer's code, which never makes that sum while it trains. Runs in the warm process.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

A, B = ".lora_A.weight", ".lora_B.weight"  # how a run calls the two, behind the name of their module
HEAD = "value_head."  # of a critic: it trains whole
DOUBT = 2.0**-50  # relative: float64 sums in another order


class Summed(nn.Module):
    """W + scale B A, or its transpose where the module keeps its weight so."""

    def __init__(self, a: Tensor, b: Tensor, scale: float, *, transposed: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(a), nn.Parameter(b)
        self.scale, self.transposed = scale, transposed

    def forward(self, weight: Tensor) -> Tensor:
        product = self.b @ self.a
        return weight + self.scale * (product.T if self.transposed else product)


def attach(network: nn.Module, state: Mapping[str, Tensor], scale: float) -> dict[str, nn.Parameter]:
    """What trains, by the run's names. `state` has the adapters among the model's own tensors."""
    network.requires_grad_(False)
    trained = {name: parameter for name, parameter in network.named_parameters() if name.startswith(HEAD)}
    for name in [name for name in state if name.endswith(A)]:
        stem = name.removesuffix(A)
        module = network.get_submodule(stem)
        summed = Summed(state[name], state[stem + B], scale, transposed=is_transposed(module))
        parametrize.register_parametrization(module, "weight", summed)
        trained |= {name: summed.a, stem + B: summed.b}
    for parameter in trained.values():
        parameter.requires_grad_(True)
    return trained


def is_transposed(module: nn.Module) -> bool:
    """GPT-2's modules have their weights as [in, out]."""
    return type(module).__name__ == "Conv1D"


def is_factor(name: str) -> bool:
    return name.endswith((A, B))


def strayed(before: Mapping[str, Tensor], after: Mapping[str, Tensor], trained: Mapping[str, object]) -> list[str]:
    """The parameters of two saves that differ though they do not train."""
    frozen = {f"model.{name}" for name in trained} ^ {name for name in before if name.startswith("model.")}
    return sorted(name.removeprefix("model.") for name in frozen if not torch.equal(before[name], after[name]))


def sums(network: nn.Module, state: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The weights that have adapters, with them, rounded to float32; one that may be rounded either way is left out."""
    found = {}
    for stem in [name.removesuffix(A) for name in state if name.endswith(A)]:
        weight, a, b = (state[name].double() for name in (f"{stem}.weight", stem + A, stem + B))
        whole = weight.clone()
        for row_a, column_b in zip(a, b.T, strict=True):
            product = torch.outer(column_b, row_a)
            whole += scale * (product.T if is_transposed(network.get_submodule(stem)) else product)
        if torch.equal((whole * (1 - DOUBT)).float(), (whole * (1 + DOUBT)).float()):
            found[f"{stem}.weight"] = whole.float()
    return found
