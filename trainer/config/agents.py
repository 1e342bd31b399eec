"""What must hold of the keys `agent.*`, and of those that a run with an environment has no use for."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from trainer.agent import by_turn_names, messages, others, source
from trainer.config import tools
from trainer.config.agent_schema import AgentConfig
from trainer.config.files import FILE, Rows, kind_of, parsed
from trainer.config.problems import Note, Problem
from trainer.config.retrievers import is_loopback
from trainer.config.schema import Config
from trainer.config.search_r1 import length_notes
from trainer.env.search import STOP
from trainer.env.several import Several

_ENV = "agent.env"
MOST_SHARES = 10_000
_OF_TURN = 0.95  # of agent.turn_timeout
_SEVERAL_HINT = "write agent.env_kwargs={envs:{Lake:{env:frozen_lake},Room:{env:sokoban}}} agent.tags=[Lake:3,Room:1]"
_DEFAULTS = vars(AgentConfig())
_OF_TASKS = (
    *("env_kwargs", "tags", "val_tags"),
    "episodes",
    "val_episodes",
    "reward",
    "template",
    "system_template",
)  # of environments that make their own


_OF_SCORES = ("env_kwargs", "reward")  # of those, what acts on rows of data, too, where an environment scores them


def env_kwargs(config: AgentConfig) -> dict[str, Any]:
    """What the environment's constructor is given, each value read as YAML. Raises ValueError for what is no pair.

    >>> env_kwargs(AgentConfig(env_kwargs=["size:3", "is_slippery:False", "rows:SF/FG"]))
    {'size': 3, 'is_slippery': False, 'rows': 'SF/FG'}
    """
    found = {}
    for item in config.env_kwargs:
        name, colon, value = item.partition(":")
        if not colon or not name.strip().isidentifier():
            raise ValueError(f"{item!r} is not NAME:VALUE")
        try:
            found[name.strip()] = yaml.safe_load(value)
            json.dumps(found)  # as it goes to the environment's process
        except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the value of {item!r:.80} is no text, number, list or mapping in YAML") from error
    return found


def shares_of(tags: Sequence[str]) -> dict[str, int] | None:
    """How many of the tasks each tag has, in turn; None: all alike. Raises ValueError.

    >>> shares_of(["Lake:3", "Room"]), shares_of([])
    ({'Lake': 3, 'Room': 1}, None)
    """
    found = dict[str, int]()
    for item in tags:
        tag, _, share = item.partition(":")
        if not tag or tag in found or not (share or "1").isdecimal() or not 0 < int(share or 1) <= MOST_SHARES:
            raise ValueError(f"{item!r} is not TAG:SHARE, with a share from 1 to {MOST_SHARES}, each tag once")
        found[tag] = int(share or 1)
    return found or None


def constructor(config: Config) -> dict[str, Any]:
    """What the environment that `agent.env` names is made with. Raises ValueError, as `env_kwargs`."""
    agent = config.agent
    if agent.env == source.TOOLS:
        return tools.constructor(config)
    if agent.env == source.SEARCH:
        return {"turns": agent.max_turns}
    if others.takes_rows(agent.env):
        return {"turns": agent.max_turns, "env_config": env_kwargs(agent)}
    return {**_answer_limit(agent), **env_kwargs(agent)}


def _answer_limit(config: AgentConfig) -> dict[str, Any]:
    """What a server is given for an answer: a little less than its process, so that the failure names its URL."""
    if not others.is_server(config.env):
        return {}
    limit_s = config.turn_timeout if config.isolate else None
    return {"timeout": None if limit_s is None else _OF_TURN * limit_s}


def stop_texts(config: Config) -> tuple[str, ...]:
    """Texts with which a turn ends."""
    return STOP if config.agent.env == source.SEARCH else ()


def rows_of(config: AgentConfig) -> Rows:
    """How many tasks there are, in place of the data files' rows."""
    return Rows(config.episodes, config.val_episodes)


def agent_problems(config: Config) -> Iterator[Problem]:
    """Of a run with an environment, or with tools."""
    agent = config.agent
    yield from tools.tools_problems(config)
    if agent.env is None:
        return
    yield from _environment_problems(agent.env)
    try:
        env_kwargs(agent)
    except ValueError as error:
        yield Problem("agent.env_kwargs", f"agent.env_kwargs: {error}", "write agent.env_kwargs={size:3,p:0.8}")
    if config.data.max_response_length < (agent.max_turn_tokens or 1):
        message = (
            f"agent.max_turn_tokens={agent.max_turn_tokens} is more than data.max_response_length="
            f"{config.data.max_response_length}, which all turns and observations share"
        )
        yield Problem("agent.max_turn_tokens", message, "lower it", ("data.max_response_length",))
    if agent.val_episodes == 0 and config.trainer.val_only and source.makes_tasks(agent.env):
        message = "agent.val_episodes=0, and trainer.val_only has nothing else to do"
        yield Problem("agent.val_episodes", message, "give some")
    yield from _tag_problems(agent)
    known = (*messages.OF_TURN, *(messages.ALONE if agent.rows == "turn" else ()))
    if agent.template is not None and (wrong := messages.unfit(agent.template, known)):
        names = ", ".join(f"{{{name}}}" for name in known)
        yield Problem("agent.template", f"agent.template {wrong}", f"it may have {names}, and {{{{ for a brace")
    yield from _refused(config)


