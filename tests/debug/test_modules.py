"""What a torch module consists of, without running or fetching anything of the program's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from devkit.debug.inworker import keeps, modules


class Tiny(nn.Module):
    def __init__(self, *, tie: bool, layers: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.lm_head = nn.Linear(16, 64, bias=False)
        if tie:
            self.lm_head.weight = self.embed.weight


class Forbidden(Tiny):
    def named_parameters(self, *_given: Any, **_named: Any) -> Any:
        raise AssertionError("it is the program's code")

    parameters = named_modules = state_dict = __getattr__ = __repr__ = __iter__ = named_parameters  # type: ignore[assignment]


def tiny(*, tie: bool) -> Tiny:
    """One whose methods must not be called."""
    model = Tiny(tie=tie)
    object.__setattr__(model, "__class__", Forbidden)
    return model


def test_a_model_is_shown_by_its_parameters_and_which_are_tied() -> None:
    shown = "Forbidden of 2 parameters: embed.weight [64, 16], lm_head.weight [64, 16]"
    assert keeps.brief(tiny(tie=False)) == shown
    tied = "Forbidden of 1 parameter (lm_head.weight is embed.weight): embed.weight [64, 16]"
    assert keeps.brief(tiny(tie=True)) == tied and keeps.brief([tiny(tie=True)]) == f"[{tied}]"


def test_one_without_parameters() -> None:
    class Reward(nn.Module):
        pass

    assert modules.text(Reward()) == f"{Reward.__qualname__} without parameters"
    assert keeps.brief(nn.ReLU()) is None and modules.text(sum) is None


def test_layers_alike_are_one_with_their_number() -> None:
    model = Tiny(tie=False, layers=3)
    assert modules.text(model) == (
        "Tiny of 8 parameters: embed.weight [64, 16], layers.*.weight [16, 16] x3, layers.*.bias [16] x3, "
        "lm_head.weight [64, 16]"
    )
    assert modules.consists_of(model) == {
        "class": "Tiny",
        "parameters": {
            "embed.weight [64, 16]": 1,
            "layers.*.weight [16, 16]": 3,
            "layers.*.bias [16]": 3,
            "lm_head.weight [64, 16]": 1,
        },
        "tied": {},
    }


def test_in_the_order_and_number_of_torch() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)), nn.PReLU())
    model.append(model[0])  # a module that comes twice
    known = modules._parameters(model)
    assert known.named == [(name, str(list(each.shape))) for name, each in model.named_parameters()]
    assert known.tied == {"3.weight": "0.weight", "3.bias": "0.bias"}
    assert str(modules.text(nn.Sequential(*(nn.PReLU(number) for number in range(1, 7))))) == (
        "Sequential of 6 parameters: 0.weight [1], 1.weight [2], ..., 5.weight [6]"
    )


def test_one_that_has_itself_inside_comes_to_an_end() -> None:
    model = nn.Linear(1, 1)
    model._modules["self"] = model
    known = modules._parameters(model)
    assert [name for name, _ in known.named] == ["weight", "bias"] and not known.more


def test_without_numbers_on_a_device_and_before_the_first_batch() -> None:
    assert modules.text(nn.Linear(2, 3, device="meta")) == "Linear of 2 parameters: weight [3, 2] meta, bias [3] meta"
    assert modules.text(nn.LazyLinear(3)) == "LazyLinear of 2 parameters: weight (no shape yet), bias (no shape yet)"


class Guarded(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_given: Any, **_named: Any) -> Any:
        raise AssertionError("it is the program's code")

    @classmethod
    def __torch_dispatch__(cls, *_given: Any, **_named: Any) -> Any:
        raise AssertionError("it is the program's code")


def test_a_tensor_of_the_programs_own_make_is_not_asked() -> None:
    model = nn.Linear(2, 3)
    model._parameters["weight"] = torch.Tensor._make_subclass(Guarded, torch.zeros(3, 2))
    assert modules.text(model) == "Linear of 2 parameters: weight (Guarded), bias [3]"


def test_what_torch_has_wrapped_is_seen_through() -> None:
    compiled: Any = torch.compile(Tiny(tie=True), backend="eager")
    assert str(modules.text(compiled)).startswith("OptimizedModule(Tiny) of 1 parameter (lm_head.weight is ")
    assert modules.consists_of(compiled) == modules.consists_of(Tiny(tie=True))


def test_a_huge_one_is_not_counted_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MOST", 3)
    model = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(9))
    assert modules.text(model) == "ParameterList of more than 3 parameters: * [1] x3"
    assert modules.consists_of(model) is None and modules.consists_of(sum) is None


def test_the_models_among_an_actors_attributes() -> None:
    class Actor:
        def __init__(self) -> None:
            self.model, self.step = nn.Linear(1, 2), 3

    assert modules.of_attributes(Actor(), 4) == {
        "model": {"class": "Linear", "parameters": {"weight [2, 1]": 1, "bias [2]": 1}, "tied": {}}
    }


def test_what_fsdp_makes_of_a_module() -> None:
    class FSDPModule:
        pass

    FSDPModule.__qualname__ = "FSDPModule"
    sharded, flat = nn.Linear(1, 2), nn.Linear(1, 2)
    sharded.__class__ = type("FSDPLinear", (FSDPModule, nn.Linear), {})
    assert str(modules.text(sharded)).startswith("Linear of 2 parameters: ")
    flat._parameters = {"_flat_param": nn.Parameter(torch.zeros(4))}
    assert modules.text(flat) == "Linear of 1 parameter: _flat_param [4]" and modules.consists_of(flat) is None
