"""Optimizers that step and change nothing, since no gradient reaches what they have; and usual programs, unnamed."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import finding, optimizer_steps, training
from devkit.debug.inworker.finding import sees_all
from tests.debug.optimizers import said, watched
from tests.debug.usual_training import ROWS, USUAL, Net, Own, both_steps, train

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.optim import optimizer as torch_optimizer  # noqa: E402

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def watch(new_objects: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with watched(monkeypatch, *training.KINDS):
        yield


def line() -> int:
    return sys._getframe(1).f_lineno


def fact(optimizer_line: int, parameters: int = 4, steps: int = 3) -> str:
    return (
        f"optimizer.step() has changed nothing in {steps} steps: none of the {parameters} parameters of the optimizer "
        f"that was made at {HERE}:{optimizer_line} has a gradient when it steps"
    )


def test_gradients_that_are_cleared_before_the_step(capfd: pytest.CaptureFixture[str]) -> None:
    model = Net()
    optimizer, made = torch.optim.AdamW(model.parameters()), line()
    before = copy.deepcopy(model.state_dict())
    for _ in range(5):
        model(ROWS).square().mean().backward()
        at = line() - 1
        optimizer.zero_grad()
        optimizer.step()
    [told] = said(capfd)
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items()), "what is said is so"
    assert (
        told
        == f"{fact(made)}; backward() at {HERE}:{at} gives them some, which are cleared before it, as by zero_grad()"
    )


def test_the_pass_that_gives_them_is_named_and_not_the_last_one(capfd: pytest.CaptureFixture[str]) -> None:
    model, critic = Net(), Net()
    optimizer, made = torch.optim.AdamW(model.parameters()), line()
    for _ in range(5):
        model(ROWS).square().mean().backward()
        at = line() - 1
        optimizer.zero_grad()
        critic(ROWS).square().mean().backward()
        optimizer.step()
    [told] = said(capfd)
    assert f"{fact(made)}; backward() at {HERE}:{at} gives them some" in told


def test_gradients_that_a_hook_of_the_step_brings(capfd: pytest.CaptureFixture[str]) -> None:
    model, kept = nn.Linear(3, 2, bias=False), []

    def keep(parameter: Any) -> None:
        kept.append(parameter.grad)
        parameter.grad = None

    def bring(*_step: Any) -> None:
        model.weight.grad = kept.pop()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.weight.register_post_accumulate_grad_hook(keep)
    optimizer.register_step_pre_hook(bring)
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    before = model.weight.detach().clone()
    for _ in range(6):
        model(ROWS).square().mean().backward()
        optimizer.step()
    assert said(capfd) == [] and not torch.equal(before, model.weight)


def test_a_backward_pass_goes_on_where_another_thread_begins_to_train(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed() -> Iterator[Any]:
        yield from ()
        raise RuntimeError("Set changed size during iteration")

    monkeypatch.setattr(optimizer_steps.passes, "listeners", type("Listeners", (), {"__iter__": lambda _: changed()})())
    model = Net()
    model(ROWS).sum().backward()
    assert model.head.bias.grad is not None


def test_a_loss_that_was_made_anew(capfd: pytest.CaptureFixture[str]) -> None:
    model = Net()
    optimizer, made = torch.optim.SGD(model.parameters(), lr=0.1), line()
    for _ in range(5):
        loss = torch.tensor(model(ROWS).square().mean().item(), requires_grad=True)
        loss.backward()
        at = line() - 1
        optimizer.step()
    [told] = said(capfd)
    assert told == (
        f"{fact(made)}; backward() at {HERE}:{at} is called on a tensor that no operation has made "
        "(torch.tensor(...) and detach() give such), and reaches no parameter"
    )


def test_an_optimizer_of_another_copy_of_the_model(capfd: pytest.CaptureFixture[str]) -> None:
    model = Net()
    optimizer, made = torch.optim.Adam(model.parameters()), line()
    other = copy.deepcopy(model)
    train(other, optimizer)
    assert said(capfd) == [
        f"{fact(made)}; body.weight, body.bias and 2 more of Net have the same shapes, and gradients, "
        "and are in no optimizer"
    ]


def test_an_optimizer_of_a_model_that_is_gone(capfd: pytest.CaptureFixture[str]) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    model = copy.deepcopy(model)
    train(model, optimizer)
    [told] = said(capfd)
    assert told.endswith("have the same shapes, and gradients, and are in no optimizer, and its own are in no module")


def test_a_head_that_was_replaced_after_the_optimizer_was_made(capfd: pytest.CaptureFixture[str]) -> None:
    model = Net()
    optimizer, made = torch.optim.Adam(model.parameters()), line()
    model.head = nn.Linear(3, 7)
    train(model, optimizer)
    assert said(capfd) == [
        f"2 of the 4 parameters of the optimizer that was made at {HERE}:{made} are in no module, and had no "
        "gradient in 3 steps; head.weight, head.bias of Net have gradients, and are in no optimizer"
    ]


def test_of_what_the_collector_does_not_show_nothing_is_concluded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that has called `gc.freeze`: of its optimizers none is seen."""
    monkeypatch.setattr(finding, "sees_all", sees_all)
    unused, used = Net(), Net()
    optimizers = [torch.optim.Adam(each.parameters()) for each in (unused, used)]
    gc.freeze()
    try:
        model = nn.Sequential(used)
        train(model, optimizers[1])
        for _ in range(5):
            model(ROWS).square().mean().backward()
            optimizers[0].step()
    finally:
        gc.unfreeze()
    assert said(capfd) == []