def _tag_problems(agent: AgentConfig) -> Iterator[Problem]:
    """Of `agent.env=several`: its environments are made, and their tags are known."""
    for name in ("tags", "val_tags") if agent.env == source.SEVERAL else ():
        try:
            known: Any = env_kwargs(agent).get("envs")
            Several(known)
            missing = [tag for tag in shares_of(getattr(agent, name)) or () if tag not in known]
        except ValueError as error:
            yield Problem("agent.env_kwargs", f"agent.env=several, {name}: {error}", _SEVERAL_HINT)
            return
        if missing:
            message = f"agent.{name} names {missing[0]}, and agent.env_kwargs has {', '.join(known)}"
            yield Problem(f"agent.{name}", message, "name those that it has", ("agent.env_kwargs",))


def _environment_problems(env: str) -> Iterator[Problem]:
    """The file is parsed, never run; a library is not asked."""
    if others.is_server(env):
        try:
            others.addresses(env)
        except ValueError as error:
            yield Problem(_ENV, f"{_ENV}={env} is {error}", f"such as {_ENV}={others.SERVER}ws://127.0.0.1:8000")
        return
    if env in source.BUILT_IN or env == source.TOOLS or others.named(env):
        return
    if not source.is_file(env):
        what, hint = source.unknown(env)
        tree = parsed(_ENV, env, env) if env.endswith(".py") and kind_of(env) == FILE else None
        classes = _classes(tree) if isinstance(tree, ast.Module) else []
        yield Problem(_ENV, f"{_ENV}={env} {what}", f"{hint}; it has {', '.join(classes)}" if classes else hint)
        return
    path, _, name = env.rpartition(":")
    if kind_of(path) != FILE:
        yield Problem(_ENV, f"{_ENV}={env}: {path} is not a file", "give a Python file that the driver can read")
        return
    tree = parsed(_ENV, env, path)
    if isinstance(tree, Problem):
        yield tree
        return
    classes = _classes(tree)
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    elsewhere = any(isinstance(node, (ast.ImportFrom, ast.Assign, ast.If, ast.Try)) for node in tree.body)
    if name not in (*classes, *functions) and not elsewhere:
        yield Problem(_ENV, f"{_ENV}={env}: {path} has no class {name}", f"it has {', '.join(classes) or 'none'}")


def _classes(tree: ast.Module) -> list[str]:
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def _refused(config: Config) -> Iterator[Problem]:
    """Keys that would act on what a conversation does not have."""
    if source.makes_tasks(config.agent.env):
        yield from _refused_beside_tasks(config)
    else:
        yield from _row_problems(config)
    if config.environment_scores and config.custom_reward_function.path is not None:
        key = "custom_reward_function.path"
        yield Problem(key, f"{key} is given beside {_ENV}: rewards are what its step gives", f"leave out {key}")
    observations = config.algorithm.adv_estimator == "gae" and config.algorithm.masked_gae
    if observations and not config.actor_rollout_ref.actor.state_masking:
        key = "actor_rollout_ref.actor.state_masking"
        message = f"{key}=False trains on observations, and with algorithm.masked_gae=True they have no advantages"
        yield Problem(key, message, "set algorithm.masked_gae=False, as in Search-R1", ("algorithm.masked_gae",))
    correction, key = config.algorithm.rollout_correction, "algorithm.rollout_correction.rollout_is"
    if correction.rollout_is is not None and not config.actor_rollout_ref.actor.state_masking:
        message = f"{key}={correction.rollout_is}, and state_masking=False trains on observations, which nobody sampled"
        yield Problem(key, message, f"leave out {key}", ("actor_rollout_ref.actor.state_masking",))


def estimator_problems(config: Config) -> Iterator[Problem]:
    """Of estimators that tell turns apart, and of whitening."""
    algorithm, agent = config.algorithm, config.agent
    key, name = "algorithm.adv_estimator", algorithm.adv_estimator
    if name == "reinforce_plus_plus" and algorithm.whiten_advantages is False:
        message = f"algorithm.whiten_advantages=False, and {key}={name} is what whitens"
        yield Problem("algorithm.whiten_advantages", message, f"set {key}=reinforce", (key,))
    if name not in by_turn_names.ESTIMATORS:
        return
    if agent.env is None:
        yield Problem(
            key, f"{key}={name} tells turns apart, and {_ENV} is null", f"give {_ENV}: docs/agents.md", (_ENV,)
        )
        return
    if not config.actor_rollout_ref.actor.state_masking:
        masking = "actor_rollout_ref.actor.state_masking"
        message = f"{masking}=False trains on observations, and {key}={name} has no advantages for them"
        yield Problem(masking, message, f"leave out {masking}", (key,))
    if name in by_turn_names.COMPARE_TURNS and agent.reward == "last" and agent.rows == "conversation":
        message = f"agent.reward=last leaves nothing for the turns that {key}={name} compares, but the last"
        yield Problem("agent.reward", message, "set agent.reward=turn", (key,))


