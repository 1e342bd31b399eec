"""The data of a run, read once, before Ray starts: what is wrong with a row shows before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.agent.again import environment_facts
from trainer.agent.others import takes_rows
from trainer.agent.player import read_environment
from trainer.agent.source import SEVERAL, TOOLS, makes_tasks
from trainer.config.agents import env_kwargs, shares_of
from trainer.config.schema import Config
from trainer.data.dataset import PromptDataset, load_prompts
from trainer.data.episodes import TRAIN, VALIDATION, Episodes
from trainer.data.loader import PromptLoader
from trainer.data.tool_prompts import ToolPrompts
from trainer.records import Prompts
from trainer.rewards import scorer_for
from trainer.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Data:
    """The prompts of a run. `validation` is None where no files are given."""

    train: PromptLoader
    validation: PromptLoader | None
    decode: Callable[[Sequence[int]], str]  # token ids to text
    notes: tuple[str, ...] = field(default=())
    environment: Mapping[str, Any] | None = None  # that makes the tasks, as samples tell of it


def read_data(config: Config) -> Data:
    """Tokenises all prompts. Raises DataError, and ModelError if there is no tokenizer.

    RewardError: a row's `data_source` has no reward function; now, and not after the first generation.
    """
    tokenizer = load_tokenizer(config.actor_rollout_ref.model)
    data, seed, pad = config.data, config.trainer.seed, tokenizer.pad_token_id
    seed = seed if data.seed is None else data.seed
    if config.agent.env is not None and makes_tasks(config.agent.env):
        return _episodes(config, config.agent.env, seed, tokenizer)
    notes: list[str] = []
    shown = ToolPrompts(config, tokenizer) if config.agent.env == TOOLS else None
    shown_in = None if shown is None else shown.of_row

    def load(files: list[str], most: int) -> PromptDataset:
        whole = takes_rows(config.agent.env)
        rows = load_prompts(files, data, tokenizer, max_samples=most, seed=seed, tools=shown_in, whole=whole)
        if rows.dropped:
            notes.append(f"{rows.dropped} prompts over {data.max_prompt_length} tokens left out of {', '.join(files)}")
        if config.custom_reward_function.path is None and not config.environment_scores:
            for source in rows.data_sources:
                scorer_for(source)
        return rows

    train = validation = None
    if not config.trainer.val_only:
        rows = load(data.train_files, data.train_max_samples)
        train = PromptLoader(rows, data.train_batch_size, pad_id=pad, shuffle=data.shuffle, seed=seed, drop_last=True)
    if data.val_files:
        rows = load(data.val_files, data.val_max_samples)
        size = data.val_batch_size or len(rows)
        validation = PromptLoader(rows, size, pad_id=pad, shuffle=False, seed=seed, drop_last=False, same=True)
    loader = train or validation  # with val_only there is nothing to train on
    assert loader is not None, "config.check asks for val_files with val_only"
    text = None if shown is None else shown.text
    known = environment_facts(config, text) if config.agent.env is not None else None
    notes += shown.notes() if shown is not None else []
    return Data(loader, validation, tokenizer.decode, tuple(notes), known)


def _episodes(config: Config, env: str, seed: int, tokenizer: Any) -> Data:
    """Of a run with an environment, which makes its own tasks."""
    pad, agent, data = tokenizer.pad_token_id, config.agent, config.data
    tags = env_kwargs(agent).get("envs", {}) if env == SEVERAL else {}
    tasks = Episodes(env, agent.episodes, seed, TRAIN, [*tags], shares_of(agent.tags))
    train = PromptLoader(tasks, data.train_batch_size, pad_id=pad, shuffle=data.shuffle, seed=seed, drop_last=True)
    validation = None
    if agent.val_episodes:
        tasks = Episodes(env, agent.val_episodes, seed, VALIDATION, [*tags], shares_of(agent.val_tags))
        size = data.val_batch_size or agent.val_episodes
        validation = PromptLoader(tasks, size, pad_id=pad, shuffle=False, seed=seed, drop_last=False, same=True)
    known = environment_facts(config, read_environment(config))
    return Data(train, validation, tokenizer.decode, environment=known)


def total_steps(config: Config, loader: PromptLoader) -> int:
    """Steps of the whole run, earlier parts of a resumed one included."""
    return config.trainer.total_training_steps or config.trainer.total_epochs * len(loader)


def endless(loader: PromptLoader) -> Iterator[Prompts]:
    """Epoch after epoch, from the loader's position on."""
    while True:
        yield from loader
