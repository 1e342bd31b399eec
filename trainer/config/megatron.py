"""What must hold among the keys of the engine `megatron`, and which keys of the other engine have no effect with it."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.problems import Note, Problem
from trainer.config.schema import Config, MegatronConfig

_ACTOR, _CRITIC = "actor_rollout_ref.actor", "critic"
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
_RANKS = ("trainer.nnodes", "trainer.n_gpus_per_node")


def megatron_problems(config: Config) -> Iterator[Problem]:
    """Parallel sizes that do not divide the ranks or differ between the models, and recomputation half described."""
    sections = _sections(config)
    for key, megatron in sections.items():
        yield from _recompute_problems(f"{key}.override_transformer_config", megatron)
    if not sections:
        return
    actor = config.actor_rollout_ref.actor.megatron  # its sizes hold for all models
    key = f"{_ACTOR}.megatron"
    split = actor.tensor_model_parallel_size * actor.pipeline_model_parallel_size
    if config.world_size % split:
        both = " x ".join(f"{name}={getattr(actor, name)}" for name in _SIZES)
        message = f"{key}: {both} = {split} ranks per copy of the model do not divide the {config.world_size} ranks"
        hint = f"make trainer.nnodes x trainer.n_gpus_per_node a multiple of {split}"
        yield Problem(f"{key}.{_SIZES[0]}", message, hint, (f"{key}.{_SIZES[1]}", *_RANKS))
    for name in _SIZES if config.uses_critic and config.critic.strategy == "megatron" else ():
        mine, other = getattr(config.critic.megatron, name), getattr(actor, name)
        if mine != other:
            message = f"critic.megatron.{name}={mine} is not the actor's {other}, and they share their ranks"
            yield Problem(
                f"critic.megatron.{name}", message, "leave it out: it follows the actor's", (f"{key}.{name}",)
            )


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
        yield Problem(f"{key}.recompute_method", message, "leave it out", (f"{key}.recompute_granularity",))


def megatron_notes(config: Config) -> Iterator[Note]:
    """Checkpointing that is asked for in FSDP2's key and not in Megatron's."""
    asked = {
        "actor_rollout_ref.model": config.actor_rollout_ref.model.enable_gradient_checkpointing,
        "critic.model": config.critic.model.enable_gradient_checkpointing,
    }
    for (key, megatron), (model_key, wants) in zip(_all_sections(config).items(), asked.items(), strict=True):
        decided = megatron.override_transformer_config.recompute_granularity is not None
        if key in _sections(config) and wants and not decided:
            name = f"{model_key}.enable_gradient_checkpointing"
            wanted = f"{key}.override_transformer_config.recompute_granularity"
            yield Note("inert", name, f"{name} has no effect with strategy=megatron: {wanted} decides")


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
