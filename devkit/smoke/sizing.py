"""How small the smoke test's run is: ranks, rows, passes, rates. What is counted in the full run stays as many.

Pure: a full run's configuration in, sizes and settings out. `shrink.py` makes the command of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from trainer.config import micro_batch_sizes
from trainer.config.lora import models_of
from trainer.config.schema import Config
from trainer.grid import Grid, actor_grid, critic_grid, reference_grid
from trainer.teams import ROLES, teams_of

Settings = dict[str, tuple[Any, str]]  # by key: the small run's value, and why

MAX_SAMPLES = 8  # of rollout.n
MAX_STEPS_PER_EPOCH = 4  # mini-batches
MAX_MICRO_BATCHES = 4  # per mini-batch and rank
MIN_ROWS = 16  # sequences per mini-batch: fewer, and the learning gate's gradients are noise
PROMPT_TOKENS, RESPONSE_TOKENS = 96, 12
WARMUP_STEPS = 2  # of a run that has a warm-up
WARMUP_RATIO = 0.1  # of the steps, where the run's is a ratio: as many of the learning gate's
# Of adapters, and lora_alpha / lora_rank: of rank 2, counted twice, they moved a weight by a fifth of its rate.
RANK, LORA_SCALE = 8, 4
LEAST_RATE = 0.5  # where a cosine ends, as a share of the rate


@dataclass(frozen=True)
class Sizes:
    prompts: int  # per step
    mini: int  # prompts per mini-batch
    micro: int  # sequences per pass and copy of the actor
    critic_micro: int
    samples: int  # per prompt


def mapping(full: Config, world: int) -> dict[str, list[int] | None]:
    """The ranks of each role: as many teams as in the full run, of neighbours; None where all ranks do everything."""
    teams = teams_of(full)
    if len(teams) == 1:
        return dict.fromkeys(ROLES)
    dealt = {
        role: [rank for rank in range(world) if rank * len(teams) // world == number]
        for number, team in enumerate(teams)
        for role in team.roles
    }
    return {role: dealt.get(role) for role in ROLES}


def _ranks(full: Config, world: int, role: str) -> int:
    dealt = mapping(full, world)
    ranks = dealt[role] or dealt["actor"]
    return world if ranks is None else len(ranks)


def _split(whole: Grid, world: int) -> Grid:
    """Two tensor ranks where the full run has any, two stages where it has those and ranks are left.

    >>> _split(Grid(world_size=16, tensor=4, pipeline=2), 2)
    Grid(world_size=2, tensor=2, pipeline=1)
    """
    tensor = 2 if whole.tensor > 1 and world % 2 == 0 else 1
    pipeline = 2 if whole.pipeline > 1 and world % (2 * tensor) == 0 else 1
    return replace(whole, world_size=world, tensor=tensor, pipeline=pipeline)


def batch_sizes(full: Config, world: int) -> Sizes:
    """The smallest batch with the full run's numbers of mini-batches and micro-batches (up to a limit)."""
    grids = {"actor": actor_grid(full), "critic": critic_grid(full), "ref": reference_grid(full)}
    copies, critic_copies, ref_copies = (_split(grid, _ranks(full, world, role)).copies for role, grid in grids.items())
    samples = min(full.actor_rollout_ref.rollout.n, MAX_SAMPLES)
    mini = full.actor_rollout_ref.actor.ppo_mini_batch_size
    steps = min(MAX_STEPS_PER_EPOCH, max(1, full.data.train_batch_size // mini))
    per_copy = mini * full.actor_rollout_ref.rollout.n // actor_grid(full).copies
    size = micro_batch_sizes(full).actor_update.sequences(full.longest_sequence)
    passes = min(MAX_MICRO_BATCHES, max(1, per_copy // size))
    unit = math.lcm(world, copies * passes, critic_copies * passes, ref_copies, samples)
    rows = unit * math.ceil(MIN_ROWS / unit)
    micro, critic_micro = (rows // each // passes for each in (copies, critic_copies))
    return Sizes(steps * rows // samples, rows // samples, micro, critic_micro, samples)


def megatron(full: Config, world: int) -> Settings:
    """Of actor and critic: parallel sizes that fit the ranks, and what fits two layers on a CPU."""
    grid = _split(actor_grid(full), _ranks(full, world, "actor"))
    sections = {"actor_rollout_ref.actor.megatron": full.actor_rollout_ref.actor.megatron}
    sections |= {"critic.megatron": full.critic.megatron}
    settings: Settings = {}
    for prefix, section in sections.items() if full.uses_megatron else ():
        recomputed = section.override_transformer_config.recompute_num_layers
        settings |= {
            f"{prefix}.tensor_model_parallel_size": (grid.tensor, "at most two ranks to a matrix"),
            f"{prefix}.pipeline_model_parallel_size": (grid.pipeline, "two stages where ranks are left"),
            f"{prefix}.dtype": ("fp32", "exact on a CPU"),
            f"{prefix}.override_transformer_config.recompute_num_layers": (recomputed and 1, "few layers"),
        }
    return settings


def optimizers(full: Config) -> Settings:
    """Rates for a model that starts from nothing: a run's own would not move it in the time there is.

    A warm-up becomes a short one, and a cosine ends on half of the rate, so that both act and the model still learns.
    """
    why, short = "a new tiny model learns with large steps", "of few steps"
    rates = {"actor_rollout_ref.actor.optim": (full.actor_rollout_ref.actor.optim, 5e-3)}
    rates["critic.optim"] = (full.critic.optim, 3e-3)
    settings: Settings = {}
    for prefix, (own, lr) in rates.items():
        by_ratio = own.lr_warmup_steps < 0 and own.lr_warmup_steps_ratio > 0
        settings |= {
            f"{prefix}.lr": (lr, why),
            f"{prefix}.lr_warmup_steps": (-1 if by_ratio else WARMUP_STEPS if own.lr_warmup_steps > 0 else 0, short),
            f"{prefix}.lr_warmup_steps_ratio": (WARMUP_RATIO if by_ratio else 0.0, short),
            f"{prefix}.min_lr_ratio": (max(own.min_lr_ratio, LEAST_RATE), why),
        }
    return settings


def adapters(full: Config) -> Settings:
    """Of a few columns, which count four times: a factor of 1 would hide that it is forgotten."""
    settings: Settings = {}
    for section, model in models_of(full).items():
        if model.lora_rank:
            rank = min(model.lora_rank, RANK)
            settings[f"{section}.lora_rank"] = rank, "narrow layers"
            settings[f"{section}.lora_alpha"] = float(rank * LORA_SCALE), "adapters count four times, and learn at once"
    if full.actor_rollout_ref.model.lora_rank:
        settings["actor_rollout_ref.model.lora_adapter_path"] = None, "an adapter of the tiny model's own"
    return settings


def passes(full: Config, sizes: Sizes) -> Settings:
    """Micro-batches by rows, or by tokens where the full run's are."""
    actor, critic, why = full.actor_rollout_ref.actor, full.critic, "the same number of micro-batches"
    longest = PROMPT_TOKENS + RESPONSE_TOKENS
    settings: Settings = {}
    if actor.use_dynamic_bsz:
        settings["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] = (sizes.micro * longest, why)
    if critic.use_dynamic_bsz:
        settings["critic.ppo_max_token_len_per_gpu"] = (sizes.critic_micro * longest, why)
    for key in ("actor_rollout_ref.rollout.log_prob", "actor_rollout_ref.ref.log_prob", "critic.forward"):
        by_tokens = critic.use_dynamic_bsz if key == "critic.forward" else value(full, f"{key}_use_dynamic_bsz")
        micro = sizes.critic_micro if key == "critic.forward" else sizes.micro
        if by_tokens:
            settings[f"{key}_max_token_len_per_gpu"] = (2 * micro * longest, why)
    return settings


def value(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config
