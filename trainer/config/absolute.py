"""Paths of a command as the driver means them: made absolute there, since workers have working folders of their own.

On a cluster that was running before, a worker's working folder is where somebody has called `ray start`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trainer.agent.source import is_file
from trainer.config.schema import Config, RolloutConfig


def absolute(config: Config) -> Config:
    """The same configuration with every path absolute and `~` expanded, as this process sees them.

    What is read stays as it is where nothing is there: a model's name on the hub is no path.
    """
    part, critic, trainer = config.actor_rollout_ref, config.critic, config.trainer
    model = replace(
        part.model,
        path=_found(part.model.path),
        tokenizer_path=_perhaps(_found, part.model.tokenizer_path),
        lora_adapter_path=_perhaps(_found, part.model.lora_adapter_path),
    )
    return replace(
        config,
        data=replace(
            config.data,
            train_files=[_found(name) for name in config.data.train_files],
            val_files=[_found(name) for name in config.data.val_files],
        ),
        actor_rollout_ref=replace(part, model=model, rollout=_rollout(part.rollout)),
        critic=replace(critic, model=replace(critic.model, path=_found(critic.model.path))),
        custom_reward_function=replace(
            config.custom_reward_function, path=_perhaps(_found, config.custom_reward_function.path)
        ),
        agent=replace(config.agent, env=_perhaps(_class, config.agent.env)),
        retriever=replace(
            config.retriever,
            serve=_perhaps(_found, config.retriever.serve),
            encoder=_perhaps(_found, config.retriever.encoder),
        ),
        trainer=replace(
            trainer,
            default_local_dir=_made(trainer.default_local_dir),
            resume_from_path=_perhaps(_found, trainer.resume_from_path),
            rollout_data_dir=_perhaps(_made, trainer.rollout_data_dir),
            validation_data_dir=_perhaps(_made, trainer.validation_data_dir),
            capsule_dir=_perhaps(_made, trainer.capsule_dir),
        ),
        global_profiler=replace(config.global_profiler, save_path=_made(config.global_profiler.save_path)),
    )


def _rollout(config: RolloutConfig) -> RolloutConfig:
    keys = config.multi_turn
    yaml, functions = (_perhaps(_found, path) for path in (keys.tool_config_path, keys.function_tool_path))
    return replace(config, multi_turn=replace(keys, tool_config_path=yaml, function_tool_path=functions))


def _perhaps(meant: Callable[[str], str], name: str | None) -> str | None:
    return None if name is None else meant(name)


def _found(name: str) -> str:
    """Of something to be read."""
    try:
        path = Path(name).expanduser()
        return str(path.absolute()) if name and path.exists() else name
    except (OSError, ValueError, RuntimeError):  # too long, forbidden; a zero byte; a home of nobody
        return name


def _class(env: str) -> str:
    """Of a class in a file: `FILE.py:CLASS`."""
    path, colon, name = env.rpartition(":")
    return f"{_found(path)}{colon}{name}" if is_file(env) else env


def _made(name: str) -> str:
    """Of a folder to be written."""
    try:
        return str(Path(name).expanduser().absolute())
    except RuntimeError:  # a home of nobody
        return name
