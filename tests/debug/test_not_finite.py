"""Parameters that become NaN or infinite by a step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import not_finite, training
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


def model() -> Any:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def train(net: Any, optimizer: Any, scales: list[float]) -> None:
    for scale in scales:
        optimizer.zero_grad()
        (net(ROWS).square().mean() * scale).backward()
        optimizer.step()


def test_the_step_after_which_they_are_nan_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(not_finite, "SHARE", float("inf"))
    net = model()
    optimizer, made = torch.optim.AdamW(net.parameters()), line()
    train(net, optimizer, [1.0] * 10 + [float("nan")] * 3)
    [told] = said(capfd)
    assert told == (
        f"after optimizer.step() number 11, 4 of the 4 parameters of the optimizer that was made at {HERE}:{made} have "
        "values that are NaN; after step 8 all were finite; the gradients of 4 of them are not finite either"
    )


def test_between_two_looks_it_is_said_when_they_were_finite(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(not_finite, "SHARE", float("inf"))
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    train(net, optimizer, [1.0] * 70)
    for each in net.parameters():
        each.grad.fill_(float("nan"))
    for _ in range(40):
        optimizer.step()
    [told] = said(capfd)
    assert told.startswith("after optimizer.step() number 100, 4 of the 4") and "NaN; after step 64 all were" in told


def test_of_some_that_are_not_looked_at_or_were_infinite_before(capfd: pytest.CaptureFixture[str]) -> None:
    weight, mask = nn.Parameter(torch.ones(2)), nn.Parameter(torch.tensor([0.0, float("-inf")]))
    pair, rows = nn.Parameter(torch.ones(2, dtype=torch.complex64)), nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD([weight, rows.weight, mask, pair], lr=0.1)
    ((weight * float("inf")).sum() + (rows(torch.tensor([1])) * float("inf")).sum()).backward()
    optimizer.step()
    [told] = said(capfd)
    assert "number 1, at least 2 of the 4 parameters" in told
    assert told.endswith("before it these were finite; the gradients of at least 1 of them are not finite either")


def test_gradients_that_are_not_looked_at_are_not_called_finite(capfd: pytest.CaptureFixture[str]) -> None:
    weight, rows = nn.Parameter(torch.ones(2)), nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD([weight, rows.weight], lr=1e38)
    ((weight * 1e3).sum() + (rows(torch.tensor([1])) * float("inf")).sum()).backward()
    optimizer.step()
    [told] = said(capfd)
    assert told.endswith("have values that are infinite; before it all were finite")


def test_a_rate_that_is_too_large(capfd: pytest.CaptureFixture[str]) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1e38)
    for _ in range(3):
        optimizer.zero_grad()
        (weight.sum() * 1e3).backward()
        optimizer.step()
    [told] = said(capfd)
    assert "number 1, 1 of the 1 parameters" in told
    assert told.endswith("have values that are infinite; before it all were finite; their gradients are finite")


def test_what_is_left_out_or_was_so_before_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """As by `GradScaler`, by a program itself, and of a mask."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for scale in [1.0, float("inf"), 1.0, float("nan"), 1.0]:
        optimizer.zero_grad()
        scaler.scale(net(ROWS).square().mean() * scale).backward()
        scaler.step(optimizer)
        scaler.update()
    for scale in [1.0, float("nan"), 1.0]:
        optimizer.zero_grad()
        (net(ROWS).square().mean() * scale).backward()
        if torch.isfinite(nn.utils.clip_grad_norm_(net.parameters(), 1.0)):
            optimizer.step()
    net.mask = nn.Parameter(torch.tensor([0.0, float("-inf")]))
    train(net, torch.optim.SGD(net.parameters(), lr=0.01), [1.0] * 5)
    assert said(capfd) == []


def test_large_sums_tensors_elsewhere_and_other_kinds_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    large = nn.Parameter(torch.full((4,), 6e4, dtype=torch.float16))
    pair = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    empty = nn.Parameter(torch.ones(2, device="meta"))
    optimizer = torch.optim.SGD([large, pair, empty], lr=0.0)
    for _ in range(3):
        for each in (large, pair, empty):
            each.grad = torch.zeros_like(each)
        optimizer.step()
    assert said(capfd) == [] and not torch.isfinite(large.sum())


def test_looks_leave_the_program_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            self.seen.append(str(function))
            return function(*arguments, **(options or {}))

    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
    weight.grad = torch.ones(2)
    state = torch.get_rng_state()
    with Operations() as operations:
        optimizer.step()
    done = [each for each in operations.seen if each.startswith("aten.")]
    assert done == ["aten.add_.Tensor"] and torch.equal(state, torch.get_rng_state())
    assert said(capfd) == []
