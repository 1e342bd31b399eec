"""Parquet files in verl's schema, checked when they are opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer.agent.row_options import ROW, whole_row
from trainer.config.schema import DataConfig
from trainer.errors import DataError
from trainer.records import Row

REWARD_KEY = "reward_model"
SKYRLS_KEY = "reward_spec"  # SkyRL's name for it
EXTRA_KEY = "extra_info"
AGENT_KEY = "agent_name"  # verl's: how a row is played; here a part of what its reward function is given

_PREPARE = "python -m trainer.data.prepare writes such files"


@dataclass
class Part:
    """The needed columns of one file."""

    file: str  # as the user wrote it
    table: pa.Table
    source_key: str
    whole_key: str | None = None  # of the prompts, where an environment is given whole rows

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def label(self, index: int) -> str:
        """As `Row.label`, for a row that can't be made."""
        return Row(index=index, file=self.file, data_source="", ground_truth=None).label

    def value(self, column: str, index: int) -> Any:
        return self.table[column][index].as_py()

    def row(self, index: int) -> Row:
        return Row(
            index=index,
            file=self.file,
            data_source=self.value(self.source_key, index),
            ground_truth=self.value(REWARD_KEY, index)["ground_truth"],
            extra_info=self.extra_info(index) if self.whole_key is None else self._whole(index, self.whole_key),
        )

    def _whole(self, index: int, key: str) -> dict[str, Any]:
        extra, reward, source = (
            self.extra_info(index),
            self.value(REWARD_KEY, index),
            self.value(self.source_key, index),
        )
        return {**extra, ROW: whole_row(self.value(key, index), reward, source, extra)}

    def extra_info(self, index: int) -> dict[str, Any]:
        names = self.table.column_names
        found: dict[str, Any] = (self.value(EXTRA_KEY, index) or {}) if EXTRA_KEY in names else {}
        return {**found, AGENT_KEY: self.value(AGENT_KEY, index)} if AGENT_KEY in names else found

    def data_sources(self) -> list[str]:
        return [str(name) for name in pc.unique(self.table[self.source_key]).to_pylist()]

    def forget(self, column: str) -> None:
        """Lets go of a column that is no longer needed."""
        self.table = self.table.drop_columns([column])


def read_parts(files: Sequence[str], config: DataConfig) -> list[Part]:
    """Raises DataError for a file that isn't there or isn't parquet, a missing column or a missing ground truth."""
    if not files:
        raise DataError("no data files", hint="set data.train_files and data.val_files")
    return [_read(file, config) for file in files]


def _read(file: str, config: DataConfig) -> Part:
    path = Path(file).expanduser()
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no such file"
        raise DataError(f"{file}: {what}", hint=f"give a parquet file that the driver can read; {_PREPARE}")
    needed = [config.prompt_key, config.reward_fn_key, REWARD_KEY]
    try:
        with pq.ParquetFile(path) as parquet:
            names = parquet.schema_arrow.names
            rewards = REWARD_KEY if REWARD_KEY in names or SKYRLS_KEY not in names else SKYRLS_KEY
            _check_columns(file, [REWARD_KEY if name == rewards else name for name in names], needed, config)
            columns = [rewards if name == REWARD_KEY else name for name in needed]
            table = parquet.read([*columns, *(key for key in (EXTRA_KEY, AGENT_KEY) if key in names)])
            table = table.rename_columns([REWARD_KEY if name == rewards else name for name in table.column_names])
        table.validate(full=True)  # a damaged text would fail only once its row is asked for
    except (pa.ArrowException, OSError, ValueError) as exc:  # names that are no UTF-8 are a ValueError
        raise DataError(f"{file}: not a readable parquet file ({_first_line(exc)})", hint=_PREPARE) from exc
    part = Part(file, table, config.reward_fn_key)
    _check_rows(part)
    return part


def _first_line(exc: Exception) -> str:
    return str(exc).strip().split("\n")[0]


def _check_columns(file: str, names: list[str], needed: list[str], config: DataConfig) -> None:
    hints = {
        config.prompt_key: "data.prompt_key=... names the prompt column",
        config.reward_fn_key: "data.reward_fn_key=... names the column that chooses the reward function",
        REWARD_KEY: "it holds {style, ground_truth}",
    }
    for column in needed:
        if column not in names:
            raise DataError(
                f"{file} has no column {column!r} (it has: {', '.join(names)})", hint=f"{hints[column]}; {_PREPARE}"
            )


def _check_rows(part: Part) -> None:
    kind = part.table.schema.field(REWARD_KEY).type
    if not pa.types.is_struct(kind) or kind.get_field_index("ground_truth") < 0:
        raise DataError(
            f"{part.file}: its column {REWARD_KEY!r} has no ground_truth (it is {kind})",
            hint=f"it must hold {{style, ground_truth}}; {_PREPARE}",
        )
    if EXTRA_KEY in part.table.column_names:
        extra = part.table.schema.field(EXTRA_KEY).type
        if not (pa.types.is_struct(extra) or pa.types.is_null(extra)):
            raise DataError(
                f"{part.file}: its column {EXTRA_KEY!r} holds no mappings (it is {extra})",
                hint=f"reward functions are given a mapping; leave the column out, or write one. {_PREPARE}",
            )
    source = part.table.schema.field(part.source_key).type
    if pa.types.is_nested(source):
        raise DataError(
            f"{part.file}: its column {part.source_key!r} holds no names (it is {source})",
            hint="it holds a text that chooses the reward function; data.reward_fn_key=... names the column",
        )
    truths = pc.struct_field(part.table[REWARD_KEY], "ground_truth")
    for column, what in ((part.table[part.source_key], part.source_key), (truths, f"{REWARD_KEY}.ground_truth")):
        empty = pc.index(pc.is_null(column), True).as_py()
        if empty >= 0:
            raise DataError(f"{part.label(empty)}: no {what}", hint="fill it, or leave the row out")