def _refused_beside_tasks(config: Config) -> Iterator[Problem]:
    """Of an environment that makes its own tasks."""
    for key, files in {"data.train_files": config.data.train_files, "data.val_files": config.data.val_files}.items():
        if files:
            message = f"{key} is given beside {_ENV}: an environment makes its own tasks, by their seeds"
            yield Problem(key, message, f"leave out {key}; agent.episodes and agent.val_episodes say how many tasks")


def _row_problems(config: Config) -> Iterator[Problem]:
    """Of `agent.env=search`, with tools, and of SkyRL-Gym's."""
    agent = config.agent
    if agent.rows == "turn":
        why = "have prompts of their own" if config.environment_scores else "are scored as wholes"
        message = f"agent.rows=turn, and the rows of {_ENV}={agent.env} {why}"
        yield Problem("agent.rows", message, "leave out agent.rows", (_ENV,))
    if agent.env == source.SEARCH and agent.speech == "chat":
        message = f"agent.speech=chat, and {_ENV}={source.SEARCH} is one text: nothing stands between its turns"
        yield Problem("agent.speech", message, "leave out agent.speech", (_ENV,))
    most = agent.max_context_tokens
    if most is not None and most < config.data.max_prompt_length:
        message = f"agent.max_context_tokens={most} is less than data.max_prompt_length={config.data.max_prompt_length}"
        hint = "raise it: longer prompts would have no turn"
        yield Problem("agent.max_context_tokens", message, hint, ("data.max_prompt_length",))


def agent_notes(config: Config) -> Iterator[Note]:
    """Keys that do nothing as they stand."""
    agent = config.agent
    yield from tools.tools_notes(config)
    if agent.env is None:
        for name, value in vars(agent).items():
            if value != _DEFAULTS[name]:
                yield Note("inert", f"agent.{name}", f"agent.{name} has no effect: {_ENV} is null")
        key = "actor_rollout_ref.actor.state_masking"
        if not config.actor_rollout_ref.actor.state_masking:
            yield Note("inert", key, f"{key} has no effect: {_ENV} is null, and all of a response is sampled")
        return
    if not source.makes_tasks(agent.env):
        scored = config.environment_scores
        for name in _OF_TASKS:
            if getattr(agent, name) != _DEFAULTS[name] and not (scored and name in _OF_SCORES):
                why = "tasks are rows of data.train_files" + ("" if scored else ", and a reward function scores them")
                yield Note("inert", f"agent.{name}", f"agent.{name} has no effect: {why}")
        yield from length_notes(config) if agent.env == source.SEARCH else ()
        return
    if agent.rows == "conversation" and agent.history_length != _DEFAULTS["history_length"]:
        yield Note("inert", "agent.history_length", "agent.history_length has no effect: agent.rows is conversation")
    for name in ("tags", "val_tags") if agent.env != source.SEVERAL else ():
        if getattr(agent, name):
            yield Note("inert", f"agent.{name}", f"agent.{name} has no effect: {_ENV} is not several")
    if others.is_server(agent.env) and config.trainer.nnodes > 1 and is_loopback(others.addresses(agent.env)[1]):
        yield Note("here", _ENV, f"{_ENV}={agent.env} is each node's own: such a server must run on every node")
    if agent.val_episodes == 0:
        yield Note("here", "agent.val_episodes", "agent.val_episodes is 0: validation is off")
    limits = ("turn_timeout", "trajectory_timeout") if not agent.isolate else ("turn_timeout",)
    in_rank = agent.env in source.BUILT_IN or not agent.isolate
    for name in limits if in_rank else ():
        if getattr(agent, name) != _DEFAULTS[name] and getattr(agent, name) is not None:
            why = "the environment comes with the trainer" if agent.env in source.BUILT_IN else "agent.isolate is False"
            yield Note("inert", f"agent.{name}", f"agent.{name} has no effect: {why}, and runs in the rank's process")


def made_kwargs(given: Mapping[str, Any]) -> list[str]:
    """`{size: 3}` of a command as the list that the key holds.

    >>> made_kwargs({"size": 3, "rows": "SF/FG"})
    ['size:3', 'rows:SF/FG']
    """
    return [f"{name}:{_in_a_line(value)}" for name, value in given.items()]


def _in_a_line(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=2**20, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("...").strip()
