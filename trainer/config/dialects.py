"""What the same command means in different generations of verl, and which generation a command was written for.

A dialect changes defaults only: a key that the command gives always acts as given.

    verl-0.2   v0.2 and v0.3
    verl-0.4   v0.4
    verl-0.7   v0.5 to v0.7
    verl-head  today's verl
    search-r1  Search-R1, a fork of v0.2
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.agent.source import SEARCH
from trainer.config import tree
from trainer.config.overrides import Override, format_value
from trainer.config.problems import Note
from trainer.config.releases import SEARCH_R1, VERL, accepts, is_search_r1_only, marks_search_r1
from trainer.errors import ConfigError

_RELEASES: dict[str, tuple[str, ...]] = {  # newest first, and so inside
    "verl-head": ("head",),
    "verl-0.7": ("v0.7", "v0.6", "v0.5"),
    "verl-0.4": ("v0.4.1", "v0.4.0"),
    "verl-0.2": ("v0.3", "v0.2"),
    SEARCH_R1: (SEARCH_R1,),
}
DIALECTS = tuple(_RELEASES)
_VERSION = re.compile(r"(?:verl-)?v?(\d{1,4})\.(\d{1,4})(?:\.\w+)*", re.ASCII)

_ACTOR, _REF, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
_KL_IN_REWARD = "algorithm.use_kl_in_reward"
_KL_LOSS = f"{_ACTOR}.use_kl_loss"


@dataclass(frozen=True)
class Difference:
    """A default that another generation has: `key` is `value` unless the command gives it or one of `unless`."""

    key: str
    value: Any
    matters: str = ""  # said in a note; empty where results stay the same
    unless: tuple[str, ...] = ()


_BEFORE_V05 = (Difference("algorithm.masked_gae", False),)  # equal on responses without gaps, which ours are
_BEFORE_V04 = (
    *_BEFORE_V05,
    Difference(_KL_IN_REWARD, True, "rewards have a KL penalty against the reference"),
    Difference(f"{_ACTOR}.entropy_coeff", 0.001, "the policy loss has an entropy bonus"),
    Difference(f"{_ACTOR}.clip_ratio_c", None, "the policy loss has no dual clip"),
)
DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "verl-head": (),
    "verl-0.7": (),
    "verl-0.4": _BEFORE_V05,
    "verl-0.2": (
        *_BEFORE_V04,
        Difference("data.filter_overlong_prompts", True, "prompts over data.max_prompt_length are left out"),
    ),
    SEARCH_R1: (
        *_BEFORE_V04,
        Difference(f"{_ROLLOUT}.top_p", 0.95, "responses are sampled from a part of the distribution"),
        Difference("trainer.resume_mode", "disable", "runs start from the beginning"),
        Difference("actor_rollout_ref.model.enable_gradient_checkpointing", False),
        Difference("critic.model.enable_gradient_checkpointing", False),
        Difference(f"{_ACTOR}.ppo_micro_batch_size", 64, unless=(f"{_ACTOR}.ppo_micro_batch_size_per_gpu",)),
        Difference("critic.ppo_micro_batch_size", 64, unless=("critic.ppo_micro_batch_size_per_gpu",)),
        *(
            Difference(f"{part}.log_prob_micro_batch_size", 128, unless=(f"{part}.log_prob_micro_batch_size_per_gpu",))
            for part in (_REF, _ROLLOUT)
        ),
    ),
}


@dataclass(frozen=True)
class Choice:
    """A dialect, why it is the one, and what it would have refused."""

    dialect: str
    reason: str
    notes: tuple[Note, ...] = ()


def choose(overrides: Sequence[Override], asked: str | None = None) -> Choice:
    """The dialect that was asked for, else the newest that takes every override as it is written.

    Where no generation takes them all, the one that refuses fewest, the newest of those, with a note per refusal.

    Raises:
        ConfigError: `asked` is not a dialect.
    """
    overrides = _judged(overrides)
    if asked is not None:
        return _asked_for(asked, overrides)
    own = next((override for override in overrides if marks_search_r1(override.key)), None)
    if own is not None:
        return Choice(SEARCH_R1, f"{own.key} is a key of Search-R1 alone", _refusals(SEARCH_R1, overrides))
    refused = {release: _refused(release, overrides) for release in reversed(VERL)}
    best = min(refused, key=lambda release: len(refused[release]))  # of equals, the first: the newest
    dialect = next(name for name, releases in _RELEASES.items() if best in releases)
    if dialect == DIALECTS[0] and not refused[best]:
        return Choice(dialect, "no key is specific to an older release")
    if not refused[best]:
        newer = _RELEASES[DIALECTS[DIALECTS.index(dialect) - 1]][-1]
        return Choice(dialect, f"newer ones refuse {refused[newer][0].spelling}")
    return Choice(dialect, "no generation takes every key, this one refuses fewest", _refusals(dialect, overrides))


def _judged(overrides: Sequence[Override]) -> list[Override]:
    """Those that tell a generation: in a command with `agent.*`, which is ours, what acts here is ours, too.

    With an environment that is no search, none of Search-R1's keys tells that the command is Search-R1's.
    """
    own = any(override.key.startswith("agent.") for override in overrides)
    plays = any(override.key == "agent.env" and override.value not in (SEARCH, None) for override in overrides)
    mute = [each for each in overrides if is_search_r1_only(each.key) and (plays or (own and tree.is_key(each.key)))]
    return [each for each in overrides if each not in mute]


def _asked_for(asked: str, overrides: Sequence[Override]) -> Choice:
    dialect = asked if asked in DIALECTS else dialect_of_version(asked)
    if dialect is None:
        near = difflib.get_close_matches(asked, DIALECTS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(DIALECTS)}"
        raise ConfigError(f"no such dialect: {asked}", hint=hint)
    reason = "asked for" if dialect == asked else f"asked for by {asked}"
    return Choice(dialect, reason, _refusals(dialect, overrides))


def dialect_of_version(name: str) -> str | None:
    """The dialect of a version of verl: the newest one for what is newer than all, the oldest for what is older.

    >>> dialect_of_version("verl-0.3"), dialect_of_version("v0.6.1"), dialect_of_version("0.8"), dialect_of_version("x")
    ('verl-0.2', 'verl-0.7', 'verl-head', None)
    """
    found = _VERSION.fullmatch(name)
    if found is None:
        return None
    asked = int(found[1]), int(found[2])
    numbered = [
        ((int(known[1]), int(known[2])), dialect)
        for dialect, releases in _RELEASES.items()
        for release in releases
        if (known := _VERSION.fullmatch(release))
    ]
    newest, oldest = numbered[0], numbered[-1]
    if asked > newest[0]:
        return DIALECTS[0]
    return next((dialect for version, dialect in numbered if version <= asked), oldest[1])


def _refused(release: str, overrides: Sequence[Override]) -> list[Override]:
    return [override for override in overrides if not accepts(release, override)]


def closest_release(dialect: str, overrides: Sequence[Override]) -> str:
    """Of a generation's releases, the one that refuses fewest of the overrides."""
    return min(_RELEASES[dialect], key=lambda release: len(_refused(release, overrides)))


