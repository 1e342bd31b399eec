"""The prompts of parquet files, read and tokenised once more, row by row: nothing of the trainer's reader is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from devkit.smoke.row_reader import RowReader
from trainer.config.schema import DataConfig

RowId = tuple[str, int]  # a file as the command names it, and the row's number in it


@dataclass(frozen=True)
class DataPlan:
    """What configuration and files say of the training data."""

    sizes: Mapping[str, int]  # rows of each file
    rows: tuple[RowId, ...] | None  # those trained on, in the files' order; None: a random part of them
    kept: int | None  # how many are trained on; None: it depends on which part that is
    batch: int  # prompts per step
    shuffle: bool
    doubled: bool = False  # a file is given twice: its rows cannot be told apart

    @property
    def steps(self) -> int | None:
        """Of an epoch; what does not fill a batch is left out."""
        return None if self.kept is None else self.kept // self.batch


class FileRows:
    """The prompt column of the training files. What cannot be read ends a run before anything is looked at here."""

    def __init__(self, data: DataConfig, tokenizer: Any) -> None:
        self.data = data
        self._tokenizer = tokenizer
        self._rows = RowReader(data.prompt_key, data.reward_fn_key)
        self._known: dict[RowId, list[int]] = {}

    def tokens(self, row: RowId) -> list[int]:
        """Of the whole prompt, however long it is."""
        if row not in self._known:
            file, index = row
            self._known[row] = tokens_of(self._rows(file, index).prompt, self._tokenizer)
        return self._known[row]

    @cached_property
    def plan(self) -> DataPlan:
        """The rows that the configuration asks for: a part of so many, and of these the ones that are not too long."""
        data = self.data
        sizes = {file: self._rows.count(file) for file in data.train_files}
        everything = [(file, index) for file in data.train_files for index in range(sizes[file])]
        most = data.train_max_samples if data.train_max_samples >= 0 else len(everything)
        order = (data.train_batch_size, data.shuffle, len(sizes) < len(data.train_files))
        if most < len(everything) and data.shuffle:
            return DataPlan(sizes, None, None if data.filter_overlong_prompts else most, *order)
        rows = everything[:most]
        if data.filter_overlong_prompts:
            rows = [row for row in rows if len(self.tokens(row)) <= data.max_prompt_length]
        return DataPlan(sizes, tuple(rows), len(rows), *order)


def tokens_of(prompt: str | list[dict[str, str]], tokenizer: Any) -> list[int]:
    """A text as it is; messages through the chat template, or their contents line by line where there is none."""
    if isinstance(prompt, str):
        text = prompt
    elif tokenizer.chat_template:
        found = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False)
        return [int(token) for token in found]
    else:
        text = "\n".join(message["content"] for message in prompt)
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def cut_to(ids: Sequence[int], limit: int, side: str) -> list[int]:
    """`ids` without what is beyond `limit`, on the `left`, on the `right` or in the `middle`, by its position.

    >>> cut_to([1, 2, 3, 4, 5], 3, "left"), cut_to([1, 2, 3, 4, 5], 3, "right"), cut_to([1, 2, 3, 4, 5], 3, "middle")
    ([3, 4, 5], [1, 2, 3], [1, 4, 5])
    """
    over = len(ids) - limit
    if over <= 0:
        return list(ids)
    first = {"left": 0, "right": limit, "middle": limit // 2}[side]  # position of the first token that goes
    return [token for position, token in enumerate(ids) if not first <= position < first + over]
