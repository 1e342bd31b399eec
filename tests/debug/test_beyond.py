"""Indices that lead nowhere: which, how many of them, and how many rows, classes or items there are."""

from __future__ import annotations

from typing import Any

import pytest

from devkit.debug.inworker import clues
from devkit.debug.inworker.clues import Failure
from tests.debug.test_snapshot import crash_of

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def told(call: Any, *arguments: Any) -> list[str]:
    error = crash_of(call, *arguments)
    assert type(error) in (IndexError, RuntimeError), error
    found: list[str] = clues.found(Failure(error, "actor")).get("misfits", [])
    return found


# ---- torch's own functions


class Policy:
    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Embedding(10, 2), torch.nn.Linear(2, 5))
        self.wpe = torch.nn.Embedding(4, 2)
        self.inner = torch.nn.ModuleDict({"tokens": torch.nn.ModuleList([self.wpe])})

    def forward(self, ids: Any) -> Any:
        return self.model(ids)

    def positions(self, ids: Any) -> Any:
        at = torch.arange(ids.shape[-1])
        return self.wpe(at)

    def other(self, ids: Any) -> Any:
        return torch.nn.Embedding(10, 2)(ids)

    def loss(self, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(torch.zeros(len(targets), 5), targets)


def test_ids_that_have_no_row_in_an_embedding() -> None:
    policy, ids = Policy(), torch.tensor([[1, 12, -3]])
    said = "has 10 rows, and its ids go from -3 to 12: 2 of 3 have no row"
    assert told(policy.forward, ids) == [f"the embedding `self.model[0]` {said}"]
    assert told(policy.positions, torch.zeros(1, 6)) == [
        "the embedding `self.wpe` has 4 rows, and its ids go from 0 to 5: 2 of 6 have no row"
    ]
    assert told(policy.other, ids) == [f"the embedding {said}"], "no name of the line leads to it"
    assert told(torch.nn.functional.embedding_bag, ids, torch.zeros(10, 2)) == [f"the embedding {said}"]

    def nested(model: Any) -> Any:
        return model["tokens"][0](torch.tensor([7, 7]))

    assert told(nested, policy.inner) == [
        "the embedding `model.tokens[0]` has 4 rows, and its ids are all 7: 2 of 2 have no row"
    ]


def test_a_head_that_has_an_embeddings_weight_is_not_the_embedding() -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Embedding(10, 2)), torch.nn.Linear(2, 10, bias=False))
    model[1].weight = model[0][0].weight

    def scores(model: Any, ids: Any) -> Any:
        return model(ids)

    [line] = told(scores, model, torch.tensor([12]))
    assert line.startswith("the embedding `model[0][0]` has 10 rows"), line


def test_targets_that_are_no_class() -> None:
    said = "the input has 5 classes, and its targets go from 1 to 7: 1 of 2 have none"
    assert told(Policy().loss, torch.tensor([1, 7, -100])) == [said], "those at -100 are left out of the loss"
    assert told(torch.nn.functional.nll_loss, torch.zeros(2, 5), torch.tensor([1, 7])) == [said]
    assert told(torch.nn.CrossEntropyLoss(), torch.zeros(5), torch.tensor(-1)) == [
        "the input has 5 classes, and its targets are -1: 1 of 1 have none"
    ]


# ---- tensors and arrays


def item(x: Any, at: Any) -> Any:
    return x[at + 1]


def second(x: Any, at: Any) -> Any:
    return x[0, at]


def some(x: Any, at: Any) -> Any:
    x[at] = 1.0


def gather(x: Any, at: Any) -> Any:
    return x.gather(dim=-1, index=at.unsqueeze(-1))


def add(x: Any, at: Any) -> Any:
    return x.index_add(0, at, torch.ones(len(at), 5))


def along(x: Any, at: Any) -> Any:
    return np.take_along_axis(x, at[:, None], 1)


@pytest.mark.parametrize(
    ("call", "at", "said"),
    [
        (item, 6, "`x` has 4 in dimension 0, and `at + 1` is 7"),
        (second, 9, "`x` has 5 in dimension 1, and `at` is 9"),
        (some, [1, 12], "the indices in `at` go from 1 to 12: 1 of 2 are outside dimension 0 of `x`, which has 4"),
        (some, [-9, -4, 3], "the indices in `at` go from -9 to 3: 1 of 3 are outside dimension 0 of `x`, which has 4"),
    ],
)
@pytest.mark.parametrize("make", [torch.zeros, np.zeros])
def test_an_index_of_a_tensor_or_an_array(call: Any, at: Any, said: str, make: Any) -> None:
    x = make((4, 5))
    indices = at if type(at) is int else torch.tensor(at) if make is torch.zeros else np.array(at)
    assert told(call, x, indices) == [said]


