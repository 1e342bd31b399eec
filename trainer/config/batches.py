"""Batch arithmetic: how a step's sequences are dealt to the ranks, and how many go through a model at once.

    step:        train_batch_size * n sequences, over world_size ranks
    mini-batch:  ppo_mini_batch_size * n sequences per optimizer step, over world_size ranks
    pass:        micro_batch_sizes(config) sequences or tokens per forward (and backward) pass on one rank

A pass of an update by sequences must divide the rank's mini-batch; the last forward-only pass may be shorter. Passes by
tokens are cut when the lengths are known (`trainer.balance`). The sizes change speed and memory, never results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainer.balance import PassLimit
from trainer.config.problems import ConfigErrors, Note, Problem
from trainer.config.schema import Config, MegatronConfig
from trainer.grid import Grid, actor_grid, critic_grid, reference_grid
from trainer.teams import KEY, LEARNERS, ROLES, ranks_of, roles_of

_ACTOR, _REF, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
_BATCH, _NODES, _GPUS, _N = "data.train_batch_size", "trainer.nnodes", "trainer.n_gpus_per_node", f"{_ROLLOUT}.n"
_SPLIT = tuple(f"{_ACTOR}.megatron.{kind}_model_parallel_size" for kind in ("tensor", "pipeline"))
_LENGTHS = ("data.max_prompt_length", "data.max_response_length")


@dataclass(frozen=True)
class MicroBatches:
    """What goes through a copy of a model at once.

    Without a critic, its two limits are the actor's; without a reference, its limit is that of the old log-probs.
    """

    actor_update: PassLimit
    old_log_prob: PassLimit
    ref_log_prob: PassLimit
    critic_update: PassLimit
    critic_forward: PassLimit


@dataclass(frozen=True)
class _Pass:
    """One kind of pass and the three ways to size it: per copy of the model, over all of them, by tokens."""

    key: str  # of the size over all copies; `key + "_per_gpu"` is that of one
    copies: int  # of the model: the ranks, where each takes rows of its own
    ranks: tuple[str, ...]  # the keys that decide how many these are
    per_gpu: int | None
    over_all: int | None
    budget_key: str
    budget: int | None  # tokens; None: not sized by tokens
    padded_to: int | None  # see `PassLimit`

    @property
    def given(self) -> tuple[str, ...]:
        sizes = {f"{self.key}_per_gpu": self.per_gpu, self.key: self.over_all}
        return tuple(key for key, size in sizes.items() if size is not None)


def micro_batch_sizes(config: Config) -> MicroBatches:
    """The limit of each kind of pass.

    With `use_dynamic_bsz`, the token budget; else the sequences per copy; else those over all copies, divided by them.
    Log-probs and values without a size of their own take that of their update.

    Raises:
        ConfigErrors: the sizes contradict each other or the mini-batch.
    """
    problems = tuple(arithmetic_problems(config))
    if problems:
        raise ConfigErrors(problems)
    actor = _size(_actor_update(config))
    assert actor is not None, "arithmetic_problems lets no update without a size through"
    old = _size(_old_log_prob(config)) or actor
    reference = (_size(_ref_log_prob(config)) or actor) if config.uses_reference else old
    if not config.uses_critic:
        return MicroBatches(actor, old, reference, actor, actor)
    critic = _size(_critic_update(config))
    assert critic is not None
    return MicroBatches(actor, old, reference, critic, _size(_critic_forward(config)) or critic)


def _size(kind: _Pass) -> PassLimit | None:
    if kind.budget is not None:
        return PassLimit(tokens=kind.budget, padded_to=kind.padded_to)
    if kind.per_gpu is not None:
        return PassLimit(rows=kind.per_gpu)
    return PassLimit(rows=kind.over_all // kind.copies) if kind.over_all is not None else None


def _actor_copies(config: Config) -> tuple[int, tuple[str, ...]]:
    return _copies(actor_grid(config), config.actor_rollout_ref.actor.strategy, "actor")


def _ref_copies(config: Config) -> tuple[int, tuple[str, ...]]:
    return _copies(reference_grid(config), config.actor_rollout_ref.actor.strategy, "ref")


def _critic_copies(config: Config) -> tuple[int, tuple[str, ...]]:
    return _copies(critic_grid(config), config.critic.strategy, "critic")


def _copies(grid: Grid, strategy: str, role: str) -> tuple[int, tuple[str, ...]]:
    """How many there are, and the keys that decide it."""
    mapping = (f"{KEY}.actor", f"{KEY}.{role}") if role != "actor" else (f"{KEY}.actor",)
    return grid.copies, (_NODES, _GPUS, *mapping, *(_SPLIT if strategy == "megatron" else ()))


def _actor_padding(config: Config) -> int | None:
    part = config.actor_rollout_ref
    return _padding(part.actor.strategy, part.actor.megatron, part.model.use_remove_padding)


def _critic_padding(config: Config) -> int | None:
    return _padding(config.critic.strategy, config.critic.megatron, config.critic.model.use_remove_padding)


def _padding(strategy: str, megatron: MegatronConfig, packs: bool) -> int | None:
    """Megatron never packs, and splits a sequence over its tensor ranks."""
    return megatron.tensor_model_parallel_size if strategy == "megatron" else None if packs else 1


def _actor_update(config: Config) -> _Pass:
    actor = config.actor_rollout_ref.actor
    budget = actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else None
    key = f"{_ACTOR}.ppo_micro_batch_size"
    sizes = actor.ppo_micro_batch_size_per_gpu, actor.ppo_micro_batch_size
    return _Pass(
        key, *_actor_copies(config), *sizes, f"{_ACTOR}.ppo_max_token_len_per_gpu", budget, _actor_padding(config)
    )


def _critic_update(config: Config) -> _Pass:
    critic = config.critic
    budget = critic.ppo_max_token_len_per_gpu if critic.use_dynamic_bsz else None
    sizes = critic.ppo_micro_batch_size_per_gpu, critic.ppo_micro_batch_size
    key = "critic.ppo_micro_batch_size"
    return _Pass(
        key, *_critic_copies(config), *sizes, "critic.ppo_max_token_len_per_gpu", budget, _critic_padding(config)
    )


def _critic_forward(config: Config) -> _Pass:
    critic = config.critic
    budget = critic.forward_max_token_len_per_gpu if critic.use_dynamic_bsz else None
    sizes = critic.forward_micro_batch_size_per_gpu, critic.forward_micro_batch_size
    key = "critic.forward_micro_batch_size"
    return _Pass(
        key, *_critic_copies(config), *sizes, "critic.forward_max_token_len_per_gpu", budget, _critic_padding(config)
    )


def _old_log_prob(config: Config) -> _Pass:
    rollout = config.actor_rollout_ref.rollout
    budget = rollout.log_prob_max_token_len_per_gpu if rollout.log_prob_use_dynamic_bsz else None
    key = f"{_ROLLOUT}.log_prob_micro_batch_size"
    sizes = rollout.log_prob_micro_batch_size_per_gpu, rollout.log_prob_micro_batch_size
    return _Pass(
        key,
        *_actor_copies(config),
        *sizes,
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
        budget,
        _actor_padding(config),
    )


def _ref_log_prob(config: Config) -> _Pass:
    reference = config.actor_rollout_ref.ref
    budget = reference.log_prob_max_token_len_per_gpu if reference.log_prob_use_dynamic_bsz else None
    key = f"{_REF}.log_prob_micro_batch_size"
    sizes = reference.log_prob_micro_batch_size_per_gpu, reference.log_prob_micro_batch_size
    return _Pass(
        key, *_ref_copies(config), *sizes, f"{_REF}.log_prob_max_token_len_per_gpu", budget, _actor_padding(config)
    )


def _updates(config: Config) -> Iterator[tuple[_Pass, str, int]]:
    """Each kind of update with the key and value of its mini-batch."""
    yield _actor_update(config), f"{_ACTOR}.ppo_mini_batch_size", config.actor_rollout_ref.actor.ppo_mini_batch_size
    if config.uses_critic:
        yield _critic_update(config), "critic.ppo_mini_batch_size", config.critic.ppo_mini_batch_size


def _passes(config: Config) -> Iterator[_Pass]:
    yield _actor_update(config)
    yield _old_log_prob(config)
    if config.uses_reference:
        yield _ref_log_prob(config)
    if config.uses_critic:
        yield _critic_update(config)
        yield _critic_forward(config)


def arithmetic_problems(config: Config) -> Iterator[Problem]:
    """Everything that does not come out even, or is said twice, or not at all."""
    if any(getattr(config.trainer.device_mapping, role) == [] for role in ROLES):
        return  # `mapping.team_problems` says it
    n, batch = config.actor_rollout_ref.rollout.n, config.data.train_batch_size
    yield from _step_problems(config, batch, n)
    for kind, mini_key, mini in _updates(config):
        if batch % mini:
            message = f"{_BATCH}={batch} is not a multiple of {mini_key}={mini}"
            yield Problem(mini_key, message, f"choose a divisor of {batch}", (_BATCH,))
        if mini * n % kind.copies:
            over = _world(config)
            if kind.copies != config.world_size:
                over = f"the {kind.copies} copies of the model on {over}"
            message = f"{mini_key}={mini} x {_N}={n} sequences do not divide over {over}"
            hint = f"make {mini_key} x {_N} a multiple of {kind.copies}"
            yield Problem(mini_key, message, hint, (_N, *kind.ranks))
        else:
            yield from _update_problems(kind, mini_key, mini * n // kind.copies)
    for kind in _passes(config):
        yield from _pass_problems(config, kind)


def _step_problems(config: Config, batch: int, n: int) -> Iterator[Problem]:
    """Each learner's ranks share the whole step."""
    learners = [role for role in roles_of(config) if role in LEARNERS]
    for ranks, role in {len(ranks_of(config, role)): role for role in reversed(learners)}.items():
        if batch * n % ranks:
            over = _world(config) if ranks == config.world_size else f"the {ranks} ranks of {KEY}.{role}"
            message = f"{_BATCH}={batch} x {_N}={n} sequences do not divide over {over}"
            hint = f"make {_BATCH} x {_N} a multiple of {ranks}"
            yield Problem(_BATCH, message, hint, (_N, _NODES, _GPUS, f"{KEY}.{role}"))


