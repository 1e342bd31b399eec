"""Optimizers that step and change nothing, since no gradient reaches what they have; and usual programs, unnamed."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import training
from tests.debug.optimizers import said, watched

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.optim import optimizer as torch_optimizer  # noqa: E402

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.collect()  # modules of other tests
    with watched(monkeypatch, *training.KINDS):
        yield


def line() -> int:
    return sys._getframe(1).f_lineno


ROWS = torch.ones(4, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, rows: Any) -> Any:
        return self.head(self.body(rows).relu() + rows)


def train(model: Callable[[Any], Any], optimizer: Any, steps: int = 5) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(ROWS).square().mean().backward()
        optimizer.step()


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


def both_steps(body: Any, head: Any, model: Any, steps: int) -> None:
    for _ in range(steps):
        head.zero_grad()
        model.head(model.body(ROWS).detach()).square().mean().backward()
        head.step()
        body.step()


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


def accumulate() -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        for _ in range(4):
            (model(ROWS).square().mean() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


def freeze_a_part() -> None:
    model = Net()
    model.body.requires_grad_(False)
    train(model, torch.optim.AdamW(model.parameters()), 120)


def adapt() -> None:
    model, adapter = Net().requires_grad_(False), nn.Linear(3, 3)
    train(lambda rows: model(adapter(rows)), torch.optim.AdamW(adapter.parameters()))


def play_against_each_other() -> None:
    maker, judge = nn.Linear(3, 3), nn.Linear(3, 1)
    first, second = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    for _ in range(5):
        second.zero_grad()
        judge(maker(ROWS).detach()).mean().backward()
        second.step()
        first.zero_grad()
        (-judge(maker(ROWS)).mean()).backward()
        first.step()


def share_a_trunk() -> None:
    trunk, actor, critic = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 1)
    first = torch.optim.Adam([*trunk.parameters(), *actor.parameters()])
    second = torch.optim.Adam([*trunk.parameters(), *critic.parameters()])
    for _ in range(5):
        inner = trunk(ROWS)
        first.zero_grad()
        second.zero_grad()
        (actor(inner).square().mean() + critic(inner).mean()).backward()
        first.step()
        second.step()


def follow_by_a_target() -> None:
    model = Net()
    target, reference = copy.deepcopy(model), copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = target(ROWS) + reference(ROWS)
        (model(ROWS) - wanted).square().mean().backward()
        optimizer.step()
        for mine, its in zip(target.parameters(), model.parameters(), strict=True):
            mine.data.lerp_(its.data, 0.01)


def several_epochs_of_one_batch() -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        train(model, optimizer, 4)


def plot_a_schedule() -> None:
    """After another model was trained, whose optimizer is gone."""
    trained = Net()
    train(trained, torch.optim.Adam(trained.parameters()))
    optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for _ in range(200):
        optimizer.step()
        schedule.step()


def step_by_a_closure() -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(ROWS).square().mean()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)


def step_during_the_backward_pass() -> None:
    model = Net()
    optimizers = {each: torch.optim.SGD([each], lr=0.01) for each in model.parameters()}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step)
    for _ in range(5):
        model(ROWS).square().mean().backward()


def keep_a_master_copy() -> None:
    model = Net().to(torch.bfloat16)
    masters = [each.detach().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.Adam(masters)
    for _ in range(5):
        model.zero_grad()
        model(ROWS.bfloat16()).square().mean().backward()
        for master, each in zip(masters, model.parameters(), strict=True):
            assert each.grad is not None
            master.grad = each.grad.float()
        optimizer.step()
        for master, each in zip(masters, model.parameters(), strict=True):
            each.data.copy_(master)


def update_every_other_time() -> None:
    actor, critic = Net(), Net()
    first, second = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
    for step in range(8):
        second.zero_grad()
        critic(ROWS).square().mean().backward()
        second.step()
        if step % 4 == 3:
            train(actor, first, 1)


def leave_out_what_no_loss_needs() -> None:
    """A module with an unused part; a body that is not trained, though it isn't frozen."""
    model = Net()
    model.unused = nn.Linear(2, 2)
    train(model, torch.optim.Adam([*model.head.parameters(), *model.unused.parameters()]), 30)


def begin_with_the_head() -> None:
    """A body that is not trained for some hundred steps, by two ways."""
    model = Net()
    groups = torch.optim.SGD([{"params": each.parameters()} for each in (model.body, model.head)], lr=0.01)
    apart = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model.body, model.head)]
    for optimizers in ([groups], apart):
        for step in range(130):
            with torch.set_grad_enabled(step >= 120):
                inner = model.body(ROWS)
            for each in optimizers:
                each.zero_grad()
            model.head(inner).square().mean().backward()
            for each in optimizers:
                each.step()
    training.tell_ends()


def begin_with_the_head_of_a_copy() -> None:
    """Of a model whose own optimizer is gone, while its last gradients are there."""
    trained = Net()
    train(trained, torch.optim.Adam(trained.parameters()))
    model = copy.deepcopy(trained)
    body, head = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (model.body, model.head))
    both_steps(body, head, model, 20)
    train(model, body)


def train_in_two_phases() -> None:
    model = Net()
    body, head = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (model.body, model.head))
    for phase in range(2):
        model.body.requires_grad_(phase == 1)
        for _ in range(120):
            body.zero_grad()
            head.zero_grad()
            model(ROWS).square().mean().backward()
            body.step()
            head.step()


class Own(torch.optim.Optimizer):
    """Takes no gradients."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each in self.param_groups[0]["params"]:
            each.add_(0.001)


def step_by_an_own_optimizer() -> None:
    model, other = Net(), Net()
    optimizer = Own(model.parameters())
    for _ in range(5):
        other(ROWS).sum().backward()
        optimizer.step()


USUAL = [
    accumulate, freeze_a_part, adapt, play_against_each_other, share_a_trunk, follow_by_a_target,
    several_epochs_of_one_batch, plot_a_schedule, step_by_a_closure, step_during_the_backward_pass, keep_a_master_copy,
    update_every_other_time, leave_out_what_no_loss_needs, train_in_two_phases, step_by_an_own_optimizer,
]  # fmt: skip


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