def test_functions_that_take_indices() -> None:
    said = "the indices in `at` go from 1 to 7: 1 of 2 are outside dimension {} of `x`, which has {}"
    assert told(gather, torch.zeros(2, 5), torch.tensor([1, 7])) == [said.format(1, 5)]
    assert told(add, torch.zeros(6, 5), torch.tensor([1, 7])) == [said.format(0, 6)]
    assert told(along, np.zeros((2, 5)), np.array([1, 7])) == [said.format(1, 5)]
    below = "the indices in `at` go from -1 to 3: 1 of 2 are outside dimension 1 of `x`, which has 5"
    assert told(gather, torch.zeros(2, 5), torch.tensor([-1, 3])) == [below], "gather does not count from the end"


def test_whole_numbers_that_are_looked_up_are_no_indices() -> None:
    def looked_up(table: Any, at: Any) -> Any:
        return table[at]

    def taken(table: Any, at: Any) -> Any:
        return np.take(table, at)

    def beside(x: Any, at: Any, scores: Any) -> Any:
        return scores * x[at]

    def two(x: Any, at: Any, y: Any, other: Any) -> Any:
        return x[at] + y[other]

    def made(x: Any, at: Any, k: int) -> Any:
        return np.zeros(9)[at] + x[k]

    at, table = np.array([0, 5]), np.array([10, 5, 7])
    assert told(made, np.zeros(3), at, 5) == [], "one of the two"
    said = "the indices in `at` go from 0 to 5: 1 of 2 are outside dimension 0 of `{}`, which has 3"
    assert told(looked_up, table, at) == [said.format("table")] == told(taken, table, at)
    assert told(beside, np.zeros(3), at, np.array([5, 9])) == [said.format("x")]
    assert told(two, np.zeros(3), at, np.zeros(9), np.array([5, 1])) == [said.format("x")]
    assert told(two, np.zeros(3), at, np.zeros(3), np.array([5, 1])) == [], "one of the two"


def classes(at: Any, count: int) -> Any:
    return torch.nn.functional.one_hot(at, num_classes=count)


def test_classes_of_one_hot() -> None:
    said = "the classes in `at` go from 1 to 9: 1 of 2 are outside the 5 of num_classes"
    assert told(classes, torch.tensor([1, 9]), 5) == [said]


# ---- lists


def test_lists_and_what_is_like_them() -> None:
    def row(rows: Any, at: int) -> Any:
        return rows[at - 1]

    def last(rows: Any) -> Any:
        return rows[-1]

    assert told(row, [1, 2, 3], 9) == ["`rows` has 3 items, and `at - 1` is 8"]
    assert told(row, "abc", 9) == ["`rows` has 3 characters, and `at - 1` is 8"]
    assert told(row, range(4), 5) == ["`rows` has 4 items, and `at - 1` is 4"]
    assert told(last, []) == ["`rows` is empty"]


def test_the_variable_of_a_comprehension_is_not_another_one_of_its_name() -> None:
    def made(rows: Any, at: int) -> Any:
        found = [rows[at] for at in range(2)]
        return found, at

    def within(rows: Any, at: int) -> Any:
        return [rows[at] for _ in range(2)]

    assert told(made, [1], 99) in ([], ["`rows` has 1 item, and `at` is 1"]), "that frame is there up to Python 3.11"
    assert told(within, [1], 99) == ["`rows` has 1 item, and `at` is 99"]


def test_a_cause_is_looked_at_and_what_was_handled_is_not() -> None:
    def wrapped(rows: Any, at: int) -> Any:
        try:
            return rows[at]
        except IndexError as error:
            raise RuntimeError("no such row") from error

    def handled(rows: Any, at: int) -> Any:
        try:
            return rows[at]
        except IndexError:
            raise RuntimeError("something else")  # noqa: B904

    def handled_with_its_cause(rows: Any, at: int) -> Any:
        try:
            wrapped(rows, at)
        except RuntimeError:
            raise RuntimeError("something else")  # noqa: B904

    assert told(handled_with_its_cause, [1], 4) == []
    assert told(wrapped, [1], 4) == ["`rows` has 1 item, and `at` is 4"]
    assert told(handled, [1], 4) == []


def test_nothing_is_said_of_what_is_not_known() -> None:
    def called(rows: Any) -> Any:
        return rows[len(rows)]

    def own(rows: Any) -> Any:
        raise IndexError(f"index 7 is out of bounds for dimension 0 with size {len(rows)}")

    class Rows(list[int]):
        pass

    assert told(called, [1]) == [] == told(own, torch.zeros(4)) == told(called, Rows([1]))
