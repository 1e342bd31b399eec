"""Loops that train on epochs of one order, and the many that don't."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import sampler_epochs, training
from tests.debug.optimizers import said, watched

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402
from torch.utils.data import dataloader as torch_dataloader  # noqa: E402

HERE = Path(__file__).name
TOLD = "set_epoch was not called on its DistributedSampler: this epoch had the same order as the one before"


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    iterator = torch_dataloader._BaseDataLoaderIter
    monkeypatch.setattr(DistributedSampler, "set_epoch", DistributedSampler.set_epoch)
    monkeypatch.setattr(iterator, "__next__", iterator.__next__)
    with watched(monkeypatch, *training.KINDS):
        sampler_epochs.watch()
        yield


ROWS = [float(each) for each in range(32)]


def loader(kind: Any = DistributedSampler, **options: Any) -> DataLoader[float]:
    sampler = kind(ROWS, num_replicas=2, rank=0, **options)
    return DataLoader(ROWS, batch_size=4, sampler=sampler)  # type: ignore[arg-type]


def learn(batch: Any) -> None:
    weight = torch.ones(1, requires_grad=True)
    (weight * batch).sum().backward()


def train(rows: Any) -> list[Any]:
    seen = []
    for batch in rows:
        learn(batch)
        seen += batch.tolist()
    return seen


def test_the_second_epoch_that_is_as_the_first(capfd: pytest.CaptureFixture[str]) -> None:
    rows = loader()
    epochs = []
    for _ in range(3):
        epochs.append([])
        for batch in rows:
            learn(batch)
            epochs[-1] += batch.tolist()
    written = capfd.readouterr().err
    assert epochs[0] == epochs[1] == epochs[2] != sorted(epochs[0]), "what is said is so"
    at = sys._getframe().f_lineno - 5
    assert written == f"{__file__}:{at}: DevkitWarning: {TOLD}\n"


def test_also_with_workers_that_live_on(capfd: pytest.CaptureFixture[str]) -> None:
    sampler = DistributedSampler(ROWS, num_replicas=2, rank=1)  # type: ignore[arg-type]
    options: Any = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True}
    rows = DataLoader(ROWS, batch_size=4, sampler=sampler, **options)  # type: ignore[arg-type]
    epochs = [train(rows) for _ in range(2)]
    assert epochs[0] == epochs[1] and said(capfd) == [TOLD]


def set_each_epoch() -> None:
    rows = loader()
    for epoch in range(3):
        rows.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        train(rows)
        train(rows)


def set_at_the_end() -> None:
    rows = loader()
    for epoch in range(3):
        train(rows)
        rows.sampler.set_epoch(epoch + 1)  # type: ignore[attr-defined]


def set_by_its_attribute() -> None:
    rows = loader()
    for epoch in range(3):
        rows.sampler.epoch = epoch  # type: ignore[attr-defined]
        train(rows)


def in_order() -> None:
    rows = loader(shuffle=False)
    for _ in range(3):
        train(rows)


def evaluate_with_the_default() -> None:
    """A loader of which the order does not matter."""
    training_rows, rows = loader(), loader()
    for epoch in range(3):
        training_rows.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        train(training_rows)
        for batch in rows:
            batch.sum()


def some_at_a_time() -> None:
    """The last of these asks once more for what there is none of."""
    rows = loader()
    for epoch in range(3):
        rows.sampler.epoch = epoch  # type: ignore[attr-defined]
        batches = iter(rows)
        while some := list(islice(batches, 3)):
            train(some)


def look_at_the_first_batch() -> None:
    rows = loader()
    for _ in range(3):
        next(iter(rows))
    train(rows)


def go_through_it_for_two_ends() -> None:
    rows = loader()
    for batch in rows:
        learn(batch)
    for batch in rows:
        learn(batch)


def stop_early() -> None:
    rows = loader()
    for _ in range(3):
        for batch in rows:
            learn(batch)
            break


def take_all_at_once() -> None:
    sampler = DistributedSampler(ROWS, num_replicas=2, rank=0)  # type: ignore[arg-type]
    for _ in range(3):
        train(DataLoader(ROWS, batch_size=100, sampler=sampler))  # type: ignore[arg-type]


def another_sampler_each_time() -> None:
    for seed in range(3):
        train(loader(seed=seed))


class Own(DistributedSampler[float]):
    def __iter__(self) -> Iterator[float]:
        return iter(torch.randperm(16).tolist())


def shuffle_by_its_own() -> None:
    rows = loader(Own)
    for _ in range(3):
        train(rows)


def without_a_sampler() -> None:
    rows = DataLoader(ROWS, batch_size=4, shuffle=True)  # type: ignore[arg-type]
    for _ in range(3):
        train(rows)


USUAL = [
    set_each_epoch,
    set_at_the_end,
    set_by_its_attribute,
    some_at_a_time,
    in_order,
    evaluate_with_the_default,
    look_at_the_first_batch,
    go_through_it_for_two_ends,
    stop_early,
    take_all_at_once,
    another_sampler_each_time,
    shuffle_by_its_own,
    without_a_sampler,
]


@pytest.mark.parametrize("program", USUAL, ids=lambda each: each.__name__)
def test_usual_programs_say_nothing(program: Callable[[], None], capfd: pytest.CaptureFixture[str]) -> None:
    program()
    assert said(capfd) == []


def test_an_error_of_the_dataset_comes_through() -> None:
    class Broken:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> float:
            raise KeyError(index)

    with pytest.raises(KeyError):
        next(iter(DataLoader(Broken())))  # type: ignore[arg-type]
