"""How actor and critic are trained where the command leaves it open: the quickest way that fits (`fits.py`).

Keys that are `null` are chosen, and one that is given stands. Decided purely, from the command, the models' shapes and
what a device has free: by `--check` for what it can know, by each run for the GPUs that it is on (`trainer.fitting`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from trainer.balance import PassLimit
from trainer.config.batches import micro_batch_sizes
from trainer.config.fits import (
    FULL,
    GIB,
    NONE,
    SELECTIVE,
    SHARE,
    USUAL,
    Fit,
    Load,
    Plan,
    Plans,
    adapter_parameters,
    first_fit,
    resident,
)
from trainer.config.lora import is_the_actor
from trainer.config.schema import Config, CriticModelConfig, FsdpConfig, ModelConfig, TrainedFsdpConfig
from trainer.config.shape import Shape
from trainer.grid import actor_grid, critic_grid, reference_grid
from trainer.teams import ranks_of

AS_BEFORE = Plan(compiled=False, recompute=FULL, budget=None, reshard=True)  # what nothing is chosen for
NO_SIZES = "the model's configuration does not give its sizes"
NOTHING_CHOSEN = "on a CPU nothing is chosen"
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "auto": 2}


@dataclass(frozen=True)
class Device:
    """What a rank computes on. Sizes in bytes."""

    cuda: bool
    compiles: bool = False  # torch's compiler works there
    free: int = 0  # before models are loaded, beside an engine that rests
    total: int = 0


CPU = Device(cuda=False)


@dataclass(frozen=True)
class Choice:
    """How a role is trained, and why."""

    role: str  # actor | critic
    plan: Plan
    why: str
    given: tuple[str, ...] = ()  # the keys that had a say

    def __str__(self) -> str:
        given = f" (given: {', '.join(self.given)})" if self.given else ""
        return f"{self.plan}{given}: {self.why}"


def choose(config: Config, shapes: Mapping[str, Shape | None], device: Device) -> tuple[Choice, ...]:
    """For each role that trains on FSDP2. `shapes` by role. Raises ConfigErrors if the batches do not come out even."""
    made: dict[str, Choice] = {}
    for role in _trained(config):
        made[role] = _choose(config, role, shapes, device, made)
    return tuple(made.values())


def applied(config: Config, choices: tuple[Choice, ...], device: Device) -> Config:
    """`config` with the choices in the places of the keys that were open. Nothing that was given changes."""
    part, critic = config.actor_rollout_ref, config.critic
    plans = {choice.role: choice.plan for choice in choices}
    if "actor" in plans:
        actor = replace(part.actor, fsdp_config=_fsdp(part.actor.fsdp_config, plans["actor"]))
        part = replace(part, actor=actor, model=_model(part.model, plans["actor"]))
    ref = part.ref.fsdp_config
    compiled = _compiles(ref, device)
    part = replace(part, ref=replace(part.ref, fsdp_config=_fsdp(ref, replace(AS_BEFORE, compiled=compiled))))
    if "critic" in plans:
        model = _model(critic.model, plans["critic"])
        model = replace(model, fsdp_config=_fsdp(critic.model.fsdp_config, plans["critic"]))
        critic = replace(critic, model=model)
    return replace(config, actor_rollout_ref=part, critic=critic)


_Fsdp = TypeVar("_Fsdp", bound=FsdpConfig)
_Model = TypeVar("_Model", ModelConfig, CriticModelConfig)


def _fsdp(settings: _Fsdp, plan: Plan) -> _Fsdp:
    compiled, reshard = settings.use_torch_compile, settings.reshard_after_forward
    return replace(
        settings,
        use_torch_compile=plan.compiled if compiled is None else compiled,
        reshard_after_forward=plan.reshard if reshard is None else reshard,
    )


def _model(settings: _Model, plan: Plan) -> _Model:
    checkpointing, recompute = settings.enable_gradient_checkpointing, settings.recompute_granularity
    budget = settings.activation_memory_budget
    return replace(
        settings,
        enable_gradient_checkpointing=plan.recompute != NONE if checkpointing is None else checkpointing,
        recompute_granularity=(FULL if plan.recompute == NONE else plan.recompute) if recompute is None else recompute,
        activation_memory_budget=plan.budget if budget is None else budget,
    )


def _trained(config: Config) -> list[str]:
    strategies = {"actor": config.actor_rollout_ref.actor.strategy}
    if config.uses_critic:
        strategies["critic"] = config.critic.strategy
    return [role for role, strategy in strategies.items() if strategy != "megatron"]


def _settings(config: Config, role: str) -> tuple[ModelConfig | CriticModelConfig, TrainedFsdpConfig]:
    part = config.actor_rollout_ref
    if role == "actor":
        return part.model, part.actor.fsdp_config
    return config.critic.model, config.critic.model.fsdp_config


def _compiles(settings: FsdpConfig, device: Device) -> bool:
    """What is asked for on a CPU compiles there; what fails to compile on a GPU runs as it is."""
    wanted = settings.use_torch_compile
    return device.compiles and wanted is not False if device.cuda else bool(wanted)


def _choose(
    config: Config, role: str, shapes: Mapping[str, Shape | None], device: Device, made: Mapping[str, Choice]
) -> Choice:
    model, fsdp = _settings(config, role)
    compiled, wanted = _compiles(fsdp, device), wanted_of(model, fsdp)
    given, shape = _given(model, fsdp), shapes.get(role)
    broken = device.cuda and not device.compiles and fsdp.use_torch_compile is not False
    slow = "; torch's compiler does not work here" if broken else ""
    if not device.cuda or shape is None:
        why = NO_SIZES if device.cuda else NOTHING_CHOSEN
        return Choice(role, _stands(compiled, wanted), why + slow, given)
    room = int(SHARE * (device.free - _beside(config, role, shapes, made)))
    load = replace(_load(config, role, device), trained=_adapters(config, role, shape))
    fit = first_fit(shape, load, compiled, wanted, room)
    return Choice(role, fit.plan, _why(fit) + slow, given)


def _stands(compiled: bool, wanted: Plans) -> Plan:
    """What was asked for, and as it was before where nothing was."""
    recompute = wanted.recompute or FULL
    budget = None
    if compiled and recompute == SELECTIVE:
        budget = USUAL if wanted.budget is None else wanted.budget
    reshard = True if wanted.reshard is None else wanted.reshard
    return Plan(compiled, recompute, budget, reshard)


def wanted_of(model: ModelConfig | CriticModelConfig, fsdp: FsdpConfig) -> Plans:
    recompute = model.recompute_granularity
    if model.activation_memory_budget is not None and recompute is None:
        recompute = SELECTIVE
    if model.enable_gradient_checkpointing is False:
        recompute = NONE
    some = bool(model.enable_gradient_checkpointing)
    return Plans(recompute, some, model.activation_memory_budget, fsdp.reshard_after_forward)


def _given(model: ModelConfig | CriticModelConfig, fsdp: FsdpConfig) -> tuple[str, ...]:
    names = ("enable_gradient_checkpointing", "recompute_granularity", "activation_memory_budget")
    found = [name for name in names if getattr(model, name) is not None]
    found += [name for name in ("use_torch_compile", "reshard_after_forward") if getattr(fsdp, name) is not None]
    return tuple(found)


def _why(fit: Fit) -> str:
    needs, room = fit.needs / GIB, max(0, fit.room) / GIB
    if not fit.fits:
        less = "smaller passes take" if fit.least <= fit.room else "only more GPUs, or offloading, take"
        return f"an update takes about {needs:.1f} GiB, more than the {room:.1f} that are left: {less} less"
    why = f"an update takes about {needs:.1f} of {room:.1f} GiB"
    return why if fit.quickest is None else f"{why}, the quickest way {fit.quickest / GIB:.1f}"


# -- what an update computes, and what lies beside it


def _load(config: Config, role: str, device: Device) -> Load:
    part, critic = config.actor_rollout_ref, config.critic
    sizes = micro_batch_sizes(config)
    fsdp = _settings(config, role)[1]
    actor = role == "actor"
    rows = (part.actor if actor else critic).ppo_mini_batch_size * part.rollout.n
    ranks = (actor_grid if actor else critic_grid)(config).copies
    all_tokens = max(1, rows // ranks) * config.longest_sequence
    tokens = min(all_tokens, _tokens(sizes.actor_update if actor else sizes.critic_update, config))
    share = config.data.max_response_length / config.longest_sequence
    return Load(
        tokens=tokens,
        answers=max(1, int(tokens * share)) if actor else 0,
        ranks=ranks,
        several=all_tokens > tokens,
        master=BYTES[fsdp.model_dtype],
        compute=BYTES[fsdp.dtype],
        fused=part.actor.use_torch_compile,
        device=device.total,
        moments_wait=fsdp.optimizer_offload,
        gradients_wait=fsdp.grad_offload,
    )


def _tokens(limit: PassLimit, config: Config) -> int:
    return limit.tokens if limit.tokens is not None else (limit.rows or 1) * config.longest_sequence


def _adapters(config: Config, role: str, shape: Shape) -> int | None:
    """The parameters of a role's adapters, if they train and not the weights."""
    rank = _settings(config, role)[0].lora_rank
    return adapter_parameters(shape, rank) if rank else None


