"""Which ranks of a run work together on which roles.

By default all ranks do everything (the "hybrid engine"). With `trainer.device_mapping` roles have ranks of their own,
as with ROLL's `device_mapping`: two roles share all of their ranks or none. The ranks of the same roles are a team: a
world of its own, with its own process group, in which they are counted from 0. The driver imports this module: no
torch here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainer.config.problems import Problem
from trainer.config.schema import Config

ROLES = ("actor", "rollout", "ref", "critic")
LEARNERS = ("actor", "ref", "critic")
KEY = "trainer.device_mapping"
_ENGINE = "actor_rollout_ref.rollout.tensor_model_parallel_size"
_WORLD = ("trainer.nnodes", "trainer.n_gpus_per_node")


@dataclass(frozen=True)
class Team:
    """The ranks of the run that have the same roles, in ascending order."""

    ranks: tuple[int, ...]
    roles: frozenset[str]

    def __str__(self) -> str:
        return "+".join(role for role in ROLES if role in self.roles)


@dataclass(frozen=True)
class Seat:
    """One rank of the run as it sees itself.

    >>> Seat.alone().roles == frozenset(ROLES)
    True
    """

    number: int  # of the run
    rank: int  # of its team
    size: int  # of its team
    roles: frozenset[str]

    @classmethod
    def alone(cls) -> Seat:
        return cls(0, 0, 1, frozenset(ROLES))

    @property
    def only_generates(self) -> bool:
        return self.roles.isdisjoint(LEARNERS)


def ranks_of(config: Config, role: str, world_size: int | None = None) -> tuple[int, ...]:
    """Of a role, among `world_size` ranks; the run's, where none is given. The reference and the critic follow the
    actor where the mapping leaves them out."""
    mapping = config.trainer.device_mapping
    given: list[int] | None = getattr(mapping, role)
    if given is None and role in LEARNERS:
        given = mapping.actor
    return (
        tuple(range(config.world_size if world_size is None else world_size)) if given is None else tuple(sorted(given))
    )


def roles_of(config: Config) -> tuple[str, ...]:
    """The roles that this run has."""
    used = {"ref": config.uses_reference, "critic": config.uses_critic}
    return tuple(role for role in ROLES if used.get(role, True))


def teams_of(config: Config) -> tuple[Team, ...]:
    """All teams, in the order of their first roles."""
    by_ranks: dict[tuple[int, ...], set[str]] = {}
    for role in roles_of(config):
        by_ranks.setdefault(ranks_of(config, role), set()).add(role)
    return tuple(Team(ranks, frozenset(roles)) for ranks, roles in by_ranks.items())


def team_with(config: Config, role: str) -> Team:
    return next(team for team in teams_of(config) if role in team.roles)


def seats_of(config: Config) -> list[Seat]:
    """By rank of the run. `problems` has made sure that each rank is in one team."""
    seats = {
        number: Seat(number, rank, len(team.ranks), team.roles)
        for team in teams_of(config)
        for rank, number in enumerate(team.ranks)
    }
    return [seats[number] for number in sorted(seats)]


def bridge_ranks(config: Config) -> tuple[int, ...]:
    """Between whom the weights travel where actor and engines have different ranks: the actor's first rank, which
    sends, and all ranks with an engine. Empty where they share their ranks."""
    actor, rollout = (team_with(config, role) for role in ("actor", "rollout"))
    return () if actor == rollout else (actor.ranks[0], *rollout.ranks)


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
        return Problem(key, f"{key}=[] names no rank", "leave it out, or name some")
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
