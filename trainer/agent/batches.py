"""Conversations with an engine that computes whole batches: `interfaces.Talk` over `Engine.generate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from trainer.agent.laying import left_padded
from trainer.interfaces import Engine, Request, Sampling
from trainer.records import Prompts
from trainer.rollout.server import Answer


class Batches:
    """What is asked together is computed together, within the call."""

    gathers = True
    lines: Sequence[object] = ()

    def __init__(self, engine: Engine, sampling: Sampling, pad_id: int) -> None:
        self._engine, self._sampling, self._pad_id = engine, sampling, pad_id
        self._answers: list[Answer] = []
        self.gone = False

    def ask(self, requests: Sequence[Request]) -> None:
        """Computes the answers, too: in an order of their own, not that in which environments were done."""
        requests = sorted(requests, key=lambda each: each.sample)
        answers = self._engine.generate(self._prompts(requests), self._sampling)
        lengths = answers.mask_BT.sum(-1).tolist()
        rows = zip(requests, answers.response_BT.tolist(), answers.logp_BT.tolist(), lengths, strict=True)
        for request, ids, logp, count in rows:
            if count:
                self._answers.append(Answer(request.row, ids[:count], logp[:count]))
            else:
                self.gone = True

    def drop(self, row: int) -> None:
        """Its answer has come too late."""
        self._answers = [answer for answer in self._answers if answer.index != row]

    def patience(self) -> float | None:
        """None is to be waited for."""
        return 0.0 if self._answers else None

    def take(self) -> list[Answer]:
        found, self._answers = self._answers, []
        return found

    def close(self) -> None:
        """Nothing is under way."""

    def _prompts(self, requests: Sequence[Request]) -> Prompts:
        """Contexts so far, whose draws depend on the row, its sample and the turn alone."""
        ids_BP, mask_BP = left_padded([request.ids for request in requests], self._pad_id)

        def numbers(values: Iterable[int]) -> torch.Tensor:
            return torch.tensor(list(values), dtype=torch.int64)

        return Prompts(
            ids_BP,
            mask_BP,
            uid_B=numbers(request.sample[0] for request in requests),
            sample_B=numbers(request.sample[1] for request in requests),
            rows=tuple(request.of for request in requests),
            turn_B=numbers(request.turn for request in requests),
            room_B=numbers(request.most for request in requests),
        )