def test_an_optimizer_of_what_is_frozen(capfd: pytest.CaptureFixture[str]) -> None:
    """As of a model to which adapters are added after its optimizer was made."""
    model = Net()
    optimizer, made = torch.optim.Adam(model.parameters()), line()
    model.requires_grad_(False)
    model.adapter = nn.Linear(3, 3)
    train(lambda rows: model(model.adapter(rows)), optimizer)
    assert said(capfd) == [
        f"{fact(made)}: requires_grad is False for each; adapter.weight, adapter.bias of Net have gradients, "
        "and are in no optimizer"
    ]


def test_a_part_that_runs_without_gradients(capfd: pytest.CaptureFixture[str]) -> None:
    model = Net()
    optimizer, made = torch.optim.Adam(model.body.parameters()), line()

    def detached(rows: Any) -> Any:
        with torch.no_grad():
            inner = model.body(rows)
        return model.head(inner)

    train(detached, optimizer)
    assert said(capfd) == [f"{fact(made, 2)}; head.weight, head.bias of Net have gradients, and are in no optimizer"]


def test_two_optimizers_of_which_one_is_in_vain_to_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    model = Net()
    head = torch.optim.SGD(model.head.parameters(), lr=0.01)
    body, made = torch.optim.SGD(model.body.parameters(), lr=0.01), line()
    both_steps(body, head, model, 31)
    assert said(capfd) == []
    del body
    gc.collect()
    told = (
        f"optimizer.step() has changed nothing of the optimizer that was made at {HERE}:{made} in all of its 31 steps: "
        "none of the 2 parameters had a gradient"
    )
    assert said(capfd) == [told]
    training.tell_ends()
    assert said(capfd) == []


def test_a_group_that_had_no_gradients_to_the_end_of_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    model = Net()
    optimizer = torch.optim.SGD([{"params": each.parameters()} for each in (model.body, model.head)], lr=0.01)
    made = line() - 1
    train(model.body, optimizer, 40)
    assert said(capfd) == []
    training.tell_ends()
    assert said(capfd) == [
        f"optimizer.step() has changed nothing of param_groups[1] of the optimizer that was made at {HERE}:{made} in "
        "all of its 40 steps: none of the 2 parameters had a gradient"
    ]
    del optimizer
    gc.collect()
    assert said(capfd) == []


def test_an_optimizer_of_another_kind_may_do_the_work(capfd: pytest.CaptureFixture[str]) -> None:
    model, other = Net(), Net()
    optimizer, own = torch.optim.SGD(model.parameters(), lr=0.01), Own(other.parameters())
    for _ in range(5):
        other.head(other.body(ROWS).detach()).sum().backward(inputs=[other.head.bias])
        other.head.bias.grad = None
        own.step()
        optimizer.step()
    assert said(capfd) == []


@pytest.mark.parametrize("program", USUAL, ids=lambda each: each.__name__)
def test_usual_programs_say_nothing(program: Callable[[], None], capfd: pytest.CaptureFixture[str]) -> None:
    program()
    gc.collect()
    training.tell_ends()
    assert said(capfd) == []


def test_what_torch_gives_is_as_without(capfd: pytest.CaptureFixture[str]) -> None:
    import inspect

    assert list(inspect.signature(torch_optimizer.Optimizer.__init__).parameters) == ["self", "params", "defaults"]
    assert next(iter(inspect.signature(torch.autograd.backward).parameters)) == "tensors"
    model = Net()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.zeros(1).backward()
    with pytest.raises(ValueError, match="empty parameter list"):
        torch.optim.SGD([], lr=0.1)
    torch.autograd.backward([model(ROWS).sum(), model(ROWS).mean()])
    assert model.head.weight.grad is not None and said(capfd) == []
