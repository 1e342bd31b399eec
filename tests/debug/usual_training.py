"""Training programs of usual style, of which nothing is to be said; and a small model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from devkit.debug.inworker import training

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

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


def both_steps(body: Any, head: Any, model: Any, steps: int) -> None:
    for _ in range(steps):
        head.zero_grad()
        model.head(model.body(ROWS).detach()).square().mean().backward()
        head.step()
        body.step()


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


def make_a_group_of_each_parameter() -> None:
    model = Net()
    model.unused = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": [each]} for each in model.parameters()], lr=0.01)
    train(model, optimizer, 40)


def make_a_group_of_a_small_part() -> None:
    model = Net()
    model.unused, model.large = nn.Linear(2, 2), nn.Linear(3, 100)
    groups = [
        [*model.body.parameters(), *model.head.parameters(), *model.large.parameters()],
        model.unused.parameters(),
    ]
    optimizer = torch.optim.SGD([{"params": each} for each in groups], lr=0.01)
    train(lambda rows: model(rows).mean() + model.large(rows).mean(), optimizer, 40)


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
    begin_with_the_head, begin_with_the_head_of_a_copy, make_a_group_of_each_parameter, make_a_group_of_a_small_part,
]  # fmt: skip
