"""How rows are dealt to ranks and cut into passes: properties over all lengths, and worked examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.batches import train_batch
from tests.trainer.conftest import Words
from trainer.balance import PassLimit, balance_metrics, partition, pass_rows, shares
from trainer.config import load
from trainer.group import WorkerGroup

LENGTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=60)
PARTS = st.integers(1, 9)


def sums(lengths: list[int], groups: list[list[int]]) -> list[int]:
    return [sum(lengths[row] for row in rows) for rows in groups]


@settings(deadline=None)
@given(LENGTHS, PARTS, st.booleans())
def test_partition(lengths: list[int], parts: int, equal: bool) -> None:
    """Each row once; the largest sum first; no group empty that need not be; in equal counts, within one row."""
    groups = partition(lengths, parts, equal_counts=equal)
    assert sorted(row for rows in groups for row in rows) == list(range(len(lengths)))
    assert all(rows == sorted(rows) for rows in groups)
    assert sums(lengths, groups) == sorted(sums(lengths, groups), reverse=True)
    assert sum(map(bool, groups)) == min(parts, len(lengths))
    if equal:
        assert max(map(len, groups)) - min(map(len, groups)) <= 1


@settings(deadline=None)
@given(LENGTHS, PARTS, st.booleans())
def test_no_row_could_move_and_even_out(lengths: list[int], parts: int, equal: bool) -> None:
    """The sums are apart by no more than the longest row: else one of its rows would be better off elsewhere."""
    even = len(lengths) % parts == 0 or not equal
    groups = sums(lengths, partition(lengths, parts, equal_counts=equal))
    assert not even or groups[0] - groups[-1] <= max(lengths)


def test_differencing_beats_the_longest_first() -> None:
    """8, 7, 6, 5, 4: giving the longest to the emptier group makes 17 and 13."""
    assert sums([8, 7, 6, 5, 4], partition([8, 7, 6, 5, 4], 2)) == [16, 14]


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 6), st.integers(1, 8192), st.booleans())
def test_shares(lengths: list[int], ranks: int, tokens: int, balanced: bool) -> None:
    """Whatever the lengths, every rank has as many passes as the others, and no pass of several rows is too large."""
    lengths = lengths * ranks  # rows divide over the ranks
    dealt = shares(lengths, ranks, PassLimit(tokens=tokens), balanced=balanced)
    assert sorted(row for share in dealt for row in share.rows) == list(range(len(lengths)))
    assert len({len(share.rows) for share in dealt}) == len({len(share.passes) for share in dealt}) == 1
    for share in dealt:
        assert sorted(row for rows in share.passes for row in rows) == list(range(len(share.rows)))
        assert all(share.passes)
        own = [lengths[row] for row in share.rows]
        for rows in share.passes:
            assert len(rows) == 1 or sum(own[row] for row in rows) <= tokens


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 8192))
def test_one_pass_fewer_would_be_too_large_or_uneven(lengths: list[int], tokens: int) -> None:
    """The passes are as few as the differencing method can do with."""
    [passes] = pass_rows([lengths], PassLimit(tokens=tokens))
    if len(passes) > 1:
        fewer = sums(lengths, partition(lengths, len(passes) - 1))
        assert fewer[0] > tokens or sum(lengths) > tokens * (len(passes) - 1)


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 6), st.integers(1, 8192), st.sampled_from([1, 4]))
def test_shares_of_a_model_that_pads(lengths: list[int], ranks: int, tokens: int, padded_to: int) -> None:
    """What is computed beside the rows is within the budget, too, and every rank has as many passes."""
    limit = PassLimit(tokens=tokens, padded_to=padded_to)
    dealt = shares(lengths * ranks, ranks, limit)
    assert len({len(share.passes) for share in dealt}) == 1
    for share in dealt:
        own = [(lengths * ranks)[row] for row in share.rows]
        assert sorted(row for rows in share.passes for row in rows) == list(range(len(own))) and all(share.passes)
        for rows in share.passes:
            wide = -(-max(own[row] for row in rows) // padded_to) * padded_to
            assert len(rows) == 1 or len(rows) * wide <= tokens
        sizes = [limit.size([own[row] for row in rows]) for rows in share.passes]
        assert sizes == sorted(sizes, reverse=True)


def test_rows_of_like_length_go_together_where_padding_counts() -> None:
    """Four rows of 10 tokens and one of 90, 100 to a pass: by even sums, the long one would have a short one."""
    [passes] = pass_rows([[10, 90, 10, 10, 10]], PassLimit(tokens=100, padded_to=1))
    assert passes == [[1], [0, 2, 3, 4]]


def test_a_rank_of_short_rows_halves_its_passes() -> None:
    passes = pass_rows([[10, 10, 10, 10], [90, 90, 90, 10]], PassLimit(tokens=100, padded_to=1))
    assert [len(of_rank) for of_rank in passes] == [4, 4]
    assert all(sorted(row for rows in of_rank for row in rows) == [0, 1, 2, 3] for of_rank in passes)


def test_passes_by_sequences_keep_the_order() -> None:
    [share] = shares([5, 1, 9, 4, 2], 1, PassLimit(rows=2), balanced=False)
    assert share.rows == [0, 1, 2, 3, 4] and share.passes == ([0, 1], [2, 3], [4])


def test_in_order_and_balanced() -> None:
    lengths = [9, 8, 1, 2]
    assert [share.rows for share in shares(lengths, 2, PassLimit(rows=4), balanced=False)] == [[0, 1], [2, 3]]
    assert [share.rows for share in shares(lengths, 2, PassLimit(rows=4))] == [[0, 2], [1, 3]]


def test_the_largest_pass_comes_first_on_each_rank() -> None:
    [passes] = pass_rows([[10, 60, 30, 50]], PassLimit(tokens=80))
    assert passes == [[1, 0], [2, 3]] or sums([10, 60, 30, 50], passes) == [80, 70]


def test_one_rank_with_long_rows_makes_the_others_cut_too() -> None:
    passes = pass_rows([[10, 10, 10, 10], [90, 90, 90, 10]], PassLimit(tokens=100))
    assert [len(of_rank) for of_rank in passes] == [3, 3]


def test_rows_that_do_not_divide_are_refused_where_passes_would_differ() -> None:
    with pytest.raises(ValueError, match="3 rows over 2 ranks"):
        shares([5, 5, 5], 2, PassLimit(rows=1))


def test_what_is_reported_of_the_balance() -> None:
    """verl's names: rows in order leave the ranks with 17 and 3 tokens, dealt evenly with 10 each."""
    assert balance_metrics([9, 8, 1, 2], 2) == {
        "global_seqlen/min": 3,
        "global_seqlen/max": 17,
        "global_seqlen/minmax_diff": 14,
        "global_seqlen/balanced_min": 10,
        "global_seqlen/balanced_max": 10,
        "global_seqlen/mean": 10,
    }


class Echo:
    """`Calls` to two ranks that answer each row with its own number, pass by pass."""

    world_size = 2

    def all(self, phase: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        answers = []
        for rollout, passes in args:
            assert sorted(torch.cat(passes).tolist()) == list(range(len(rollout)))
            answers.append(rollout.prompts.uid_B[:, None].float())
        return answers


@pytest.mark.parametrize("balance", [True, False])
def test_answers_come_back_in_the_rows_order(words: Words, balance: bool) -> None:
    config = load(words("trainer.n_gpus_per_node=2", f"trainer.balance_batch={balance}")).config
    rollout = train_batch(8).experience.rollout
    assert WorkerGroup(Echo(), config).values(rollout).now().tolist() == [[number] for number in range(8)]
