"""Batches of prompts in an order that depends on (seed, epoch) alone.

So `(epoch, batch)` is the whole state, and a resumed run sees what the uninterrupted one would have. torchdata's
StatefulDataLoader (0.11) resumes exactly too, but its state knows no epoch, takes 5.7 KB, doesn't notice changed data,
and after an epoch's last batch resumes with an empty epoch. Prompts lie tokenised in memory: its workers have no work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from trainer.data.dataset import Example
from trainer.errors import CheckpointError, ConfigError, DataError
from trainer.records import Prompts

MOST = 2**31  # epochs, and batches of one: their product with the rows is counted in 64 bits


class Examples(Protocol):
    """What a loader takes its rows from."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


def collate(examples: Sequence[Example], *, pad_id: int, first_uid: int) -> Prompts:
    """One batch: ids left-padded with `pad_id` to the longest prompt; uids count up from `first_uid`."""
    longest = max(len(example.ids) for example in examples)
    ids_BP = torch.full((len(examples), longest), pad_id, dtype=torch.int64)
    mask_BP = torch.zeros_like(ids_BP)
    for i, example in enumerate(examples):
        ids_BP[i, longest - len(example.ids) :] = torch.tensor(example.ids, dtype=torch.int64)
        mask_BP[i, longest - len(example.ids) :] = 1
    return Prompts(
        ids_BP=ids_BP,
        mask_BP=mask_BP,
        uid_B=torch.arange(first_uid, first_uid + len(examples)),
        sample_B=torch.zeros(len(examples), dtype=torch.int64),
        rows=tuple(example.row for example in examples),
    )


class PromptLoader:
    """Iterating gives the rest of the current epoch, batch by batch, and then moves on to the next epoch.

    A batch counts as consumed when it is handed out: a state saved while it is worked on resumes with the next one.
    Training: `shuffle=True, drop_last=True`. Validation: both False.
    `uid_B` is epoch * rows + position in the epoch's order: unique within the run. With `same=True`, as validation has
    it, each epoch is the first one again: what is drawn for a prompt depends on its uid.

    Raises DataError if the data don't fill one batch, ConfigError for a batch size below 1.
    """

    def __init__(
        self,
        dataset: Examples,
        batch_size: int,
        *,
        pad_id: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        same: bool = False,
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._pad_id = pad_id
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._same = same
        self._epoch = 0
        self._batch = 0  # consumed in this epoch
        if batch_size < 1:
            raise ConfigError(f"a batch of {batch_size} prompts", hint="data.train_batch_size must be at least 1")
        if len(self) == 0:
            raise DataError(
                f"data.train_batch_size={batch_size} is larger than the {len(dataset)} rows",
                hint=f"set it to at most {len(dataset)}, or give more data",
            )

    def __len__(self) -> int:
        """Batches per epoch."""
        whole, rest = divmod(len(self._dataset), self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    @property
    def epoch(self) -> int:
        """The epoch of the batch handed out last; after the epoch's end, the next one."""
        return self._epoch

    def __iter__(self) -> Iterator[Prompts]:
        if self._batch == len(self):  # the last epoch's consumer left right after its last batch
            self._next_epoch()
        order = self._order()
        while self._batch < len(self):
            start = self._batch * self._batch_size
            examples = [self._dataset[int(i)] for i in order[start : start + self._batch_size]]
            self._batch += 1
            yield collate(examples, pad_id=self._pad_id, first_uid=self._epoch * len(self._dataset) + start)
        self._next_epoch()

    def _next_epoch(self) -> None:
        self._epoch, self._batch = self._epoch + (not self._same), 0

    def _order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The rows of this epoch, in order."""
        if not self._shuffle:
            return np.arange(len(self._dataset))
        return np.random.default_rng([self._seed % 2**64, self._epoch]).permutation(len(self._dataset))

    def _fingerprint(self) -> dict[str, int]:
        """What the order depends on besides the position."""
        return {
            "rows": len(self._dataset),
            "batch_size": self._batch_size,
            "shuffle": int(self._shuffle),
            "seed": self._seed,
            "drop_last": int(self._drop_last),
        }

    def state_dict(self) -> dict[str, int]:
        """A few integers: the position, and what it refers to."""
        done = self._batch == len(self)
        position = {"epoch": self._epoch + done, "batch": 0 if done else self._batch}
        return {**position, **self._fingerprint()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from a saved position.

        Raises CheckpointError if there is none in `state`, and in mid-epoch if the data, the batch size or the order is
        not the one it was saved with: the position would mean other rows. At an epoch's start such a change is fine.
        """
        for name in ("epoch", "batch"):
            if not 0 <= state.get(name, -1) < MOST:
                raise CheckpointError(
                    f"the saved data position has no {name}: {dict(state)!r:.80}",
                    hint="choose another checkpoint, or start over: trainer.resume_mode=disable",
                )
        changed = [
            f"{name} was {state.get(name)} and is {value}"
            for name, value in self._fingerprint().items()
            if state.get(name) != value
        ]
        if state["batch"] and changed:
            position = f"batch {state['batch']} of epoch {state['epoch']}"
            raise CheckpointError(
                f"the saved data position, {position}, doesn't fit: {'; '.join(changed)}",
                hint="resume with the data settings of the first run, or start over: trainer.resume_mode=disable",
            )
        self._epoch, self._batch = state["epoch"], state["batch"]
