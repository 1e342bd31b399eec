"""Batches: shape, order, and resuming exactly where a run was cut."""

from __future__ import annotations

import json
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.dataset import Example, PromptDataset
from trainer.data.loader import PromptLoader, collate
from trainer.errors import CheckpointError, ConfigError, DataError
from trainer.records import Prompts, Row


class Rows:
    """Stands for a PromptDataset: prompt i is i % 3 + 1 tokens, each i + 1."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Example:
        return Example([index + 1] * (index % 3 + 1), Row(index, "t.parquet", "s", str(index)))


def loader(
    rows: int = 10, batch: int = 4, *, shuffle: bool = True, seed: int = 1, drop_last: bool = True
) -> PromptLoader:
    dataset = cast(PromptDataset, Rows(rows))
    return PromptLoader(dataset, batch, pad_id=0, shuffle=shuffle, seed=seed, drop_last=drop_last)


Seen = list[tuple[list[int], list[int]]]


def see(prompts: Prompts) -> tuple[list[int], list[int]]:
    return [row.index for row in prompts.rows], prompts.uid_B.tolist()


def epochs(of: PromptLoader, until: int) -> Seen:
    """As the driver loops."""
    return [see(prompts) for _ in range(of.epoch, until) for prompts in of]


def test_collate_pads_left() -> None:
    rows = Rows(3)

    batch = collate([rows[0], rows[2], rows[1]], pad_id=9, first_uid=20)

    assert batch.ids_BP.tolist() == [[9, 9, 1], [3, 3, 3], [9, 2, 2]]
    assert batch.mask_BP.tolist() == [[0, 0, 1], [1, 1, 1], [0, 1, 1]]
    assert batch.uid_B.tolist() == [20, 21, 22]
    assert batch.sample_B.tolist() == [0, 0, 0]
    assert {t.dtype for t in (batch.ids_BP, batch.mask_BP, batch.uid_B, batch.sample_B)} == {torch.int64}
    assert [row.index for row in batch.rows] == [0, 2, 1]


def test_a_batch_is_as_wide_as_its_longest_prompt() -> None:
    assert [p.ids_BP.shape for p in loader(6, 1, shuffle=False)] == [(1, 1), (1, 2), (1, 3)] * 2


def test_in_file_order_without_shuffle() -> None:
    assert epochs(loader(5, 2, shuffle=False), 2) == [
        ([0, 1], [0, 1]),
        ([2, 3], [2, 3]),
        ([0, 1], [5, 6]),
        ([2, 3], [7, 8]),
    ]


def test_validation_sees_every_row_every_time() -> None:
    validation = loader(5, 2, shuffle=False, drop_last=False)

    assert len(validation) == 3
    for _ in range(2):
        assert [index for prompts in validation for index in see(prompts)[0]] == [0, 1, 2, 3, 4]


def test_validation_draws_the_same_numbers_every_time() -> None:
    """They depend on the prompts' uids: else the curve of a sampled validation would show the dice, too."""
    validation = PromptLoader(
        cast(PromptDataset, Rows(5)), 2, pad_id=0, shuffle=False, seed=1, drop_last=False, same=True
    )
    first, again = ([see(prompts) for prompts in validation] for _ in range(2))
    assert first == again and [uid for _, uids in first for uid in uids] == [0, 1, 2, 3, 4]


def test_one_epoch_shuffled_has_each_row_at_most_once() -> None:
    indices = [i for rows, _ in epochs(loader(10, 4), 1) for i in rows]

    assert len(indices) == len(set(indices)) == 8
    assert indices != sorted(indices)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    torch.manual_seed(0)
    one = epochs(loader(50, 10), 2)
    torch.manual_seed(1)
    again = epochs(loader(50, 10), 2)
    other = epochs(loader(50, 10, seed=2), 2)

    assert one == again
    assert one[:5] != other[:5]
    assert [rows for rows, _ in one[:5]] != [rows for rows, _ in one[5:]]
    assert [rows for rows, _ in one[5:]] != [rows for rows, _ in other[:5]]  # not merely seed + epoch


def test_negative_seeds_are_seeds() -> None:
    assert epochs(loader(50, 10, seed=-1), 1) != epochs(loader(50, 10, seed=1), 1)


@given(
    rows=st.integers(1, 12),
    batch=st.integers(1, 12),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    cut=st.integers(0, 40),
    exhaust=st.booleans(),
)
def test_a_resumed_run_sees_what_the_uninterrupted_one_would(
    rows: int, batch: int, shuffle: bool, drop_last: bool, cut: int, exhaust: bool
) -> None:
    batch = min(batch, rows)
    whole = epochs(loader(rows, batch, shuffle=shuffle, drop_last=drop_last), 3)
    cut = min(cut, len(whole))

    first = loader(rows, batch, shuffle=shuffle, drop_last=drop_last)
    seen: Seen = []
    while len(seen) < cut:
        for prompts in first:
            seen.append(see(prompts))
            if len(seen) == cut and not exhaust:  # saved while the step runs; else cut at the next epoch's start
                break
            if len(seen) == cut and cut % len(first):
                break
    state = json.loads(json.dumps(first.state_dict()))
    second = loader(rows, batch, shuffle=shuffle, drop_last=drop_last)
    second.load_state_dict(state)

    assert seen == whole[:cut]
    assert epochs(second, 3) == whole[cut:]
    assert second.epoch == 3


def test_uids_are_unique_within_a_run() -> None:
    uids = [uid for _, some in epochs(loader(7, 3, drop_last=False), 4) for uid in some]

    assert len(uids) == len(set(uids)) == 28


def test_a_broken_off_epoch_goes_on_where_it_was() -> None:
    one = loader(8, 2)
    seen = [see(next(iter(one))), *(see(prompts) for prompts in one)]

    assert seen == epochs(loader(8, 2), 1)


def test_epoch_is_that_of_the_batch_in_hand() -> None:
    one = loader(4, 2)

    assert [one.epoch for _ in one] == [0, 0]
    assert one.epoch == 1
    assert [one.epoch for _ in one] == [1, 1]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rows": 11}, "rows was 10 and is 11"),
        ({"batch": 5}, "batch_size was 4 and is 5"),
        ({"seed": 2}, "seed was 1 and is 2"),
        ({"shuffle": False}, "shuffle was 1 and is 0"),
        ({"drop_last": False}, "drop_last was 1 and is 0"),
    ],
)
def test_in_mid_epoch_changed_data_are_refused(changed: dict[str, int], named: str) -> None:
    before = loader(10, 4)
    next(iter(before))
    after = loader(**changed)  # type: ignore[arg-type]

    with pytest.raises(CheckpointError) as caught:
        after.load_state_dict(before.state_dict())

    assert "batch 1 of epoch 0" in caught.value.message
    assert named in caught.value.message
    assert after.state_dict()["batch"] == 0


def test_at_an_epochs_start_changed_data_are_fine() -> None:
    before = loader(10, 4)
    list(before)
    after = loader(12, 3, seed=5)

    after.load_state_dict(before.state_dict())

    assert (after.epoch, len(list(after))) == (1, 4)


def test_less_than_a_batch() -> None:
    with pytest.raises(DataError, match=r"data.train_batch_size=4 is larger than the 3 rows") as caught:
        loader(3, 4)
    assert "at most 3" in caught.value.hint


def test_a_batch_of_nothing() -> None:
    with pytest.raises(ConfigError, match="a batch of 0 prompts"):
        loader(3, 0)
