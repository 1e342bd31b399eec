"""Loaders that give no batch, since there are fewer rows than a batch has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devkit.debug.inworker import line_warnings, no_batches

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402
from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: E402


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(_BaseDataLoaderIter, "__next__", _BaseDataLoaderIter.__next__)
        patch.setattr(line_warnings, "_told", set())
        no_batches.watch()
        yield


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition("DevkitWarning: ")[2] for line in capfd.readouterr().err.splitlines() if ".py:" in line]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize("workers", [0, 1])
def test_fewer_rows_than_a_batch_has(capfd: pytest.CaptureFixture[str], workers: int) -> None:
    options = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    loader = DataLoader(range(24), batch_size=32, drop_last=True, **options)  # type: ignore[arg-type, var-annotated]
    for _ in range(2):
        assert list(loader) == []
    [line] = said(capfd)
    assert line == (
        "the DataLoader has given no batch: it has 24 rows, a batch has 32, and drop_last=True leaves out what is less"
    )


def test_no_rows_at_all(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(DataLoader([])) == []  # type: ignore[arg-type, var-annotated]
    assert said(capfd) == ["the DataLoader has given no batch: its dataset has no rows"]


def test_usual_ones_and_those_that_may_be_at_their_end_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    rows = range(64)
    assert len(list(DataLoader(rows, batch_size=32, drop_last=True))) == 2  # type: ignore[arg-type, var-annotated]
    assert len(list(DataLoader(rows, batch_size=65))) == 1  # type: ignore[arg-type, var-annotated]
    assert list(DataLoader(rows, batch_sampler=[])) == []  # type: ignore[arg-type, var-annotated]
    assert list(DataLoader(rows, sampler=[])) == []  # type: ignore[arg-type, var-annotated]
    assert list(DataLoader(Stream(), batch_size=4, drop_last=True)) == []
    assert said(capfd) == []
