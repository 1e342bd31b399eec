"""Records by their rows: taken, cut, joined, moved. What is true of one tensor is done to all of a record's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainer.agent.episode import Episode
from trainer.records import Prompts, Row

Record = TypeVar("Record")
_WHOLE = (Row, Episode, type)  # of one row: nothing in them is by row


def take(record: Record, index: Tensor | slice) -> Record:
    """The rows `index` of a record, in that order.

    >>> take((torch.tensor([10, 20, 30]), ("a", "b", "c")), torch.tensor([2, 0]))
    (tensor([30, 10]), ('c', 'a'))
    """
    rows = index if isinstance(index, slice) else index.tolist()

    def pick(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Tensor):
            return value[index]
        if dataclasses.is_dataclass(value) and not isinstance(value, _WHOLE):
            return dataclasses.replace(
                value, **{f.name: pick(getattr(value, f.name)) for f in dataclasses.fields(value)}
            )
        if isinstance(value, tuple) and value and not isinstance(value[0], (Tensor, tuple)):
            return value[rows] if isinstance(rows, slice) else tuple(value[i] for i in rows)
        return tuple(pick(part) for part in value)

    return pick(record)  # type: ignore[no-any-return]


def runs(record: Record, sizes: Sequence[int]) -> list[Record]:
    """The rows of a record in runs of these lengths; the tensors are views.

    >>> runs((torch.tensor([10, 20, 30]), ("a", "b", "c")), [2, 1])
    [(tensor([10, 20]), ('a', 'b')), (tensor([30]), ('c',))]
    """
    bounds = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]

    def cut(value: Any) -> Sequence[Any]:
        if value is None:
            return [None] * len(sizes)
        if isinstance(value, Tensor):
            return value.split(list(sizes))  # type: ignore[no-any-return]
        if dataclasses.is_dataclass(value) and not isinstance(value, _WHOLE):
            columns = [cut(getattr(value, f.name)) for f in dataclasses.fields(value)]
            return [type(value)(*fields) for fields in zip(*columns, strict=True)]
        if isinstance(value, tuple) and not (value and isinstance(value[0], (Tensor, tuple))):
            return [value[rows] for rows in bounds]
        return list(zip(*(cut(part) for part in value), strict=True))

    return list(cut(record))


def split(record: Record, parts: Sequence[Sequence[int]]) -> list[Record]:
    """`take` of each part's rows, but each tensor is gathered only once and then cut: with many parts, that is quick.

    >>> split(torch.tensor([10, 20, 30]), [[2, 0], [1]])
    [tensor([30, 10]), tensor([20])]
    """
    order = torch.tensor([row for rows in parts for row in rows], dtype=torch.int64)
    return runs(take(record, order), [len(rows) for rows in parts])


def split_rows(record: Any, parts: int) -> list[Any]:
    """A record's rows in `parts` runs whose lengths differ by one at most.

    >>> split_rows(torch.tensor([10, 20, 30]), 2)
    [tensor([10, 20]), tensor([30])]
    """
    size, more = divmod(len(record), parts)
    return runs(record, [size + (part < more) for part in range(parts)])


def indices(passes: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
    """Row numbers as tensors."""
    return tuple(torch.tensor(rows) for rows in passes)


def to_device(record: Record, device: torch.device) -> Record:
    """A record with its tensors on `device`."""

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device)
        if dataclasses.is_dataclass(value) and not isinstance(value, _WHOLE):
            return dataclasses.replace(
                value, **{f.name: move(getattr(value, f.name)) for f in dataclasses.fields(value)}
            )
        return value

    return move(record)  # type: ignore[no-any-return]


def concat(records: Sequence[Record]) -> Record:
    """Records joined row by row; prompts are padded on the left and responses on the right to the longest.

    >>> concat([torch.ones(1, 2), torch.ones(1, 3)])
    tensor([[1., 1., 0.],
            [1., 1., 1.]])
    """
    return _join(list(records), "")  # type: ignore[no-any-return]


def _join(values: list[Any], name: str) -> Any:
    first = values[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return _join_tensors(values, left=name.endswith("_BP"))
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        joined = {f.name: _join([getattr(v, f.name) for v in values], f.name) for f in dataclasses.fields(first)}
        return dataclasses.replace(first, **joined)
    return tuple(item for value in values for item in value)


def _join_tensors(tensors: list[Tensor], left: bool) -> Tensor:
    if tensors[0].dim() == 1:
        return torch.cat(tensors)
    width = max(t.shape[1] for t in tensors)
    return torch.cat([pad_to(t, width, left=left) for t in tensors])


def pad_to(x_BX: Tensor, width: int, *, left: bool, value: float = 0) -> Tensor:
    """`x` [B, X] padded with `value` to `width` columns."""
    missing = width - x_BX.shape[1]
    return torch.nn.functional.pad(x_BX, (missing, 0) if left else (0, missing), value=value) if missing else x_BX


def repeat(prompts: Prompts, n: int) -> Prompts:
    """Each prompt `n` times in a row, numbered by `sample_B`."""
    if n == 1:
        return prompts
    index = torch.arange(len(prompts)).repeat_interleave(n)
    return dataclasses.replace(take(prompts, index), sample_B=torch.arange(n).repeat(len(prompts)))
