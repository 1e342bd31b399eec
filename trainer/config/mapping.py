"""What must hold of `trainer.device_mapping`, and of what rests on which ranks have which roles."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.problems import Problem
from trainer.config.schema import Config
from trainer.teams import KEY, LEARNERS, ROLES, ranks_of, roles_of, teams_of

_ENGINE = "actor_rollout_ref.rollout.tensor_model_parallel_size"
_REPLICAS = "actor_rollout_ref.rollout.engine_kwargs.sglang.replicas"
_WORLD = ("trainer.nnodes", "trainer.n_gpus_per_node")


def team_problems(config: Config) -> Iterator[Problem]:
    """A mapping that names no rank, one twice or one that is not there, leaves ranks idle, or shares some of them."""
    world = config.world_size
    named = {role: ranks for role in ROLES if (ranks := getattr(config.trainer.device_mapping, role)) is not None}
    broken = False
    for role, ranks in named.items():
        wrong = [rank for rank in ranks if not 0 <= rank < world]
        twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
        if problem := _list_problem(f"{KEY}.{role}", ranks, wrong, twice, world):
            broken = True
            yield problem
    if broken or not named:
        return
    shared = _half_shared(config)
    if shared is not None:
        yield shared
        return
    idle = sorted(set(range(world)).difference(*(team.ranks for team in teams_of(config))))
    if idle:
        key = f"{KEY}.{next(iter(named))}"
        message = f"{KEY} gives the ranks {idle} no role: a run has trainer.nnodes x trainer.n_gpus_per_node of them"
        yield Problem(key, message, "name them, or ask for fewer GPUs", _WORLD)


def _list_problem(key: str, ranks: list[int], wrong: list[int], twice: list[int], world: int) -> Problem | None:
    if not ranks:
        return Problem(key, f"{key}=[] names no rank", "remove it, or name some")
    if wrong:
        return Problem(key, f"{key} names {wrong}, and there are {world} ranks", f"they count to {world - 1}", _WORLD)
    if twice:
        return Problem(key, f"{key} names {twice} more than once", "name each rank once")
    return None


def _half_shared(config: Config) -> Problem | None:
    teams = teams_of(config)
    for number, team in enumerate(teams):
        for other in teams[:number]:
            both = sorted(set(team.ranks) & set(other.ranks))
            if both:
                message = f"{KEY}: {other} and {team} share the ranks {both}, and not all of theirs"
                given = [role for role in ROLES if getattr(config.trainer.device_mapping, role) is not None]
                left_out = [role for role in ("actor", "rollout") if role not in given]
                hint = "give them the same ranks, or others"
                if left_out:
                    hint = f"set {KEY}.{left_out[0]}, too: without it, it has all ranks"
                named = next(role for role in given if role in team.roles | other.roles)
                return Problem(f"{KEY}.{named}", message, hint)
    return None


def capsule_problems(config: Config) -> Iterator[Problem]:
    """A capsule holds the models of one team."""
    trained_by = {ranks_of(config, role) for role in roles_of(config) if role in LEARNERS}
    if config.trainer.capsule_dir is not None and len(trained_by) > 1:
        key = "trainer.capsule_dir"
        message = f"{key}: a capsule is written by the ranks of all models, and {KEY} gives them different ones"
        hint = f"leave out {KEY}.ref and {KEY}.critic, or {key}"
        yield Problem(key, message, hint, (f"{KEY}.actor", f"{KEY}.ref", f"{KEY}.critic"))


def engine_problems(config: Config) -> Iterator[Problem]:
    """An engine takes whole ranks of those that generate, and the same number on each of its nodes."""
    size, per_node = config.ranks_per_engine, config.trainer.n_gpus_per_node
    ranks = ranks_of(config, "rollout")
    uses = (*_WORLD, f"{KEY}.rollout")
    if len(ranks) % size:
        over = f"ranks of {KEY}.rollout"
        if config.trainer.device_mapping.rollout is None:
            over = "ranks of trainer.nnodes x trainer.n_gpus_per_node"
        message = f"{_ENGINE}={size} does not divide the {len(ranks)} {over}"
        fitting = [str(n) for n in range(1, len(ranks) + 1) if len(ranks) % n == 0]
        yield Problem(_ENGINE, message, f"set it to one of {', '.join(fitting)}", uses)
        return
    engines = [ranks[start : start + size] for start in range(0, len(ranks), size)]
    nodes = [[rank // per_node for rank in engine] for engine in engines]
    if any(len({of.count(node) for node in of}) > 1 for of in nodes):
        message = f"{_ENGINE}={size} would cut an engine unevenly over nodes of {per_node} ranks"
        yield Problem(_ENGINE, message, f"a divisor or a multiple of {per_node} is even", uses)
    replicas = config.actor_rollout_ref.rollout.engine_kwargs.sglang.replicas or 1
    if replicas > 1 and size > 1:
        message = f"{_REPLICAS}={replicas}: replicas share one GPU, and {_ENGINE}={size} gives each engine several"
        yield Problem(_REPLICAS, message, f"remove it, or set {_ENGINE}=1", (_ENGINE,))
