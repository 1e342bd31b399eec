"""Real engines, asked as the trainer asks them, for tokens that `plain_draws.py` can judge.

Before anything is trained, their weights are those in the model's folder: nothing is saved for it. Top-p, top-k and
temperature are each asked for alone, at values that act, whatever the command says of them; so that nothing but chance
makes rows differ, all have the same prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from devkit.smoke.plain_draws import Choice, Request, Sample
from trainer.config.schema import Config
from trainer.data.loader import PromptLoader
from trainer.data.reading import Data
from trainer.group import WorkerGroup
from trainer.records import Prompts, Rollout, Row
from trainer.rows import repeat, split_rows
from trainer.teams import ranks_of
from trainer.validation import validate

PROMPTS, SAMPLES, PROMPT_TOKENS = 16, 2, 12
SPECIALS = 3  # token ids from 0 on that stand in no prompt: the tiny tokenizer's
TOP_P, TOP_K = 0.6, 3
TEMPERATURE, NEXT_STEP, JUST_TOP_P, JUST_TOP_K = "temperature", "temperature, next step", "top-p", "top-k"
FIRST_STEP, VALIDATION, AGAIN = "first step", "validation", "validation again"
NAMES = (TEMPERATURE, NEXT_STEP, JUST_TOP_P, JUST_TOP_K, VALIDATION, AGAIN, FIRST_STEP)
FILTERS: Mapping[str, Mapping[str, Any]] = {
    TEMPERATURE: {},
    NEXT_STEP: {},
    JUST_TOP_P: {"top_p": TOP_P},
    JUST_TOP_K: {"top_k": TOP_K},
}
ALIKE = (TEMPERATURE, NEXT_STEP)  # but for the step
STEPS_FROM = 1_000_001  # no step of the run: it draws from streams of its own


def ask(workers: WorkerGroup, choice: Choice, seed: int) -> list[Request]:
    """Answers to requests of training and of validation; nothing of the run depends on them."""
    config = workers.config
    alike = repeat(_prompts(choice.vocabulary, seed, texts=1), SAMPLES)
    requests = []
    for number, (name, filters) in enumerate(FILTERS.items()):
        sampling = {"temperature": choice.temperature, "top_p": 1.0, "top_k": -1, "do_sample": True} | dict(filters)
        other = WorkerGroup(workers.calls, _with_sampling(config, sampling))
        rollout = other.generate(alike, STEPS_FROM + number, validate=False)
        requests.append(_request(name, rollout, other.config, validation=False))
    prompts = _prompts(choice.vocabulary, seed, texts=PROMPTS)
    return requests + [_validation(name, workers, prompts) for name in (VALIDATION, AGAIN)]


def of_first_step(rollout: Rollout, config: Config) -> Request:
    """What the run itself drew in its first step, before any update."""
    return _request(FIRST_STEP, rollout, config, validation=False)


def _prompts(vocabulary: int, seed: int, texts: int) -> Prompts:
    """Made-up ones, in `texts` different forms."""
    generator = torch.Generator().manual_seed(seed)
    ids_XP = torch.randint(SPECIALS, vocabulary, (texts, PROMPT_TOKENS), generator=generator)
    ids_BP = ids_XP[torch.arange(PROMPTS) % texts]
    rows = tuple(Row(row, "the smoke test's own prompts", "smoke", "") for row in range(PROMPTS))
    return Prompts(ids_BP, torch.ones_like(ids_BP), torch.arange(PROMPTS), torch.zeros(PROMPTS).long(), rows)


def _with_sampling(config: Config, sampling: Mapping[str, Any]) -> Config:
    part = config.actor_rollout_ref
    return replace(config, actor_rollout_ref=replace(part, rollout=replace(part.rollout, **sampling)))


def _validation(name: str, workers: WorkerGroup, prompts: Prompts) -> Request:
    """By the trainer's own function for it."""
    overheard = _Overheard(workers.calls, workers.config)
    data = Data(cast(PromptLoader, None), cast(PromptLoader, [prompts]), str)
    validate(overheard, data, workers.config, 0)
    return _request(name, overheard.rollout, workers.config, validation=True)


class _Overheard(WorkerGroup):
    """Keeps what was generated last."""

    rollout: Rollout

    def generate(self, prompts: Prompts, step: int, *, validate: bool) -> Rollout:
        self.rollout = super().generate(prompts, step, validate=validate)
        return self.rollout


def _request(name: str, rollout: Rollout, config: Config, *, validation: bool) -> Request:
    """As the configuration has it, which `trainer.rollout.settings` reads for the engines."""
    part = config.actor_rollout_ref.rollout
    asked = part.val_kwargs if validation else part
    temperature = asked.temperature if asked.do_sample else 0.0
    confused = {1.0, part.temperature, part.val_kwargs.temperature, temperature**2}
    confused |= {1 / temperature} if temperature else set()
    others = sorted(other for other in confused if other > 0 and other != temperature)
    filters = (asked.top_p, asked.top_k) if asked.do_sample else (1.0, -1)
    return Request(name, temperature, *filters, others, _samples(rollout, config))


def _samples(rollout: Rollout, config: Config) -> list[Sample]:
    prompts = rollout.prompts
    engines = len(ranks_of(config, "rollout")) // config.ranks_per_engine
    parts = split_rows(torch.arange(len(rollout)), engines)
    engine_B = [engine for engine, part in enumerate(parts) for _ in range(len(part))]
    return [
        Sample(
            prompt=prompts.ids_BP[row][prompts.mask_BP[row].bool()].tolist(),
            response=rollout.response_BT[row][rollout.mask_BT[row].bool()].tolist(),
            uid=int(prompts.uid_B[row]),
            sample=int(prompts.sample_B[row]),
            engine=engine_B[row],
            logp=rollout.logp_BT[row][rollout.mask_BT[row].bool()].tolist(),
        )
        for row in range(len(rollout))
    ]
