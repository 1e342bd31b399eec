"""What must hold among the keys of the engine `megatron`, and which keys of the other engine have no effect with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from trainer.config.problems import Note, Problem
from trainer.config.schema import Config, MegatronConfig
from trainer.learner.megatron.available import installed
from trainer.teams import KEY, LEARNERS, ranks_of, roles_of

_ACTOR, _CRITIC = "actor_rollout_ref.actor", "critic"
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
_RANKS = ("trainer.nnodes", "trainer.n_gpus_per_node")
_MAPPING = tuple(f"{KEY}.{role}" for role in LEARNERS)


def megatron_problems(config: Config) -> Iterator[Problem]:
    """Parallel sizes that do not divide the ranks or differ between the models, and recomputation half described."""
    for key, megatron in _sections(config).items():
        yield from _recompute_problems(f"{key}.override_transformer_config", megatron)
    yield from split_problems(config)
    for name in _SIZES if config.uses_critic and config.critic.strategy == "megatron" else ():
        mine, other = getattr(config.critic.megatron, name), getattr(config.actor_rollout_ref.actor.megatron, name)
        if mine != other:
            key = f"critic.megatron.{name}"
            message = f"{key}={mine} is not the actor's {other}, and they share their ranks"
            yield Problem(key, message, "remove it: it follows the actor's", (f"{_ACTOR}.megatron.{name}",))
    trainer = config.trainer
    if config.uses_megatron and trainer.capsule_dir is not None and trainer.capsule_weights == "checkpoint":
        key = "trainer.capsule_weights"
        message = f"{key}=checkpoint has no use with strategy=megatron: a replay reads FSDP2's checkpoints alone"
        yield Problem(key, message, f"set {key}=all or {key}=model", ("trainer.capsule_dir",))


def split_problems(config: Config) -> Iterator[Problem]:
    """Ranks that do not come out as whole copies of the model."""
    actor = config.actor_rollout_ref.actor.megatron  # its sizes hold for all models
    split = actor.tensor_model_parallel_size * actor.pipeline_model_parallel_size
    uneven = [ranks for role in _roles(config) if len(ranks := ranks_of(config, role)) % split]
    if uneven:
        key, both = f"{_ACTOR}.megatron", " x ".join(f"{name}={getattr(actor, name)}" for name in _SIZES)
        message = f"{key}: {both} = {split} ranks per copy of the model do not divide the {len(uneven[0])} ranks"
        hint = f"make trainer.nnodes x trainer.n_gpus_per_node a multiple of {split}"
        if len(uneven[0]) != config.world_size:
            message, hint = f"{message} {list(uneven[0])}", f"give each model a multiple of {split} ranks"
        yield Problem(f"{key}.{_SIZES[0]}", message, hint, (f"{key}.{_SIZES[1]}", *_RANKS, *_MAPPING))


def _roles(config: Config) -> tuple[str, ...]:
    """Whose models are on Megatron."""
    used = {
        "actor": config.actor_rollout_ref.actor.strategy == "megatron",
        "critic": config.critic.strategy == "megatron",
    }
    used["ref"] = used["actor"]
    return tuple(role for role in roles_of(config) if used.get(role, False))


def _recompute_problems(key: str, megatron: MegatronConfig) -> Iterator[Problem]:
    override = megatron.override_transformer_config
    described = override.recompute_method is not None and override.recompute_num_layers is not None
    if override.recompute_granularity == "full" and not described:
        missing = "recompute_method" if override.recompute_method is None else "recompute_num_layers"
        value = "uniform" if missing == "recompute_method" else "1"
        message = f"{key}.recompute_granularity=full does not say what is recomputed: {missing} is not set"
        yield Problem(f"{key}.{missing}", message, f"set {key}.{missing}={value}", (f"{key}.recompute_granularity",))
    if override.recompute_granularity == "selective" and override.recompute_method is not None:
        message = f"{key}.recompute_method is of recompute_granularity=full, not of selective"
        yield Problem(f"{key}.recompute_method", message, "remove it", (f"{key}.recompute_granularity",))


def megatron_notes(config: Config) -> Iterator[Note]:
    """Keys of one engine where the other one is used, and a package that is not on this machine."""
    part, critic = config.actor_rollout_ref, config.critic
    on_megatron = _sections(config)
    fsdp = {
        f"{_ACTOR}.fsdp_config": (part.actor.fsdp_config, f"{_ACTOR}.megatron"),
        "actor_rollout_ref.ref.fsdp_config": (part.ref.fsdp_config, f"{_ACTOR}.megatron"),
        "critic.model.fsdp_config": (critic.model.fsdp_config, "critic.megatron"),
    }
    followed = ("dtype",) if part.ref.fsdp_config.dtype == part.actor.fsdp_config.dtype else ()
    for section, (settings, theirs) in fsdp.items():
        but = followed if settings is part.ref.fsdp_config else ()
        for name in _changed(settings, but) if theirs in on_megatron else ():
            key = f"{section}.{name}"
            yield Note("inert", key, f"{key} has no effect: strategy=megatron has settings of its own, {theirs}.*")
    for section, megatron in _all_sections(config).items():
        for name in _changed(megatron, but=_SIZES if section == "critic.megatron" else ()):
            if section not in on_megatron and not (name in _SIZES and on_megatron):
                key = f"{section}.{name}"
                yield Note("inert", key, f"{key} has no effect: {section.rpartition('.')[0]}.strategy is not megatron")
    checkpointing = {
        f"{_ACTOR}.megatron": ("actor_rollout_ref.model", part.model.enable_gradient_checkpointing),
        "critic.megatron": ("critic.model", critic.model.enable_gradient_checkpointing),
    }
    for section, megatron in on_megatron.items():
        model, wanted = checkpointing[section]
        if wanted is not False and megatron.override_transformer_config.recompute_granularity is None:
            key = f"{model}.enable_gradient_checkpointing"
            decides = f"{section}.override_transformer_config.recompute_granularity"
            yield Note("inert", key, f"{key} has no effect with strategy=megatron: {decides} decides")
    if on_megatron and installed() is None:
        key = f"{next(iter(on_megatron)).rpartition('.')[0]}.strategy"
        yield Note("here", key, f"megatron-core is not installed on this machine: install it, or set {key}=fsdp")


def _changed(settings: Any, but: Collection[str] = ()) -> Iterator[str]:
    """The names of fields, also of sections within, that are not at their defaults."""
    default = type(settings)()
    for each in fields(settings):
        mine, other = getattr(settings, each.name), getattr(default, each.name)
        if is_dataclass(mine):
            yield from (f"{each.name}.{name}" for name in _changed(mine))
        elif mine != other and each.name not in but:
            yield each.name


def _sections(config: Config) -> dict[str, MegatronConfig]:
    """Of the models that are on Megatron."""
    used = {
        f"{_ACTOR}.megatron": config.actor_rollout_ref.actor.strategy == "megatron",
        f"{_CRITIC}.megatron": config.uses_critic and config.critic.strategy == "megatron",
    }
    return {key: section for key, section in _all_sections(config).items() if used[key]}


def _all_sections(config: Config) -> dict[str, MegatronConfig]:
    return {
        f"{_ACTOR}.megatron": config.actor_rollout_ref.actor.megatron,
        f"{_CRITIC}.megatron": config.critic.megatron,
    }
