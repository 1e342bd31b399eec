"""What passes between the phases of a step: one frozen record per arrow, a later phase has a later type.

    Prompts -> Rollout -> Experience -> TrainBatch

Shapes: B sequences, P prompt columns (left-padded), T response columns (right-padded). Masks are 1 on real tokens.
`take`, `runs`, `split`, `concat` and `repeat` work on any of them, row by row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

Record = TypeVar("Record")
Metrics = dict[str, float]


@dataclass(frozen=True)
class Row:
    """One row of a data file: what a reward function needs, and how to name the row in an error.

    >>> Row(index=17, file="train.parquet", data_source="openai/gsm8k", ground_truth="72").label
    'row 17 of train.parquet'
    """

    index: int  # in its file
    file: str
    data_source: str
    ground_truth: Any
    extra_info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"row {self.index} of {self.file}"


@dataclass(frozen=True)
class Prompts:
    """Tokenised prompts, one per sequence to generate."""

    ids_BP: Tensor  # int64
    mask_BP: Tensor  # int64
    uid_B: Tensor  # int64: position of the prompt in its epoch; the samples of one prompt share it
    sample_B: Tensor  # int64: 0 .. n-1 among the samples of one prompt
    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Rollout:
    """What the engine answered. `logp_BT` is of the temperature-scaled distribution, before top-p and top-k."""

    prompts: Prompts
    response_BT: Tensor  # int64, EOS included, then padding
    mask_BT: Tensor  # int64: 1 up to and including EOS
    logp_BT: Tensor  # float32, 0 outside the mask

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def ids_BS(self) -> Tensor:
        """Prompt and response side by side, S = P + T."""
        return torch.cat([self.prompts.ids_BP, self.response_BT], dim=1)

    @property
    def attention_BS(self) -> Tensor:
        return torch.cat([self.prompts.mask_BP, self.mask_BT], dim=1)

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each sequence, prompt and response together."""
        return self.prompts.mask_BP.sum(-1) + self.mask_BT.sum(-1)


@dataclass(frozen=True)
class Experience:
    """A rollout with everything that is known before any update."""

    rollout: Rollout
    scores_BT: Tensor  # float32: the reward function's score at the last response token
    old_logp_BT: Tensor  # float32: the actor before this step's updates
    ref_logp_BT: Tensor | None  # float32: the frozen reference, if KL is used
    values_BT: Tensor | None  # float32: the critic before this step's updates, 0 outside the mask

    def __len__(self) -> int:
        return len(self.rollout)


@dataclass(frozen=True)
class TrainBatch:
    """What the updates need."""

    experience: Experience
    rewards_BT: Tensor  # float32: scores less the KL penalty
    advantages_BT: Tensor  # float32
    returns_BT: Tensor  # float32
    weights_BT: Tensor | None = None  # float32: of truncated importance sampling, if it is on

    def __len__(self) -> int:
        return len(self.experience)


@dataclass(frozen=True)
class Scores:
    """What the reward function said of each response; `extras` are its further numbers, by name."""

    score_B: Tensor  # float32
    extras: Mapping[str, Tensor]  # [B], float32


@dataclass(frozen=True)
class LogProbs:
    """Log-probs of the response tokens under one model, and the entropy of its distribution there (nats)."""

    logp_BT: Tensor  # float32, 0 outside the mask
    entropy_BT: Tensor  # float32, 0 outside the mask

    def cpu(self) -> LogProbs:
        """The same on the host."""
        return LogProbs(self.logp_BT.cpu(), self.entropy_BT.cpu())


@dataclass(frozen=True)
class Totals:
    """Normalisers of a *global* mini-batch: with them, the losses of its parts add up to the loss of the whole."""

    tokens: float  # response tokens
    sequences: float  # sequences with at least one response token
    horizon: float  # of seq-mean-token-sum-norm: max_response_length, or loss_scale_factor


@dataclass(frozen=True)
class MiniBatch:
    """One rank's share of a global mini-batch: the rows of one optimizer step."""

    batch: TrainBatch
    totals: Totals  # of the whole mini-batch, all ranks together
    passes: tuple[Tensor, ...]  # row numbers in `batch` of each micro-batch; equally many on every rank


@dataclass(frozen=True)
class UpdateReport:
    """What an update did, one entry per optimizer step; the losses are those of the whole mini-batch."""

    steps: tuple[Metrics, ...]
    untrained: tuple[str, ...]  # parameters that got no gradient in any of the steps
    lr: float
    skipped: int  # optimizer steps left out because the gradient was not finite
    loss_scale: float | None = None  # of the last step, in fp16


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
        if dataclasses.is_dataclass(value) and not isinstance(value, (Row, type)):
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
        if dataclasses.is_dataclass(value) and not isinstance(value, (Row, type)):
            columns = [cut(getattr(value, f.name)) for f in dataclasses.fields(value)]
            return [type(value)(*fields) for fields in zip(*columns, strict=True)]
        if isinstance(value, tuple) and not (value and isinstance(value[0], (Tensor, tuple))):
            return [value[rows] for rows in bounds]
        return list(zip(*(cut(part) for part in value), strict=True))

    return cut(record)  # type: ignore[return-value]


def split(record: Record, parts: Sequence[Sequence[int]]) -> list[Record]:
    """`take` of each part's rows, but each tensor is gathered only once and then cut: with many parts, that is quick.

    >>> split(torch.tensor([10, 20, 30]), [[2, 0], [1]])
    [tensor([30, 10]), tensor([20])]
    """
    order = torch.tensor([row for rows in parts for row in rows], dtype=torch.int64)
    return runs(take(record, order), [len(rows) for rows in parts])


def to_device(record: Record, device: torch.device) -> Record:
    """A record with its tensors on `device`."""

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device)
        if dataclasses.is_dataclass(value) and not isinstance(value, (Row, type)):
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
