"""verl's keys of tools: when they act, what must hold of them, and what older releases meant by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer.agent.source import TOOLS
from trainer.agent.tools import bundle, calls
from trainer.agent.tools.rows import TOOL_AGENT
from trainer.config.agent_schema import MultiTurnConfig
from trainer.config.files import FILE, kind_of, parsed
from trainer.config.problems import Note, Problem
from trainer.config.releases import SEARCH_R1
from trainer.config.schema import Config

_ENV = "agent.env"
_O = "actor_rollout_ref.rollout"
_KEYS = f"{_O}.multi_turn"
ENABLE, LOOP = f"{_KEYS}.enable", f"{_O}.agent.default_agent_loop"
_YAML, _FUNCTIONS, _SIDE = (
    f"{_KEYS}.tool_config_path",
    f"{_KEYS}.function_tool_path",
    f"{_KEYS}.tool_response_truncate_side",
)
_DEFAULTS = vars(MultiTurnConfig())
_SIDES_SINCE = "verl-head"  # #6313, of May 2026


def asking(given: Mapping[str, Any]) -> str | None:
    """Which of the keys `given` asks for conversations with tools, if one does.

    >>> asking({"actor_rollout_ref.rollout.multi_turn.enable": True}), asking({"agent.env": "search"})
    ('actor_rollout_ref.rollout.multi_turn.enable', None)
    """
    wanted: tuple[tuple[str, Any], ...] = ((ENABLE, True), (LOOP, TOOL_AGENT), (_ENV, TOOLS))
    return next((key for key, value in wanted if given.get(key) == value and key in given), None)


def defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the others of those keys are then."""
    found = {ENABLE: True, _ENV: TOOLS} if asking(given) is not None else {}
    return {key: value for key, value in found.items() if key not in given}


def by_release(dialect: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Note]]:
    """Keys that an older release means otherwise, and what they are here."""
    side = given.get(_SIDE)
    other = {calls.LEFT: calls.RIGHT, calls.RIGHT: calls.LEFT}.get(str(side))
    if other is None or dialect in (_SIDES_SINCE, SEARCH_R1):
        return {}, []
    kept = {calls.LEFT: "end", calls.RIGHT: "beginning"}[other]
    return {_SIDE: other}, [
        Note("dialect", _SIDE, f"{_SIDE}={side} is {other} here, as in {dialect}: it keeps the {kept}")
    ]


def turns_of(config: MultiTurnConfig) -> int | None:
    """The most turns of the model; None: as many as its context has room for. 0 is no limit, as in verl.

    >>> turns_of(MultiTurnConfig(max_assistant_turns=5, max_user_turns=2)), turns_of(MultiTurnConfig())
    (3, None)
    """
    limits = [config.max_assistant_turns or 0, config.max_user_turns + 1 if config.max_user_turns else 0]
    return min((limit for limit in limits if limit), default=None)


def constructor(config: Config) -> dict[str, Any]:
    """What `env.tools.Tools` is made with, beside its tools."""
    keys = config.actor_rollout_ref.rollout.multi_turn
    return {
        "turns": turns_of(keys),
        "parallel": keys.max_parallel_calls,
        "most": keys.max_tool_response_length,
        "side": keys.tool_response_truncate_side,
    }


def default_agent(config: Config) -> str:
    """Of rows that name none."""
    return config.actor_rollout_ref.rollout.agent.default_agent_loop or TOOL_AGENT


def tools_problems(config: Config) -> Iterator[Problem]:
    """Of a run with tools; their files are read and parsed, never run."""
    keys, env = config.actor_rollout_ref.rollout.multi_turn, config.agent.env
    if keys.enable and env != TOOLS:
        yield Problem(
            ENABLE, f"{ENABLE}=True plays with tools, and {_ENV}={env} with an environment", "give one of them"
        )
        return
    if env != TOOLS:
        return
    if keys.tool_config_path is None and keys.function_tool_path is None:
        message = f"neither {_YAML} nor {_FUNCTIONS} is given, and {ENABLE}=True plays with tools"
        yield Problem(_YAML, message, f"give {_YAML}=TOOLS.yaml or {_FUNCTIONS}=TOOLS.py", (ENABLE,))
    for key, path in ((_YAML, keys.tool_config_path), (_FUNCTIONS, keys.function_tool_path)):
        if path is not None and kind_of(path) != FILE:
            yield Problem(key, f"{key}={path} is not a file", "give one that the driver can read")
        elif path is not None and key == _YAML:
            yield from _yaml_problems(path)
        elif path is not None and isinstance(wrong := parsed(key, path, path), Problem):
            yield wrong
    if config.agent.speech == "plain":
        message = f"agent.speech=plain, and {_ENV}={TOOLS} needs the chat template that shows tools to a model"
        yield Problem("agent.speech", message, "leave out agent.speech", (_ENV,))


def _yaml_problems(path: str) -> Iterator[Problem]:
    try:
        bundle.entries_of(path)
    except bundle.Broken as error:
        yield Problem(_YAML, f"{_YAML}: {error}", error.hint)


def tools_notes(config: Config) -> Iterator[Note]:
    """Keys that do nothing as they stand."""
    rollout = config.actor_rollout_ref.rollout
    if config.agent.env == TOOLS:
        if config.agent.max_turns != type(config.agent)().max_turns:
            why = f"{_KEYS}.max_assistant_turns and max_user_turns bound conversations with tools"
            yield Note("inert", "agent.max_turns", f"agent.max_turns has no effect: {why}")
        return
    for name, value in vars(rollout.multi_turn).items():
        if value != _DEFAULTS[name] and name != "enable":
            key = f"{_KEYS}.{name}"
            yield Note("inert", key, f"{key} has no effect: {ENABLE} is False, and no tool is called")