def _beside(config: Config, role: str, shapes: Mapping[str, Shape | None], made: Mapping[str, Choice]) -> int:
    """Bytes of the other models that stay on the same GPUs."""
    part, critic = config.actor_rollout_ref, config.critic
    mine, found = set(ranks_of(config, role)), 0
    others = {"actor": part.actor.fsdp_config, "critic": critic.model.fsdp_config if config.uses_critic else None}
    for name, settings in others.items():
        shape = shapes.get(name)
        if name == role or settings is None or shape is None or mine.isdisjoint(ranks_of(config, name)):
            continue
        grid = actor_grid if name == "actor" else critic_grid
        load = Load(0, 0, grid(config).world_size, False, BYTES[settings.model_dtype], BYTES[settings.dtype])
        load = replace(load, moments_wait=settings.optimizer_offload, trained=_adapters(config, name, shape))
        # An update leaves parameters sharded. Those of the actor are whole since the old log-probs.
        plan = made[name].plan if name in made else AS_BEFORE
        found += resident(shape, load, plan, parameters_wait=settings.param_offload)
    frozen, shape = part.ref.fsdp_config, shapes.get("actor")
    apart = config.uses_reference and not is_the_actor(config)
    if apart and shape is not None and not mine.isdisjoint(ranks_of(config, "ref")):
        load = Load(0, 0, reference_grid(config).world_size, False, BYTES[frozen.model_dtype], BYTES[frozen.dtype])
        found += resident(shape, load, None, parameters_wait=frozen.param_offload)
    return found
