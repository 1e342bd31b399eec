"""`devkit agent play`: a person in the model's place, who sees the tokens and masks that a model would be given."""

from __future__ import annotations

import sys
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, replace

from devkit.agent.check import CheckOptions, config_of
from devkit.agent.game import Game
from devkit.console import emit
from devkit.errors import UsageError
from devkit.logs import redact
from trainer.agent.others import takes_rows
from trainer.agent.source import SEARCH
from trainer.data.episodes import TRAIN, seed_of
from trainer.retrieval import Retriever
from trainer.retrieval.node import given
from trainer.tokenizer import load_tokenizer


@dataclass(frozen=True)
class PlayOptions:
    env: str
    overrides: tuple[str, ...]
    tokenizer: str | None
    seed: int | None
    prompt: str | None
    json: bool = False


def main(options: PlayOptions) -> int:
    """The exit code: 0, or 1 where the environment failed. Raises ConfigError for words and files of no use."""
    config = config_of(CheckOptions(options.env, options.overrides, 1, (), None))
    if config.agent.env == SEARCH and not options.prompt:
        raise UsageError(f"{SEARCH} has no first observation: its prompts are rows of data", hint="give one: --prompt")
    if takes_rows(config.agent.env):
        raise UsageError(f"{config.agent.env} is played with rows of data", hint=f"devkit agent check {options.env}")
    model = config.actor_rollout_ref.model
    if options.tokenizer is not None:
        model = replace(model, tokenizer_path=options.tokenizer)
    tokenizer = load_tokenizer(model) if model.path or model.tokenizer_path else None
    seed = seed_of(config.trainer.seed, TRAIN, 0) if options.seed is None else options.seed
    game = Game(config, seed, tokenizer, options.prompt, quiet=options.json)
    with ExitStack() as stack:
        if options.json:
            stack.enter_context(redirect_stdout(sys.stderr))  # what an environment prints is talk
        if config.retriever.url is not None:
            wanted = config.retriever
            stack.enter_context(given(Retriever(str(wanted.url), wanted.topk, wanted.timeout)))
        record = game.play()
    if options.json:
        emit(redact.texts(record.to_json()))
    return 1 if record.failure else 0
