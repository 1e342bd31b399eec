"""Reading, tokenising, dropping and truncating prompts; every way in which a file can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from trainer.config.schema import DataConfig
from trainer.data.dataset import PromptDataset, load_prompts, truncated
from trainer.errors import ConfigError, DataError
from trainer.records import Row

MakeRow = Callable[..., dict[str, Any]]
Write = Callable[..., str]
CONFIG = DataConfig(shuffle=False)


def first_words(dataset: PromptDataset, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The word after `<user>`, of every prompt."""
    return [tokenizer.convert_ids_to_tokens(dataset[i].ids)[1] for i in range(len(dataset))]


def test_a_prompt_goes_through_the_template_and_gets_nothing_added(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast
) -> None:
    file = write([make_row(5, words=2)])

    example = load_prompts([file], CONFIG, tokenizer)[0]

    assert tokenizer.convert_ids_to_tokens(example.ids) == ["<user>", "w5", "w6", "<assistant>"]
    assert example.row == Row(0, file, "openai/gsm8k", "5", {"split": "train", "index": 5})


def test_without_a_template_the_contents_are_joined(
    write: Write, make_row: MakeRow, bare_tokenizer: PreTrainedTokenizerFast
) -> None:
    prompt = [{"role": "system", "content": "w1"}, {"role": "user", "content": "w2 w3"}]

    example = load_prompts([write([make_row(prompt=prompt)])], CONFIG, bare_tokenizer)[0]

    assert bare_tokenizer.convert_ids_to_tokens(example.ids) == ["w1", "w2", "w3"]


def test_a_prompt_of_plain_text_is_taken_as_it_is(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast
) -> None:
    config = replace(CONFIG, prompt_key="text", reward_fn_key="kind")
    row = {"text": "w1 w2", "kind": "mine", "reward_model": {"ground_truth": 7}}  # and no extra_info

    example = load_prompts([write([row])], config, tokenizer)[0]

    assert tokenizer.convert_ids_to_tokens(example.ids) == ["w1", "w2"]
    assert (example.row.data_source, example.row.ground_truth, example.row.extra_info) == ("mine", 7, {})


def test_files_of_different_kinds_follow_each_other(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast
) -> None:
    one = write([make_row(1), make_row(2)], "one.parquet")
    truth = {"style": "rule", "ground_truth": {"target": ["a", "b"]}}
    two = write([make_row(3, data_source="nq", reward_model=truth, extra_info=None)], "two.parquet")

    dataset = load_prompts([one, two], CONFIG, tokenizer)

    assert first_words(dataset, tokenizer) == ["w1", "w2", "w3"]
    assert [dataset[i].row.label for i in range(3)] == [f"row 0 of {one}", f"row 1 of {one}", f"row 0 of {two}"]
    assert dataset[2].row == Row(0, two, "nq", {"target": ["a", "b"]}, {})
    assert dataset.data_sources == ["openai/gsm8k", "nq"]


def test_more_rows_than_one_chunk(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.dataset._CHUNK", 3)

    dataset = load_prompts([write([make_row(i, words=i % 4 + 1) for i in range(8)])], CONFIG, tokenizer)

    assert first_words(dataset, tokenizer) == [f"w{i}" for i in range(8)]
    assert [len(dataset[i].ids) for i in range(8)] == [i % 4 + 3 for i in range(8)]
    with pytest.raises(IndexError):
        dataset[8]


def test_home_is_expanded(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write([make_row(1)], "train.parquet")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert load_prompts(["~/train.parquet"], CONFIG, tokenizer)[0].row.file == "~/train.parquet"


def test_too_long_prompts_are_dropped_and_counted(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast
) -> None:
    file = write([make_row(i, words=words) for i, words in enumerate([3, 9, 4, 10])])

    dataset = load_prompts([file], replace(CONFIG, filter_overlong_prompts=True, max_prompt_length=6), tokenizer)

    assert first_words(dataset, tokenizer) == ["w0", "w2"]  # 3 and 4 words, 5 and 6 tokens: the limit is inclusive
    assert dataset.dropped == 2
    assert [dataset[i].row.index for i in range(2)] == [0, 2]  # as in the file


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        ("left", ["w3", "w4", "<assistant>"]),
        ("right", ["<user>", "w0", "w1"]),
        ("middle", ["<user>", "w4", "<assistant>"]),  # as verl: the larger half at the end
    ],
)
def test_truncation(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast, truncation: str, kept: list[str]
) -> None:
    config = replace(CONFIG, truncation=truncation, max_prompt_length=3)

    dataset = load_prompts([write([make_row(0, words=5)])], config, tokenizer)

    assert tokenizer.convert_ids_to_tokens(dataset[0].ids) == kept
    assert dataset.dropped == 0


