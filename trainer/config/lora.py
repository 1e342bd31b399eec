"""What must hold among the keys of low-rank adapters, and which keys have no effect with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from trainer.config.model_folder import Unreadable, file_size, read_object
from trainer.config.problems import Note, Problem
from trainer.config.schema import Config, CriticModelConfig, ModelConfig, RefFsdpConfig
from trainer.teams import ranks_of

ALL_LINEAR = "all-linear"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_ACTOR, _CRITIC, _REF = "actor_rollout_ref.model", "critic.model", "actor_rollout_ref.ref"
_OFF: tuple[Any, ...] = (None, False, [], {})
# Of an adapter's configuration: what changes it into another kind of adapter, unless it has one of these values.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": (None, "none"),
    # Others, as pissa and olora, take a part out of the weights that the adapter is added to, or train another way.
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
    **dict.fromkeys(("use_dora", "use_rslora", "use_qalora", "use_bdlora", "lora_bias", "layer_replication"), _OFF),
    **dict.fromkeys(("modules_to_save", "target_parameters", "trainable_token_indices"), _OFF),
    **dict.fromkeys(("rank_pattern", "alpha_pattern", "alora_invocation_tokens"), _OFF),
    **dict.fromkeys(("arrow_config", "kasa_config", "velora_config", "monteclora_config"), _OFF),
}


def models_of(config: Config) -> dict[str, ModelConfig | CriticModelConfig]:
    """Of actor and critic, by the names of their sections."""
    return {_ACTOR: config.actor_rollout_ref.model, _CRITIC: config.critic.model}


def lora_problems(config: Config) -> Iterator[Problem]:
    """Adapters on Megatron, expressions that are none, and an adapter to begin with that is another one."""
    strategies = {"actor_rollout_ref.actor.strategy": config.actor_rollout_ref.actor.strategy}
    strategies |= {"critic.strategy": config.critic.strategy} if config.uses_critic else {}
    for (section, model), (key, strategy) in zip(models_of(config).items(), strategies.items(), strict=False):
        if model.lora_rank and strategy == "megatron":
            rank = f"{section}.lora_rank"
            message = f"{rank}={model.lora_rank} is not there with strategy=megatron"
            yield Problem(rank, message, f"set {key}=fsdp, or {rank}=0", (key,))
        if model.lora_rank:
            yield from _pattern_problems(section, model)
    yield from _path_problems(config.actor_rollout_ref.model)


def _pattern_problems(section: str, model: ModelConfig | CriticModelConfig) -> Iterator[Problem]:
    patterns = {"target_modules": model.target_modules, "exclude_modules": model.exclude_modules or []}
    for name, given in patterns.items():
        key = f"{section}.{name}"
        for pattern in given:
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                message = f"{key}={pattern:.200} is neither a name nor a regular expression: {error}"
                yield Problem(key, message, "give all-linear, a list of names, or an expression of Python's re")
    if not model.target_modules:
        key = f"{section}.target_modules"
        yield Problem(key, f"{key}=[] leaves nothing to train", f"set {key}=all-linear, or {section}.lora_rank=0")


def _path_problems(model: ModelConfig) -> Iterator[Problem]:
    key = f"{_ACTOR}.lora_adapter_path"
    if model.lora_adapter_path is None:
        return
    if fault := adapter_fault(model.lora_adapter_path, model.lora_rank, model.lora_alpha):
        uses = (f"{_ACTOR}.lora_rank", f"{_ACTOR}.lora_alpha")
        yield Problem(key, f"{key}={model.lora_adapter_path} {fault[0]}", fault[1], uses)


def adapter_fault(path: str, rank: int, alpha: float) -> tuple[str, str] | None:
    """What is wrong with the adapter in a folder, and what to do about it."""
    layout = f"give a folder of peft's, with {CONFIG} and {WEIGHTS}"
    try:
        folder = Path(path).expanduser()
        found = read_object(folder / CONFIG)
        file_size(folder / WEIGHTS)
    except Unreadable as error:
        return f"has an {CONFIG} that cannot be read: {error}", layout
    except (OSError, ValueError, RuntimeError) as error:  # the last of a home of nobody
        return f"is no adapter: {getattr(error, 'strerror', None) or error}", layout
    for name, plain in _PLAIN.items():
        if found.get(name) not in plain:
            return f"has {name}={found.get(name)!r:.80}, which is not there", "give a plain LoRA adapter"
    for name, key, ours in (("r", "lora_rank", rank), ("lora_alpha", "lora_alpha", alpha)):
        theirs = found.get(name)
        if isinstance(theirs, bool) or not isinstance(theirs, (int, float)) or theirs != ours:
            return f"has {name}={theirs!r:.80}, and {key} is {ours:g}", f"set {_ACTOR}.{key}={theirs!r:.80}"
    return None


def lora_notes(config: Config) -> Iterator[Note]:
    """Keys of adapters where there are none, and of a reference that is the actor itself."""
    for section, model in models_of(config).items():
        plain = type(model)()
        for name in ("lora_alpha", "target_modules", "exclude_modules"):
            used = section == _ACTOR or config.uses_critic
            if used and not model.lora_rank and getattr(model, name) != getattr(plain, name):
                yield Note("inert", f"{section}.{name}", f"{section}.{name} has no effect: {section}.lora_rank is 0")
    for key in _of_the_reference(config) if is_the_actor(config) else ():
        yield Note("inert", key, f"{key} has no effect: the reference is the actor without its adapters")


def _of_the_reference(config: Config) -> Iterator[str]:
    """The keys that were given for a model of its own."""
    actor, ref, plain = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref, RefFsdpConfig()
    for each in fields(plain):
        value = getattr(ref.fsdp_config, each.name)
        if value != (actor.fsdp_config.dtype if each.name == "dtype" else getattr(plain, each.name)):
            yield f"{_REF}.fsdp_config.{each.name}"
    if ref.use_torch_compile != actor.use_torch_compile:
        yield f"{_REF}.use_torch_compile"


def is_the_actor(config: Config) -> bool:
    """Whether the reference is the actor without its adapters: where it has them, on the same ranks."""
    shares = ranks_of(config, "ref") == ranks_of(config, "actor")
    return config.uses_reference and bool(config.actor_rollout_ref.model.lora_rank) and shares


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a module's name is one of `patterns`, ends with one, or is what one describes as a regular expression.

    >>> matches("model.layers.0.mlp.up_proj", ["up_proj"]), matches("model.layers.0.mlp.up_proj", [r".*_proj"])
    (True, True)
    >>> matches("model.layers.0.mlp.up_proj", ["proj"])
    False
    """
    return any(
        name == pattern or name.endswith(f".{pattern}") or re.fullmatch(pattern, name) is not None
        for pattern in patterns
    )
