"""Which ranks of a run work together on which roles.

By default all ranks do everything (the "hybrid engine"). With `trainer.device_mapping` roles have ranks of their own,
as with ROLL's `device_mapping`: two roles share all of their ranks or none. The ranks of the same roles are a team: a
world of its own, with its own process group, in which they are counted from 0. The driver imports this module: no
torch here.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import Config

ROLES = ("actor", "rollout", "ref", "critic")
LEARNERS = ("actor", "ref", "critic")
KEY = "trainer.device_mapping"


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
    if given is not None:
        return tuple(sorted(given))
    return tuple(range(config.world_size if world_size is None else world_size))


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
    """By rank of the run. `config.check` has made sure that each rank is in one team."""
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
