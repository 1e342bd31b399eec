"""Conversations on one rank, as the configuration asks for them: its engine, its environments, its tokenizer."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from trainer import user_file
from trainer.agent import row_options
from trainer.agent.homes import Houses, again_and_again, load_limit
from trainer.agent.loop import Conversations, Limits
from trainer.agent.messages import Messages
from trainer.agent.source import SEARCH, TOOLS, Source, is_file
from trainer.agent.speech import CHAT, PLAIN, Speech
from trainer.agent.tools import bundle
from trainer.agent.tools.rows import options_of
from trainer.agent.tools.shown import schemas_in
from trainer.config.agents import constructor, stop_texts
from trainer.config.schema import Config
from trainer.config.tools import default_agent, turns_of
from trainer.errors import ConfigError
from trainer.interfaces import Engine, Sampling
from trainer.records import Prompts, Rollout, Row
from trainer.spec import RunSpec

SLACK_S = 15.0  # beyond the retriever's own time limit


def read_environment(config: Config) -> str | None:
    """The text of the file that `agent.env` names, or of tools; None of neither. Raises ConfigError."""
    env = config.agent.env
    if env == TOOLS:
        try:
            return bundle.read(config.actor_rollout_ref.rollout.multi_turn).to_text()
        except bundle.Broken as error:
            raise ConfigError(str(error), hint=error.hint) from error
    if env is None or not is_file(env):
        return None
    path = env.rpartition(":")[0]
    return user_file.read(path, f"agent.env={env}: {path}")


def limits_of(config: Config) -> Limits:
    """What a trajectory may take. In the rank's own process a debugger may stop it for as long as it likes."""
    agent, data, searching = config.agent, config.data, config.agent.env == SEARCH
    turn_s, turns = agent.turn_timeout, agent.max_turns
    if agent.env == TOOLS:
        turns = turns_of(config.actor_rollout_ref.rollout.multi_turn) or sys.maxsize
    if searching and turn_s is not None:
        turn_s = max(turn_s, config.retriever.timeout + SLACK_S)  # whose own deadline names its URL
    return Limits(
        turns=turns,
        turn_tokens=agent.max_turn_tokens or data.max_response_length,
        prompt_tokens=data.max_prompt_length,
        response_tokens=data.max_response_length,
        turn_s=turn_s,
        trajectory_s=agent.trajectory_timeout if agent.isolate else None,
        at_once=agent.max_envs,
        context_tokens=agent.max_context_tokens,
        stop=stop_texts(config),
        turnwise=agent.rows == "turn",
    )


class Player:
    """Plays what this rank is asked for. Its environments' processes end with it."""

    def __init__(self, spec: RunSpec, engine: Engine, tokenizer: Any, eos_ids: Iterable[int]) -> None:
        """Raises ConfigError for an environment that cannot be loaded, ModelError for a chat template of no use."""
        agent = spec.config.agent
        assert agent.env is not None
        style = {SEARCH: PLAIN, TOOLS: CHAT}.get(agent.env, agent.speech)
        self._engine, self._pad_id = engine, tokenizer.pad_token_id
        self._messages = Messages.of(spec.config)
        source = Source(agent.env, spec.environment, constructor(spec.config))
        self._houses = Houses(source, isolate=agent.isolate, limit_s=load_limit(agent.turn_timeout))
        self._limits = replace(limits_of(spec.config), first_s=self._houses.waits_s)
        if self._houses.missed:
            logging.getLogger("trainer").warning(again_and_again(self._houses))
        weakref.finalize(self, self._houses.close)
        tools = schemas_in(self._houses) if agent.env == TOOLS else ()
        self._speech = Speech(tokenizer, eos_ids, style, agent.max_observation_tokens, tools)
        if self._messages.system is not None:
            self._speech.begin(".", self._messages.system)  # a template that refuses it says so before the first turn
        self._agent = default_agent(spec.config) if agent.env == TOOLS else None

    def play(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        """A conversation for each row. Raises EpisodeError where none can be begun."""
        return Conversations(
            prompts,
            sampling,
            engine=self._engine,
            speech=self._speech,
            limits=self._limits,
            home=self._houses.home,
            pad_id=self._pad_id,
            messages=self._messages,
            options=self._asked,
        ).play()

    def _asked(self, row: Row) -> Mapping[str, Any] | None:
        """What a row asks of tools, or all of it."""
        if self._agent is None:
            return row_options.options_of(row.extra_info)
        return options_of(row.extra_info, self._agent)
