"""Rows of a user's data files, read from the files: nothing here goes through the trainer's records.

Imports no torch: the process that calls a reward function directly reads its rows with it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

REWARD, TRUTH, EXTRA = "reward_model", "ground_truth", "extra_info"


@dataclass(frozen=True)
class FileRow:
    """What a data file says of one prompt."""

    prompt: Any  # a text, or messages with role and content
    data_source: Any
    ground_truth: Any
    extra_info: Mapping[str, Any]


class RowReader:
    """`rows(file, index)`, a row group at a time: of a large file only what is asked for is read."""

    def __init__(self, prompt_key: str, source_key: str) -> None:
        self._prompt_key, self._source_key = prompt_key, source_key
        self._files: dict[str, pq.ParquetFile] = {}
        self._groups: dict[tuple[str, int], pa.Table] = {}

    def __call__(self, file: str, index: int) -> FileRow:
        """Raises IndexError past the end; what pyarrow raises for a file that it cannot read."""
        left = index
        for group in range(self._open(file).num_row_groups):
            count = self._open(file).metadata.row_group(group).num_rows
            if left < count:
                return self._row(self._group(file, group), left)
            left -= count
        raise IndexError(f"{file} has no row {index}")

    def count(self, file: str) -> int:
        return int(self._open(file).metadata.num_rows)

    def sample(self, file: str, most: int) -> Iterator[tuple[int, FileRow]]:
        """At most so many rows with their numbers, evenly over the file."""
        count = self.count(file)
        taken = min(count, most)
        for i in range(taken):
            index = i * count // taken
            yield index, self(file, index)

    def _open(self, file: str) -> pq.ParquetFile:
        if file not in self._files:
            self._files[file] = pq.ParquetFile(Path(file).expanduser())
        return self._files[file]

    def _group(self, file: str, group: int) -> pa.Table:
        if (file, group) not in self._groups:
            parquet = self._open(file)
            wanted = {self._prompt_key, self._source_key, REWARD, EXTRA}
            columns = [name for name in parquet.schema_arrow.names if name in wanted]
            self._groups[file, group] = parquet.read_row_group(group, columns)
        return self._groups[file, group]

    def _row(self, table: pa.Table, index: int) -> FileRow:
        extra = table[EXTRA][index].as_py() if EXTRA in table.column_names else None
        return FileRow(
            prompt=table[self._prompt_key][index].as_py(),
            data_source=table[self._source_key][index].as_py(),
            ground_truth=table[REWARD][index].as_py()[TRUTH],
            extra_info=extra or {},
        )
