"""Weights that are loaded in vain, and generators that are copied: nothing is raised, and the numbers are wrong."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import numpy
import pytest

from devkit.debug.inworker import copied_random, line_warnings, unloaded

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, get_worker_info  # noqa: E402
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter  # noqa: E402


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Module, "load_state_dict", torch.nn.Module.load_state_dict)
        patch.setattr(_MultiProcessingDataLoaderIter, "__init__", _MultiProcessingDataLoaderIter.__init__)
        patch.setattr(line_warnings, "_told", set())
        for module in (unloaded, copied_random):
            module.watch()
        yield


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if ": DevkitWarning: " in line]


def test_names_that_do_not_fit_are_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    weights = {f"_orig_mod.{name}": each for name, each in model.state_dict().items()}
    for _ in range(2):
        model.load_state_dict(weights, strict=False)
    [line] = said(capfd)
    assert line.startswith(f"{__file__}:") and "DevkitWarning: load_state_dict(strict=False) has taken" in line
    assert line.endswith("none of the 2 tensors: it is given '_orig_mod.0.weight', ..., and has '0.weight', ...")


def test_a_part_that_is_meant_and_copies_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    model.load_state_dict({"weight": torch.zeros(2, 2), "head": torch.zeros(1)}, strict=False)
    model.load_state_dict({name: each.clone() for name, each in model.state_dict().items()})
    model.load_state_dict(other.state_dict())
    torch.nn.ReLU().load_state_dict({}, strict=False)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})
    assert said(capfd) == []


def test_tensors_that_become_the_modules_own_have_changed_it(capfd: pytest.CaptureFixture[str]) -> None:
    """As of a model that was made on meta, and takes the memory of what it is given."""
    weights = torch.nn.Linear(2, 2).state_dict()
    with torch.device("meta"):
        model, empty = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).state_dict()
    model.load_state_dict(weights, assign=True)
    torch.nn.Linear(2, 2, device="meta").load_state_dict(empty, assign=True)
    assert said(capfd) == [] and torch.equal(model.weight, weights["weight"])


def test_a_best_state_that_is_the_live_one(capfd: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(2, 2)
    best = model.state_dict()
    model.load_state_dict(best)
    [line] = said(capfd)
    assert "was given the module's own tensors, which changes nothing: state_dict() makes no copy" in line


def test_its_own_state_with_a_few_tensors_of_others_is_loaded(capfd: pytest.CaptureFixture[str]) -> None:
    """As of a pretrained body below a new head: `own = model.state_dict(); own.update(pretrained)`."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), *(torch.nn.Linear(2, 2) for _ in range(6)))
    for changed in ({"6.weight": torch.ones(2, 2)}, {"0.running_mean": torch.ones(2)}):
        model.load_state_dict({**model.state_dict(), **changed})
    assert said(capfd) == []
    model[5].weight = model[6].weight
    model.load_state_dict(model.state_dict())
    assert len(said(capfd)) == 1, "tied weights are its own, too"


class Rows(Dataset[float]):
    def __init__(self, generator: object) -> None:
        self.rng = generator

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        assert get_worker_info() is not None
        return self.rng.random()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("generator", [numpy.random.default_rng(3), random.Random(3)], ids=["numpy", "python"])
def test_workers_that_draw_the_same(generator: object, capfd: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Rows(generator), num_workers=2, multiprocessing_context="fork")
    first, second, *_ = [float(each) for each in loader]
    [line] = said(capfd)
    assert first == second, "what is said must be so"
    assert line.startswith(f"{__file__}:") and "DevkitWarning: each of the 2 workers of the DataLoader" in line
    assert f"the same copy of its dataset's rng ({type(generator).__name__}), and draws the same from it" in line


def test_one_worker_or_a_seed_of_each_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    rows = Rows(random.Random(3))
    list(DataLoader(rows, num_workers=1, multiprocessing_context="fork"))
    list(DataLoader(rows, num_workers=2, multiprocessing_context="fork", worker_init_fn=seed))
    assert said(capfd) == [] and "numpy" in sys.modules


def seed(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.rng.seed(number)  # type: ignore[attr-defined]
