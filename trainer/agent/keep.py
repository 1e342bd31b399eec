"""Which trajectories a step is made of: those that failed are left out and counted, never scored. On the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm

import torch
from torch import Tensor

from trainer.agent.episode import ENDS, Episode
from trainer.agent.laying import placed_rewards
from trainer.agent.search_metrics import search_metrics
from trainer.agent.turnwise import rows_of_turns
from trainer.config.schema import Config
from trainer.errors import EpisodeError
from trainer.grid import actor_grid, critic_grid, reference_grid
from trainer.metrics import summary
from trainer.records import Metrics, Rollout, Scores
from trainer.rows import take

TURN = "turn"  # of `agent.rows`
_HINTS = {
    "raised": "devkit agent check ENV runs an environment without a model",
    "wrong": "devkit agent check ENV says what an environment must give",
    "hung": "raise agent.turn_timeout, or fix what hangs: devkit agent check ENV shows it without a model",
    "died": "see the worker's log: a crash leaves its stack there; the kernel's log tells of memory",
    "late": "raise agent.trajectory_timeout; generation counts, too",
    "long": "raise data.max_prompt_length",
    "retriever": "start it where the message says, or give retriever.url of one that runs: docs/search.md",
    "server": "see the server's log; its max_concurrent_envs must be agent.max_envs times the engines: docs/agents.md",
}


def failed(rollout: Rollout) -> Tensor:
    """Which rows are of a trajectory that failed, [B] bool."""
    return torch.tensor([episode.failure is not None for episode in rollout.episodes or ()], dtype=torch.bool)


def answered(rollout: Rollout) -> Tensor:
    """The rows that are done: all but those whose engine died, [B] bool."""
    return rollout.mask_BT.any(-1) | failed(rollout)


def whole(played: Rollout, config: Config, *, validate: bool = False) -> Rollout:
    """The rows to go on with: all of a run without conversations.

    With `agent.on_failure=drop_group`, the other samples of a failed one's prompt go, too. In training, what is left is
    cut to a multiple of the models' copies, which share the rows evenly.

    Raises EpisodeError where less than `agent.min_kept` is left.
    """
    if played.episodes is None:
        return played
    gone_B, agent = failed(played), config.agent
    if not gone_B.any():
        return played
    if agent.on_failure == "drop_group" and not validate:
        uid_B = played.prompts.uid_B
        gone_B = torch.isin(uid_B, uid_B[gone_B])
    kept = (~gone_B).nonzero().flatten()
    even = 1 if validate or agent.rows == TURN else copies(config)
    kept = kept[: len(kept) // even * even]
    if len(kept) < max(1, agent.min_kept * len(played)):
        raise _too_few(played, len(kept), config)
    return take(played, kept)


@dataclass(frozen=True)
class Kept:
    """What came of a step's conversations. Without any, all three are the same."""

    played: Rollout
    whole: Rollout  # without those that failed
    rows: Rollout  # what is trained on: these, or with `agent.rows=turn` a row for each of their turns

    @property
    def are_parts(self) -> bool:
        return self.rows is not self.whole


def kept(played: Rollout, config: Config) -> Kept:
    """Raises EpisodeError, as `whole`."""
    left = whole(played, config)
    if left.episodes is None or config.agent.rows != TURN:
        return Kept(played, left, left)
    return Kept(played, left, rows_of_turns(left, copies(config)))


def copies(config: Config) -> int:
    """What the rows of a step must be a multiple of."""
    grids = [actor_grid(config)]
    grids += [reference_grid(config)] if config.uses_reference else []
    grids += [critic_grid(config)] if config.uses_critic else []
    return lcm(*(grid.copies for grid in grids))


def failures(played: Rollout) -> tuple[str, ...]:
    """What is known of each trajectory that failed."""
    return tuple(each.failure.message for each in played.episodes or () if each.failure is not None)


def scores(rollout: Rollout, where: str) -> Scores:
    """Of conversations: what their environments gave, `where` `agent.reward` says."""
    episodes = rollout.episodes or ()
    placed_BT = placed_rewards(episodes, rollout.response_BT.shape[1], where)
    names = sorted({name for episode in episodes for name in episode.numbers})
    extras = {
        name: torch.tensor([each.numbers.get(name, torch.nan) for each in episodes], dtype=torch.float32)
        for name in names
    }
    return Scores(placed_BT.sum(-1), extras, placed_BT)


def metrics(played: Rollout, rollout: Rollout) -> Metrics:
    """Turns, tokens, seconds, ends and failures; nothing of a run without conversations."""
    episodes = rollout.episodes
    if episodes is None or played.episodes is None:
        return {}
    sampled, read = rollout.mask_BT.sum(-1), rollout.context_BT.sum(-1)
    found = summary("agent/turns", _of(episodes, lambda each: len(each.turns)))
    found |= summary("agent/sampled_tokens", sampled) | summary("agent/observed_tokens", read - sampled)
    found |= summary("agent/env_seconds", _of(episodes, lambda each: each.seconds))
    ends = Counter(episode.ended for episode in episodes)
    found |= {f"agent/ended/{end}": ends[end] / len(episodes) for end in ENDS}
    found |= _numbers(episodes)
    found |= search_metrics(rollout)
    kinds = Counter(each.failure.kind for each in played.episodes if each.failure is not None)
    found |= {f"agent/failed/{kind}": float(count) for kind, count in sorted(kinds.items())}
    gone = len(played) - len(rollout)
    return found | {"agent/dropped": float(gone), "agent/kept": len(rollout) / len(played)}


def of_validation(rollouts: Sequence[Rollout], told: Sequence[Metrics]) -> Metrics:
    """Of all batches: means of what environments report, turns, what was dropped. `told` is `metrics` of each."""
    episodes = [episode for rollout in rollouts for episode in rollout.episodes or ()]
    if not episodes:
        return {}
    found = {f"val-{name}": value for name, value in _numbers(episodes).items()}
    found["val-agent/turns/mean"] = sum(len(each.turns) for each in episodes) / len(episodes)
    return found | {"val-agent/dropped": sum(each["agent/dropped"] for each in told)}


def _numbers(episodes: Sequence[Episode]) -> Metrics:
    """Means of what environments report, over the trajectories whose environment did."""
    names = sorted({name for episode in episodes for name in episode.numbers})
    given = {name: [each.numbers[name] for each in episodes if name in each.numbers] for name in names}
    return {f"agent/{name}/mean": sum(values) / len(values) for name, values in given.items()}


def _of(episodes: Sequence[Episode], number: Callable[[Episode], float]) -> Tensor:
    return torch.tensor([number(each) for each in episodes], dtype=torch.float32)


def _too_few(played: Rollout, kept: int, config: Config) -> EpisodeError:
    found = [each.failure for each in played.episodes or () if each.failure is not None]
    kinds = Counter(failure.kind for failure in found)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return EpisodeError(
        f"{kept} of {len(played)} trajectories can be used, and agent.min_kept={config.agent.min_kept:g} of them must "
        f"be: {len(found)} failed ({counts}); the first: {found[0].message}",
        hint=_HINTS[found[0].kind],
    )