@given(st.lists(st.integers(), min_size=1), st.integers(0, 20), st.sampled_from(["left", "right", "middle"]))
def test_truncated_keeps_exactly_the_limit(ids: list[int], limit: int, truncation: str) -> None:
    limit = min(limit, len(ids))

    short = truncated(ids, limit, truncation)

    assert len(short) == limit
    assert any(short == ids[:head] + ids[len(ids) - limit + head :] for head in range(limit + 1))


@pytest.mark.parametrize(("max_samples", "indices"), [(-1, [0, 1, 2, 3]), (2, [0, 1]), (9, [0, 1, 2, 3])])
def test_max_samples_without_shuffle_takes_the_first_rows(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast, max_samples: int, indices: list[int]
) -> None:
    dataset = load_prompts([write([make_row(i) for i in range(4)])], CONFIG, tokenizer, max_samples=max_samples)

    assert [dataset[i].row.index for i in range(len(dataset))] == indices


def test_max_samples_with_shuffle_takes_a_seeded_subset(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast
) -> None:
    file = write([make_row(i) for i in range(50)])

    def indices(data_seed: int | None, seed: int) -> list[int]:
        config = DataConfig(shuffle=True, seed=data_seed)
        dataset = load_prompts([file], config, tokenizer, max_samples=10, seed=seed)
        return [dataset[i].row.index for i in range(len(dataset))]

    one = indices(None, 1)
    assert len(set(one)) == 10
    assert one != list(range(10))
    assert one == indices(None, 1) == indices(1, 99)  # data.seed goes before the run's
    assert one != indices(None, 2)


def test_dropping_comes_after_subsampling(write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast) -> None:
    file = write([make_row(i, words=words) for i, words in enumerate([9, 1, 1])])
    config = replace(CONFIG, filter_overlong_prompts=True, max_prompt_length=4)

    dataset = load_prompts([file], config, tokenizer, max_samples=2)

    assert (len(dataset), dataset.dropped) == (1, 1)


# What can be wrong: each names the file, the row or the column, and says what to do.

Break = Callable[[Write, MakeRow], str]


def _corrupt(write: Write, make_row: MakeRow) -> str:
    file = Path(write([make_row()]))
    file.write_bytes(file.read_bytes()[:-20])
    return str(file)


def _not_parquet(write: Write, make_row: MakeRow) -> str:
    file = Path(write([make_row()]))
    file.write_text('{"question": "..."}\n')
    return str(file)


def _without(column: str) -> Break:
    return lambda write, make_row: write([{k: v for k, v in make_row().items() if k != column}])


def _second_row(**columns: Any) -> Break:
    return lambda write, make_row: write([make_row(), make_row(**columns)])


