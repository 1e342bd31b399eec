"""Steps with a learning rate of 0, by mistake; and schedules that are meant."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import no_rate, training
from tests.debug.optimizers import said, watched

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

HERE = Path(__file__).name
ROWS = torch.ones(4, 3)


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(no_rate, "_stepping", type(no_rate._stepping)())
    with watched(monkeypatch, *training.KINDS):
        yield


def line() -> int:
    return sys._getframe(1).f_lineno


def train(optimizer: Any, steps: int, schedule: Any = None, every: int = 1) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        sum(each.square().mean() for group in optimizer.param_groups for each in group["params"]).backward()
        optimizer.step()
        if schedule is not None and step % every == every - 1:
            schedule.step()


def test_no_rate_from_the_first_step_on(capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(3, 3)
    before = [each.detach().clone() for each in model.parameters()]
    optimizer, made = torch.optim.AdamW(model.parameters(), lr=3 // 10), line()
    train(optimizer, 9)
    assert said(capfd) == []
    train(optimizer, 2)
    assert said(capfd) == [
        f"the learning rate of the optimizer that was made at {HERE}:{made} was 0, which changes nothing, in each of "
        "its 10 steps so far"
    ]
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_a_warm_up_that_is_never_under_way(capfd: pytest.CaptureFixture[str]) -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
    train(optimizer, 31)
    [told] = said(capfd)
    assert told.endswith("in each of its 30 steps so far")


def test_a_schedule_that_has_run_out(capfd: pytest.CaptureFixture[str]) -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    train(optimizer, 200, lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 40)))
    [told] = said(capfd)
    assert told.endswith("was 0, which changes nothing, in 40 steps since step 41: has its scheduler run out?")


def warm_up() -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    train(optimizer, 60, lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10)))


def warm_up_by_epochs() -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    train(optimizer, 100, lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, epoch / 3)), every=20)


def end_with_nothing() -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    train(optimizer, 110, lr_scheduler.CosineAnnealingLR(optimizer, 100))


def go_around() -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    train(optimizer, 300, lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 20))


def one_group_of_two() -> None:
    groups = [{"params": nn.Linear(3, 3).parameters(), "lr": rate} for rate in (0.0, 0.1)]
    train(torch.optim.SGD(groups), 60)


def take_turns() -> None:
    first, second = (torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1) for _ in range(2))
    schedules = [
        lr_scheduler.LambdaLR(first, lambda step: float(step % 100 < 50)),
        lr_scheduler.LambdaLR(second, lambda step: float(step % 100 >= 50)),
    ]
    for _ in range(300):
        train(first, 1, schedules[0])
        train(second, 1, schedules[1])


def a_rate_that_is_a_tensor() -> None:
    train(torch.optim.Adam(nn.Linear(3, 3).parameters(), lr=torch.tensor(0.01)), 20)


def steps_of_the_signs() -> None:
    train(torch.optim.Rprop(nn.Linear(3, 3).parameters(), lr=0), 40)


def look_at_a_schedule() -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.0)
    for _ in range(100):
        optimizer.step()


@pytest.mark.parametrize(
    "program",
    [
        warm_up,
        warm_up_by_epochs,
        end_with_nothing,
        go_around,
        one_group_of_two,
        take_turns,
        a_rate_that_is_a_tensor,
        steps_of_the_signs,
        look_at_a_schedule,
    ],
    ids=lambda each: each.__name__,
)
def test_usual_schedules_say_nothing(program: Callable[[], None], capfd: pytest.CaptureFixture[str]) -> None:
    program()
    assert said(capfd) == []
