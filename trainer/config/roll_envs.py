"""ROLL's environments: `custom_envs` by their tags, what a conversation may take, and how its messages read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import TYPE_CHECKING, Any

from trainer.config.agents import made_kwargs

if TYPE_CHECKING:
    from trainer.config.roll import Told

WHOLE = ("custom_envs", "custom_env")  # sections that are not taken apart
# Names in ROLL's own traj_envs.yaml and step_envs.yaml, which custom_envs refers to.
VARIABLES = frozenset(
    {
        *("all_response_pattern", "action_pattern", "think_action_pattern", "max_tokens_per_step"),
        *("max_actions_per_traj", "default_history_length", "sokoban_format_penalty", "frozen_format_penalty"),
        *("env_manager_cls", "agent_runner_cls", "agent_system_template", "agent_template"),
        *("single_prompt_agent_system_template", "single_prompt_agent_template"),
    }
)
ENVIRONMENTS = {"sokoban": "sokoban", "frozen_lake": "roll_frozen_lake"}
MANAGERS = {"TrajEnvManager": "conversation", "StepEnvManager": "turn"}
_OF_RUN = {  # settings that all tags of a run share here, and ROLL's defaults
    "max_steps": 10,
    "max_tokens_per_step": 128,
    "env_manager_cls": "TrajEnvManager",
    "agent_system_template": None,
    "agent_template": "{observation}",
    "history_length": 5,
}
_IGNORED = {"use_thread_lock", "max_env_step_concurrent", "agent_runner_cls", "env_type", "env_config"}


def environments(told: Told, values: Mapping[str, Any]) -> None:
    """What is played, and how."""
    tags = {mode: _tags(told, mode) for mode in ("train", "val")}
    envs = values.get("custom_envs") or {}
    used = list(dict.fromkeys(tag for shares in tags.values() for tag in shares))
    wrong = list(_problems(told, envs, used))
    for key, message, hint in wrong:
        told.problem(key, message, hint)
    if wrong:
        return
    made: dict[str, dict[str, Any]] = {
        tag: {"env": ENVIRONMENTS[envs[tag]["env_type"]], **(envs[tag].get("env_config") or {})} for tag in used
    }
    _name(told, made, tags)
    shared = {name: envs[used[0]].get(name, usual) for name, usual in _OF_RUN.items()}
    _lengths(told, shared)
    rows = MANAGERS[str(shared["env_manager_cls"]).rpartition(".")[2]]
    told.set("agent.rows", rows, "custom_envs.TAG.env_manager_cls")
    if rows == "turn":
        told.set("agent.history_length", shared["history_length"], "custom_envs.TAG.history_length")
    told.set("agent.max_turns", shared["max_steps"], "custom_envs.TAG.max_steps")
    told.set("agent.template", shared["agent_template"], "custom_envs.TAG.agent_template")
    told.set("agent.system_template", shared["agent_system_template"], "custom_envs.TAG.agent_system_template")
    for tag in used:
        for name in envs[tag].keys() - _OF_RUN.keys() - {"env_type", "env_config"}:
            key = f"custom_envs.{tag}.{name}"
            told.note("inert", key, f"{key} has no effect: environments do not get into one another's way")


def _tags(told: Told, mode: str) -> dict[str, int]:
    """How many groups of each tag there are; the numbers as small as they can be."""
    section = f"{mode}_env_manager"
    tags = told.get(f"{section}.tags", ["SimpleSokoban"])
    groups = told.get(f"{section}.num_groups_partition", None)
    groups = [groups] if isinstance(groups, int) else groups or [1] * len(tags)
    total = told.get(f"{section}.num_env_groups", None)
    counts = isinstance(groups, list) and all(type(n) is int and n > 0 for n in groups)
    if not counts or not tags or len(groups) != len(tags) or (total is not None and sum(groups) != total):
        message = f"{section} has tags={tags}, num_groups_partition={groups} and num_env_groups={total}"
        told.problem(
            f"{section}.num_groups_partition", message, "give a number for each tag; together they are the groups"
        )
        return dict.fromkeys(tags, 1)
    for name in ("num_groups_partition", "num_env_groups"):
        if f"{section}.{name}" in told.given:
            ours = "agent.tags" if mode == "train" else "agent.val_tags"
            told.note("renamed", f"{section}.{name}", f"{section}.{name} says how many tasks each tag has: {ours}")
    divisor = gcd(*groups)
    return {tag: count // divisor for tag, count in zip(tags, groups, strict=True)}


def _problems(told: Told, envs: Any, used: list[str]) -> Iterator[tuple[str, str, str]]:
    known_as = isinstance(envs, Mapping) and all(isinstance(tag, str) for tag in envs)
    if not known_as or not all(isinstance(each, Mapping) for each in envs.values()):
        yield (
            "custom_envs",
            "custom_envs is no mapping of tags to environments",
            "write them as in ROLL's traj_envs.yaml",
        )
        return
    for tag in used:
        if tag not in envs:
            yield "custom_envs", f"tags name {tag}, and custom_envs has {', '.join(envs) or 'none'}", "add it there"
            continue
        kind, manager = envs[tag].get("env_type"), str(envs[tag].get("env_manager_cls", "TrajEnvManager"))
        if not isinstance(envs[tag].get("env_config") or {}, Mapping):
            yield f"custom_envs.{tag}.env_config", f"env_config of {tag} is no mapping", "write its keys below it"
        if not isinstance(kind, str) or kind not in ENVIRONMENTS:
            hint = "an environment of your own is one class: agent.env=FILE.py:CLASS, docs/agents.md"
            yield f"custom_envs.{tag}.env_type", f"there is no environment {kind}, of {tag}", hint
        if manager.rpartition(".")[2] not in MANAGERS:
            key = f"custom_envs.{tag}.env_manager_cls"
            yield key, f"{key}={manager} is not there", f"choose from {', '.join(MANAGERS)}"
        for name in envs[tag].keys() - _OF_RUN.keys() - _IGNORED:
            yield f"custom_envs.{tag}.{name}", f"custom_envs.{tag} has no key {name}", "remove it"
    known = [envs[tag] for tag in used if tag in envs]
    for name, usual in _OF_RUN.items():
        if len({str(each.get(name, usual)) for each in known}) > 1:
            yield f"custom_envs.TAG.{name}", f"{name} differs between {', '.join(used)}", "one for all of a run"


def _name(told: Told, made: Mapping[str, Mapping[str, Any]], tags: Mapping[str, Mapping[str, int]]) -> None:
    """One environment by its own name, several by their tags."""
    key = "custom_envs"
    if len(made) == 1:
        ((_, settings),) = made.items()
        kwargs = {name: value for name, value in settings.items() if name != "env"}
        told.set("agent.env", settings["env"], key)
    else:
        kwargs = {"envs": {tag: dict(settings) for tag, settings in made.items()}}
        told.set("agent.env", "several", key)
        for ours, mode in (("agent.tags", "train"), ("agent.val_tags", "val")):
            told.set(ours, [f"{tag}:{share}" for tag, share in tags[mode].items()], f"{mode}_env_manager.tags")
    told.set("agent.env_kwargs", made_kwargs(kwargs), key)


def _lengths(told: Told, shared: Mapping[str, Any]) -> None:
    """`sequence_length` is of a whole conversation; of rows of turns, of each."""
    whole = told.get("sequence_length", 0, 2)
    if whole == 0 and told.given.get("sequence_length") is not None:
        return  # that is told already
    if whole == 0:
        told.problem("sequence_length", "sequence_length is missing", "give it: the tokens of a whole conversation")
        return
    most = shared["max_tokens_per_step"]
    if type(most) is not int:
        message = f"max_tokens_per_step={most!r:.40} is no whole number"
        told.problem("custom_envs.TAG.max_tokens_per_step", message, "give the tokens of a turn")
        return
    turn = min(most, told.get("actor_infer.generating_args.max_new_tokens", 8192), whole - 1)
    told.set("agent.max_turn_tokens", turn, "custom_envs.TAG.max_tokens_per_step", "or max_new_tokens, the smaller")
    key = "actor_infer.generating_args.max_new_tokens"
    if key in told.given:
        told.note("renamed", key, f"{key} is agent.max_turn_tokens here, where it is less than max_tokens_per_step")
    if str(shared["env_manager_cls"]).endswith("StepEnvManager"):
        prompt, why = whole - turn, "a turn's prompt, its response beside it"
    else:
        prompt = min(told.get("prompt_length", whole // 2), whole - 1)
        why = "the first observation; what follows has the rest of it"
    told.set("data.max_prompt_length", prompt, "sequence_length", why)
    told.set("data.max_response_length", whole - prompt, "sequence_length")