@pytest.mark.parametrize(
    ("broken", "message", "hint"),
    [
        (lambda write, make_row: "none.parquet", "none.parquet: no such file", "trainer.data.prepare"),
        (lambda write, make_row: str(Path(write([make_row()])).parent), ": a folder", "parquet file"),
        (_corrupt, "not a readable parquet file", "trainer.data.prepare"),
        (_not_parquet, "not a readable parquet file", "trainer.data.prepare"),
        (
            _without("prompt"),
            "has no column 'prompt' (it has: data_source, ability, reward_model, extra_info)",
            "data.prompt_key",
        ),
        (_without("data_source"), "has no column 'data_source'", "data.reward_fn_key"),
        (_without("reward_model"), "has no column 'reward_model'", "ground_truth"),
        (_second_row(reward_model={"style": "rule"}), "row 1 of", "fill it"),
        (_second_row(reward_model=None), "no reward_model.ground_truth", "fill it"),
        (_second_row(data_source=None), "no data_source", "fill it"),
        (
            lambda write, make_row: write([make_row(reward_model={"style": "rule"})]),
            "its column 'reward_model' has no ground_truth",
            "{style, ground_truth}",
        ),
        (
            lambda write, make_row: write([make_row(reward_model="12")]),
            "its column 'reward_model' has no ground_truth (it is string)",
            "{style, ground_truth}",
        ),
        (_second_row(prompt=None), "its prompt is neither a text nor a list", "role"),
        (_second_row(prompt=[]), "row 1 of", "role"),
        (_second_row(prompt=[{"role": "user", "content": None}]), "row 1 of", "role"),
        (
            _second_row(prompt=[{"role": "system", "content": "w1"}]),
            "the model's chat template refuses its prompt: no system messages here",
            "system message",
        ),
    ],
)
def test_a_file_that_cannot_be_used(
    write: Write,
    make_row: MakeRow,
    tokenizer: PreTrainedTokenizerFast,
    broken: Break,
    message: str,
    hint: str,
) -> None:
    file = broken(write, make_row)
    with pytest.raises(DataError) as caught:
        load_prompts([file], CONFIG, tokenizer)

    assert message in caught.value.message
    assert hint in caught.value.hint
    assert file in caught.value.message
    assert "\n" not in caught.value.message


def test_no_files(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(DataError, match="no data files") as caught:
        load_prompts([], CONFIG, tokenizer)
    assert "data.train_files" in caught.value.hint


def test_a_file_without_rows(write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast) -> None:
    import pyarrow.parquet as pq

    file = write([make_row()])
    pq.write_table(pq.read_table(file).slice(0, 0), file)

    with pytest.raises(DataError, match="no rows in"):
        load_prompts([file], CONFIG, tokenizer)


def test_an_empty_prompt(write: Write, make_row: MakeRow, bare_tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = [{"role": "user", "content": " "}]

    with pytest.raises(DataError, match=r"row 1 of .*: its prompt is empty"):
        load_prompts([write([make_row(), make_row(prompt=prompt)])], CONFIG, bare_tokenizer)


def test_a_too_long_prompt_names_row_length_and_limit(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast
) -> None:
    file = write([make_row(), make_row(words=9)])

    with pytest.raises(DataError) as caught:
        load_prompts([file], replace(CONFIG, max_prompt_length=10), tokenizer)

    assert caught.value.message == f"row 1 of {file}: its prompt has 11 tokens, data.max_prompt_length is 10"
    assert "data.filter_overlong_prompts=True" in caught.value.hint
    assert "data.truncation=left" in caught.value.hint


def test_all_rows_dropped(write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast) -> None:
    config = replace(CONFIG, filter_overlong_prompts=True, max_prompt_length=4)

    with pytest.raises(DataError, match=r"all 2 prompts of .* are longer than data.max_prompt_length=4") as caught:
        load_prompts([write([make_row(words=5), make_row(words=4)])], config, tokenizer)

    assert "the shortest has 6 tokens" in caught.value.hint


def test_an_unknown_truncation(write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ConfigError, match=r"data.truncation=centre"):
        load_prompts([write([make_row()])], replace(CONFIG, truncation="centre"), tokenizer)


def test_prompts_are_let_go_after_tokenising(
    write: Write, make_row: MakeRow, tokenizer: PreTrainedTokenizerFast
) -> None:
    dataset = load_prompts([write([make_row(i) for i in range(3)])], CONFIG, tokenizer)

    assert dataset._parts[0].table.column_names == ["data_source", "reward_model", "extra_info"]
    assert dataset._ids.dtype == np.int32