def _refusals(dialect: str, overrides: Sequence[Override]) -> tuple[Note, ...]:
    fewest = _refused(closest_release(dialect, overrides), overrides)
    return tuple(
        Note("dialect", override.key, f"{dialect} itself refuses {override.spelling}; it is accepted here")
        for override in fewest
    )


def differences(dialect: str, given: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The defaults of `dialect` that apply to a command which gives the keys `given`."""
    return tuple(
        difference
        for difference in DIFFERENCES[dialect]
        if not any(key in given for key in (difference.key, *difference.unless))
        and not (difference.key == _KL_IN_REWARD and given.get(_KL_LOSS) is True)
    )


def difference_notes(dialect: str, given: Mapping[str, Any]) -> tuple[Note, ...]:
    """One note for each default of `dialect` that changes results."""
    return tuple(
        Note("dialect", d.key, f"{d.key} is {format_value(d.value)}, as in {dialect}: {d.matters}")
        for d in differences(dialect, given)
        if d.matters
    )


def dead_kl_note(dialect: str, given: Mapping[str, Any], use_kl_in_reward: bool) -> Note | None:
    """A KL coefficient that does nothing, because only old generations apply it by default."""
    key = next((key for key in given if key.startswith("algorithm.kl_ctrl.")), None)
    if key is None or use_kl_in_reward:
        return None
    if _KL_IN_REWARD in given or given.get(_KL_LOSS) is True:
        return Note("inert", key, f"{key} has no effect: {_KL_IN_REWARD} is False")
    turn_on = f"{_KL_IN_REWARD}=True, or --dialect verl-0.2, turns it on"
    return Note("dialect", key, f"{key} has no effect in {dialect}, where {_KL_IN_REWARD} is False; {turn_on}")
