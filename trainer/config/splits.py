"""Which tensor-parallel sizes a model allows, by the heads and widths of its config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config.model_folder import read_object
from trainer.config.problems import Problem
from trainer.config.schema import Config
from trainer.teams import ranks_of

_ENGINE = "actor_rollout_ref.rollout.tensor_model_parallel_size"
_ACTOR, _CRITIC = "actor_rollout_ref.model.path", "critic.model.path"
_TENSOR, _PIPELINE = "megatron.tensor_model_parallel_size", "megatron.pipeline_model_parallel_size"
MOST = 2**20  # heads, layers or columns: sizes that fit are looked for one by one


@dataclass(frozen=True)
class Shape:
    """What of a model is dealt to ranks. None: the configuration does not say."""

    heads: int
    key_values: int
    inner: int | None = None  # width of the MLP
    layers: int | None = None


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """Of a config.json, or of its part for text; None where it does not count heads by the usual name.

    >>> shape_of({"num_attention_heads": 14, "num_key_value_heads": 2})
    Shape(heads=14, key_values=2, inner=None, layers=None)
    """
    text = config.get("text_config")
    numbers = {**config, **text} if isinstance(text, dict) else config
    heads = _count(numbers, "num_attention_heads")
    if heads is None:
        return None
    key_values = _count(numbers, "num_key_value_heads") or heads
    return Shape(heads, key_values, _count(numbers, "intermediate_size"), _count(numbers, "num_hidden_layers"))


def _count(numbers: Mapping[str, Any], name: str) -> int | None:
    value = numbers.get(name)
    return value if type(value) is int and 0 < value <= MOST else None


def read_shape(folder: str) -> Shape | None:
    """Of a model folder; None for a hub id, or where nothing can be read."""
    try:
        return shape_of(read_object(Path(folder).expanduser() / "config.json"))
    except (OSError, ValueError, RuntimeError):
        return None


def engine_misfit(shape: Shape, size: int) -> str | None:
    """What `size` ranks of an engine can not share. SGLang and vLLM deal key-value heads, or copy each alike."""
    if shape.heads % size:
        return f"the model's {shape.heads} attention heads"
    if shape.key_values % size and size % shape.key_values:
        return f"the model's {shape.key_values} key-value heads, nor is it a multiple of them"
    return None


def megatron_misfits(shape: Shape, tensor: int, pipeline: int) -> Iterator[tuple[str, str]]:
    """What Megatron can not split, each with the name of the size: it copies no head."""
    if shape.heads % tensor:
        yield "tensor", f"the model's {shape.heads} attention heads"
    elif shape.key_values % tensor:
        yield "tensor", f"the model's {shape.key_values} key-value heads"
    elif shape.inner is not None and shape.inner % tensor:
        yield "tensor", f"the model's MLP of width {shape.inner}"
    if shape.layers is not None and shape.layers % pipeline:
        yield "pipeline", f"the model's {shape.layers} layers"


def model_problems(config: Config) -> Iterator[Problem]:
    """Of the models whose config.json can be read."""
    actor = read_shape(config.actor_rollout_ref.model.path)
    yield from split_problems(config, actor, read_shape(config.critic.model.path))


def split_problems(config: Config, actor: Shape | None, critic: Shape | None) -> Iterator[Problem]:
    """Sizes of the engine and of Megatron that do not fit the models."""
    size = config.ranks_per_engine
    if actor is not None and (what := engine_misfit(actor, size)) is not None:
        ranks = len(ranks_of(config, "rollout"))
        fitting = [n for n in range(1, actor.heads + 1) if engine_misfit(actor, n) is None and ranks % n == 0]
        yield _problem(_ENGINE, size, what, fitting, _ACTOR)
    part = config.actor_rollout_ref.actor
    if actor is not None and part.strategy == "megatron":
        yield from _megatron_problems("actor_rollout_ref.actor", part.megatron, actor, _ACTOR)
    if critic is not None and config.uses_critic and config.critic.strategy == "megatron":
        yield from _megatron_problems("critic", config.critic.megatron, critic, _CRITIC)


def _megatron_problems(section: str, sizes: Any, shape: Shape, path: str) -> Iterator[Problem]:
    tensor, pipeline = sizes.tensor_model_parallel_size, sizes.pipeline_model_parallel_size
    for kind, what in megatron_misfits(shape, tensor, pipeline):
        key, size = (f"{section}.{_TENSOR}", tensor) if kind == "tensor" else (f"{section}.{_PIPELINE}", pipeline)
        yield _problem(key, size, what, _divisors(shape, kind), path)


def _divisors(shape: Shape, kind: str) -> list[int]:
    if kind == "pipeline":
        return [n for n in range(1, (shape.layers or 1) + 1) if not list(megatron_misfits(shape, 1, n))]
    whole = Shape(shape.heads, shape.key_values, shape.inner)
    return [n for n in range(1, shape.heads + 1) if not list(megatron_misfits(whole, n, 1))]


def _problem(key: str, size: int, what: str, fitting: list[int], path: str) -> Problem:
    hint = f"set it to one of {', '.join(map(str, fitting))}"
    return Problem(key, f"{key}={size} does not divide {what}", hint, (path,))
