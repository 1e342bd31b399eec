"""Gradients that are never cleared, and the many ways of clearing them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import training
from devkit.debug.inworker.adding_up import STEPS
from tests.debug.optimizers import said, watched

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

HERE = Path(__file__).name
ROWS = torch.ones(4, 3)


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with watched(monkeypatch, *training.KINDS):
        yield


def line() -> int:
    return sys._getframe(1).f_lineno


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, rows: Any) -> Any:
        return self.head(self.body(rows).relu() + rows)

    def loss(self) -> Any:
        return self(ROWS).square().mean()


@pytest.mark.parametrize("clips", [False, True], ids=["plain", "clipped"])
def test_gradients_that_are_never_cleared(clips: bool, capfd: pytest.CaptureFixture[str]) -> None:
    model = Net()
    optimizer, made = torch.optim.SGD(model.parameters(), lr=0.01), line()
    for step in range(8):
        model.loss().backward()
        at = line() - 1
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        assert not capfd.readouterr().err if step < STEPS - 1 else True
        if step == STEPS - 1:
            [told] = said(capfd)
            assert told == (
                f"the gradients of the optimizer that was made at {HERE}:{made} add up: they were never cleared "
                f"between its last {STEPS} steps, and backward() at {HERE}:{at} has added to those of all of them "
                "(is zero_grad() missing?)"
            )


def test_a_part_of_the_optimizer_that_is_never_cleared(capfd: pytest.CaptureFixture[str]) -> None:
    """Not said: nobody knows whether it is meant."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        model.body.zero_grad()
        model.loss().backward()
        optimizer.step()
    assert said(capfd) == []


class Idle(torch.nn.Module):
    """With a parameter whose gradient is there, and 0."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.idle = torch.nn.Linear(2, 1), torch.nn.Parameter(torch.ones(3))

    def loss(self) -> torch.Tensor:
        return self.head(torch.ones(4, 2)).pow(2).sum() + (self.idle * 0).sum()


@pytest.mark.parametrize(("clear", "count"), [("drops", 0), ("zeroes", 0), ("leaves", 1)])
def test_what_clears_one_that_is_no_sample_is_seen(capfd: pytest.CaptureFixture[str], clear: str, count: int) -> None:
    """There may be a thousand parameters, and the values of a few are looked at."""
    model = Idle()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        if clear == "drops":
            model.idle.grad = None
        elif clear == "zeroes" and model.idle.grad is not None:
            model.idle.grad.zero_()
        model.loss().backward()
        optimizer.step()
    assert len(said(capfd)) == count


def loop(clear: Callable[[Any, Any], object], first: bool = True, passes: int = 1) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        if first:
            clear(model, optimizer)
        for _ in range(passes):
            model.loss().backward()
        optimizer.step()
        if not first:
            clear(model, optimizer)


def each(act: Callable[[Any], object]) -> Callable[[Any, Any], object]:
    return lambda model, _: [act(one) for one in model.parameters() if one.grad is not None]


CLEARING = {
    "zero_grad": lambda _, optimizer: optimizer.zero_grad(),
    "zeros": lambda _, optimizer: optimizer.zero_grad(set_to_none=False),
    "by the module": lambda model, _: model.zero_grad(),
    "none": each(lambda one: setattr(one, "grad", None)),
    "in place": each(lambda one: one.grad.zero_()),
    "data": each(lambda one: one.grad.data.zero_()),
    "detached": each(lambda one: one.grad.detach_().zero_()),
    "numpy": each(lambda one: one.grad.numpy().fill(0)),
    "decay": each(lambda one: one.grad.mul_(0.9)),
}


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("name", CLEARING)
def test_each_way_of_clearing_them_is_seen(
    name: str, first: bool, passes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    loop(CLEARING[name], first, passes)
    assert said(capfd) == []


def play_against_each_other() -> None:
    maker, judge = nn.Linear(3, 3), nn.Linear(3, 1)
    first, second = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    for _ in range(8):
        second.zero_grad()
        judge(maker(ROWS)).mean().backward()  # into both
        second.step()
        first.zero_grad()
        (-judge(maker(ROWS)).mean()).backward()
        first.step()


def by_autograd_beside_a_backward_pass() -> None:
    actor, critic = Net(), Net()
    first, second = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
    for step in range(8):
        second.zero_grad()
        critic(actor(ROWS)[:, :1].expand(4, 3)).mean().backward()  # into both
        second.step()
        gradients = torch.autograd.grad(actor.loss(), list(actor.parameters()))
        for parameter, gradient in zip(actor.parameters(), gradients, strict=True):
            if step % 2 and parameter.grad is not None:
                parameter.grad.data.copy_(gradient)
            else:
                parameter.grad = gradient
        first.step()


def average_over_workers() -> None:
    """The gradients of a step are those that others send; its own are read and forgotten."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        model.loss().backward()
        sent = [one.grad.clone() for one in model.parameters() if one.grad is not None]
        for parameter, gradient in zip(model.parameters(), sent, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient + torch.randn_like(gradient))
        optimizer.step()


def by_a_closure() -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model.loss()
        loss.backward()
        return loss

    for _ in range(6):
        optimizer.step(closure)


def learn_from_copies() -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        inner = copy.deepcopy(model)
        inner.zero_grad()
        inner.loss().backward()
        for mine, its in zip(model.parameters(), inner.parameters(), strict=True):
            mine.grad = its.grad
        optimizer.step()


def all_in_one_batch_of_zeros() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        (model.loss() * 0).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "program",
    [
        play_against_each_other,
        by_autograd_beside_a_backward_pass,
        average_over_workers,
        by_a_closure,
        learn_from_copies,
        all_in_one_batch_of_zeros,
    ],
    ids=lambda each: each.__name__,
)
def test_usual_programs_say_nothing(program: Callable[[], None], capfd: pytest.CaptureFixture[str]) -> None:
    program()
    assert said(capfd) == []


def test_nothing_is_changed() -> None:
    """The gradients are the same to the bit, and nothing of them is kept for long."""
    sums = []
    for kinds in ((), training.KINDS):
        torch.manual_seed(0)
        with pytest.MonkeyPatch.context() as patch, watched(patch, *kinds):
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(30):
                model.loss().backward()
                optimizer.step()
            sums.append([one.detach().clone() for one in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*sums, strict=True))
