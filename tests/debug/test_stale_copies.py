"""Workers of a DataLoader that live on, and keep the dataset as it was when they started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import line_warnings, stale_copies

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset  # noqa: E402
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter  # noqa: E402

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(DataLoader, "__init__", DataLoader.__init__)
        patch.setattr(_MultiProcessingDataLoaderIter, "_reset", _MultiProcessingDataLoaderIter._reset)
        patch.setattr(_MultiProcessingDataLoaderIter, "_next_data", _MultiProcessingDataLoaderIter._next_data)
        patch.setattr(line_warnings, "_told", set())
        stale_copies.watch()
        yield


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition("DevkitWarning: ")[2] for line in capfd.readouterr().err.splitlines() if ".py:" in line]


class Rows(Dataset[int]):
    def __init__(self, level: int = 1) -> None:
        self.level, self.asked, self.unused, self.read = level, 0, 0, 0
        self._options = {"scale": 1, "api_key": "sk-abcdefgh12345678"}

    @property
    def options(self) -> dict[str, Any]:
        return self._options

    def __len__(self) -> int:
        self.asked += 1
        return 4

    def _row(self, index: int) -> int:
        return index * self.level * int(self.options["scale"])

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return self._row(index)


def loader_of(rows: Dataset[int], **options: Any) -> DataLoader[int]:
    return DataLoader(rows, num_workers=1, multiprocessing_context="fork", **options)


def total(loader: DataLoader[int]) -> int:
    return int(sum(int(each) for each in loader))


def test_what_the_workers_do_not_know_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    rows = Rows()
    loader = DataLoader(rows, num_workers=1, multiprocessing_context="fork", persistent_workers=True)
    made = sys._getframe().f_lineno - 1
    assert (total(loader), said(capfd)) == (6, [])
    for level in (2, 3):
        rows.level = level
        assert total(loader) == 6, "they have a copy of their own"
    [line] = said(capfd)
    assert line == (
        f"dataset.level is 2 here, and was 1 when the workers of this DataLoader, which was made at {HERE}:{made}, "
        "started: they live on (persistent_workers), and keep what it was then"
    )


def test_also_in_a_dictionary_and_in_a_dataset_within_a_dataset(capfd: pytest.CaptureFixture[str]) -> None:
    rows = Rows()
    loader = loader_of(Subset(rows, range(4)), persistent_workers=True)
    total(loader)
    rows.options["scale"], rows.options["api_key"] = 3, "sk-another-12345678"
    assert total(loader) == 6
    [line] = said(capfd)
    assert line.startswith("dataset.dataset._options['scale'] is 3 here, and was 1 when")


def test_what_no_worker_takes_or_each_sets_itself_and_fresh_workers_say_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = Rows()
    loader = loader_of(rows, persistent_workers=True)
    total(loader)
    rows.unused = rows.read = 7
    assert len(rows) and total(loader) == 6 and said(capfd) == []
    fresh = loader_of(rows)
    total(fresh)
    rows.level = 2
    assert total(fresh) == 12 and said(capfd) == []


class Stream(IterableDataset[int]):
    def __init__(self) -> None:
        self.position, self.read = 0, 0

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]

    def __iter__(self) -> Iterator[int]:
        while self.position < 6:
            self.position += 1
            self.read += 1
            yield self.position


def test_what_is_set_between_the_start_of_the_workers_and_the_first_batch_reaches_none(
    capfd: pytest.CaptureFixture[str],
) -> None:
    stream = Stream()
    loader = DataLoader(stream, num_workers=1, multiprocessing_context="fork")
    made = sys._getframe().f_lineno - 1
    batches = iter(loader)
    stream.load_state_dict({"position": 4})
    stream.read = 3  # which no method sets but the worker's own
    assert [int(each) for each in batches] == [1, 2, 3, 4, 5, 6], "what is said must be so"
    [line] = said(capfd)
    assert line == (
        f"dataset.position is 4 here, and was 0 when the workers of this DataLoader, which was made at {HERE}:{made}"
        ", started: they have copies, with what it was then"
    )


def test_what_is_set_before_the_workers_start_or_while_they_read_is_not_told(capfd: pytest.CaptureFixture[str]) -> None:
    stream, rows = Stream(), Rows()
    stream.load_state_dict({"position": 4})
    assert total(loader_of(stream)) == 11
    for each in loader_of(rows):
        rows.level = int(each) + 2  # for the next epoch, it may be
    assert said(capfd) == []