def _world(config: Config) -> str:
    nodes = config.trainer.nnodes
    return f"{config.world_size} ranks ({nodes} node{'s' * (nodes > 1)} x {config.trainer.n_gpus_per_node})"


def _update_problems(kind: _Pass, mini_key: str, per_rank: int) -> Iterator[Problem]:
    if kind.budget is not None:
        return
    if not kind.given:
        message = f"neither {kind.key}_per_gpu nor use_dynamic_bsz is set: the micro-batch size is missing"
        yield Problem(f"{kind.key}_per_gpu", message, f"set {kind.key}_per_gpu to a divisor of {per_rank}", (kind.key,))
    size = _size(kind)
    if len(kind.given) == 1 and size and size.rows and per_rank % size.rows:
        key = kind.given[0]
        each = "" if kind.per_gpu is not None else f", {size.rows} on each rank,"
        value = kind.per_gpu or kind.over_all
        message = f"{key}={value}{each} does not divide the {per_rank} sequences of a rank's mini-batch"
        yield Problem(key, message, f"choose a divisor of {per_rank} per rank", (mini_key, _N, *kind.ranks))


def _pass_problems(config: Config, kind: _Pass) -> Iterator[Problem]:
    longest = config.longest_sequence
    if kind.budget is not None:
        if kind.budget < longest:
            message = f"{kind.budget_key}={kind.budget} tokens do not hold one sequence of up to {longest}"
            yield Problem(kind.budget_key, message, f"set {kind.budget_key} to at least {longest}", _LENGTHS)
    elif len(kind.given) == 2:
        message = f"{kind.key} and {kind.key}_per_gpu are both given"
        yield Problem(kind.key, message, f"keep {kind.key}_per_gpu", (f"{kind.key}_per_gpu",))
    elif kind.over_all is not None and kind.over_all % kind.copies:
        message = f"{kind.key}={kind.over_all} does not divide over {kind.copies} ranks"
        yield Problem(kind.key, message, f"use {kind.key}_per_gpu", kind.ranks)


def size_notes(config: Config) -> Iterator[Note]:
    """Sizes in the deprecated form, and sizes that a token budget overrides."""
    for kind in _passes(config):
        if kind.budget is not None:
            for key in kind.given:
                yield Note("inert", key, f"{key} has no effect: use_dynamic_bsz sizes the passes by {kind.budget_key}")
        elif kind.over_all is not None and kind.per_gpu is None and kind.over_all % kind.copies == 0:
            each = kind.over_all // kind.copies
            message = f"{kind.key} counts all ranks and is deprecated: it is {kind.key}_per_gpu={each}"
            yield Note("deprecated", kind.key, message)
