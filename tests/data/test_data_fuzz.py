"""Parquet files that others wrote, of any schema, values and damage: prompts, or one error of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from trainer.config.files import count_rows
from trainer.config.schema import DataConfig
from trainer.data.dataset import load_prompts
from trainer.errors import DataError

MakeRow = Callable[..., dict[str, Any]]
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
MESSAGE = st.fixed_dictionaries({"role": st.none() | st.text(max_size=3), "content": st.none() | st.text(max_size=3)})
# Of one type per column: parquet knows no other.
COLUMNS = {
    "prompt": [
        *(st.sampled_from(["w1", "w2 w3", ""]), st.text(max_size=5), st.integers(-5, 5), MESSAGE),
        *(st.lists(MESSAGE, max_size=2), st.lists(st.integers(-5, 5))),
    ],
    "data_source": [st.text(max_size=3), st.integers(-5, 5), st.binary(max_size=3), st.lists(st.text(max_size=2))],
    "reward_model": [
        st.fixed_dictionaries({"ground_truth": st.none() | st.text(max_size=3)}),
        st.fixed_dictionaries({"ground_truth": st.lists(st.floats())}),
        st.fixed_dictionaries({"style": st.text(max_size=3)}),
        st.text(max_size=3),
        st.dictionaries(st.sampled_from("ab"), st.integers(-5, 5), min_size=1),
    ],
    "extra_info": [
        st.fixed_dictionaries({"index": st.integers(-(2**63), 2**63 - 1)}),
        st.text(max_size=3),
        st.datetimes(),
        st.lists(st.text(max_size=2)),
        st.binary(max_size=3),
    ],
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Some of the columns, each of one kind, with nulls."""
    rows = draw(st.integers(0, 3))
    columns = {}
    for name, kinds in COLUMNS.items():
        if draw(st.integers(0, 9)):
            values = draw(st.sampled_from([kinds[0]] * len(kinds) + kinds))  # else too few come to the end
            values = values if draw(st.integers(0, 3)) else st.none() | values
            columns[name] = draw(st.lists(values, min_size=rows, max_size=rows))
    return pa.table(columns)


def reads(file: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """As a run does: all prompts, and each row for its reward."""
    config = DataConfig(train_files=[file])
    _, problems = count_rows(config)
    assert all(problem.hint and "\n" not in problem.message for problem in problems)
    try:
        found = load_prompts([file], config, tokenizer)
    except DataError as error:
        hint = error.hint
    else:
        hint = "none is needed"
        assert all(found[i].ids and found[i].row.data_source is not None for i in range(len(found)))
        assert all(isinstance(found[i].row.extra_info, dict) for i in range(len(found)))
        assert all(isinstance(name, str) for name in found.data_sources)
    assert hint


@SHARED
@given(table=tables())
def test_any_schema(tmp_path: Path, bare_tokenizer: PreTrainedTokenizerFast, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "any.parquet")
    reads(str(tmp_path / "any.parquet"), bare_tokenizer)


@pytest.mark.parametrize("extra", ["text", 7, ["ab"], b"ab"])
def test_extra_info_that_is_no_mapping(
    tmp_path: Path, make_row: MakeRow, bare_tokenizer: PreTrainedTokenizerFast, extra: object
) -> None:
    """A reward function would be blamed for it, at the first reward."""
    pq.write_table(pa.Table.from_pylist([make_row() | {"extra_info": extra}]), tmp_path / "odd.parquet")
    with pytest.raises(DataError, match=r"odd\.parquet: its column 'extra_info' holds no mappings"):
        load_prompts([str(tmp_path / "odd.parquet")], DataConfig(), bare_tokenizer)


@SHARED
@given(data=st.data())
def test_any_bytes_changed(
    tmp_path: Path, make_row: MakeRow, bare_tokenizer: PreTrainedTokenizerFast, data: st.DataObject
) -> None:
    file = tmp_path / "damaged.parquet"
    pq.write_table(pa.Table.from_pylist([make_row(index) for index in range(4)]), file)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    file.write_bytes(content)
    reads(str(file), bare_tokenizer)


def test_texts_that_are_no_utf8(tmp_path: Path, make_row: MakeRow, bare_tokenizer: PreTrainedTokenizerFast) -> None:
    """A name of a column, which fails when the file is opened; a value, which Arrow reads as it stands."""
    file = tmp_path / "damaged.parquet"
    pq.write_table(pa.Table.from_pylist([make_row() | {"data_source": "abcdefgh"}]), file, compression=None)
    content = file.read_bytes()
    for text in (b"ground_truth", b"abcdefgh"):
        assert text in content
        file.write_bytes(content.replace(text, b"\x80" + text[1:]))
        with pytest.raises(DataError, match=r"damaged\.parquet: (not a readable|its column)"):
            load_prompts([str(file)], DataConfig(), bare_tokenizer)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 2, b"PAR1" + b"\xff" * 100 + b"PAR1", b"\x00" * 5000])
def test_what_is_no_parquet(tmp_path: Path, bare_tokenizer: PreTrainedTokenizerFast, content: bytes) -> None:
    (tmp_path / "no.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"no\.parquet: not a readable parquet file"):
        load_prompts([str(tmp_path / "no.parquet")], DataConfig(), bare_tokenizer)
