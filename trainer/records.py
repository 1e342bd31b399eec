"""What passes between the phases of a step: one frozen record per arrow, a later phase has a later type.

    Prompts -> Rollout -> Experience -> TrainBatch

Shapes: B sequences, P prompt columns (left-padded), T response columns (right-padded). Masks are 1 on real tokens.
`rows.py` works on any of them, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer.agent.episode import Episode

MOST_TURNS = 2**16  # of a conversation
Metrics = dict[str, float]
Sample = tuple[int, int]  # a sequence, wherever it goes: its prompt's uid, and its number among the prompt's samples


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
    turn_B: Tensor | None = None  # int64: which generation of a conversation this is, from 0; None: the only one
    room_B: Tensor | None = None  # int64: the most tokens of each; None: as the sampling says

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What each sequence is known by; the turns of a sample follow upon one another."""
        number_B = self.sample_B if self.turn_B is None else self.sample_B * MOST_TURNS + self.turn_B
        return tuple(zip(self.uid_B.tolist(), number_B.tolist(), strict=True))


@dataclass(frozen=True)
class Rollout:
    """What the engine answered. `logp_BT` is of the temperature-scaled distribution, before top-p and top-k."""

    prompts: Prompts
    response_BT: Tensor  # int64, EOS included, then padding
    mask_BT: Tensor  # int64: 1 on what was sampled, EOS included; of a conversation, with gaps
    logp_BT: Tensor  # float32, 0 outside the mask
    present_BT: Tensor | None = None  # int64: of a conversation, 1 on observations, too; None: the mask
    episodes: tuple[Episode, ...] | None = None  # of conversations: `agent/laying.py`

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def ids_BS(self) -> Tensor:
        """Prompt and response side by side, S = P + T."""
        return torch.cat([self.prompts.ids_BP, self.response_BT], dim=1)

    @property
    def attention_BS(self) -> Tensor:
        return torch.cat([self.prompts.mask_BP, self.context_BT], dim=1)

    @property
    def context_BT(self) -> Tensor:
        """What of the response the model reads: without gaps."""
        return self.mask_BT if self.present_BT is None else self.present_BT

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each sequence, prompt and response together."""
        return self.prompts.mask_BP.sum(-1) + self.context_BT.sum(-1)


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
    placed_BT: Tensor | None = None  # float32: of conversations, each turn's at its last token


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
    trained: tuple[tuple[tuple[Sample, ...], ...], ...] = ()  # by step and copy of the model, what it had losses of
