"""Conversations on one rank, as the configuration asks for them: its engine, its environments, its tokenizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from trainer import user_file
from trainer.agent.homes import Houses
from trainer.agent.loop import Conversations, Limits
from trainer.agent.messages import Messages
from trainer.agent.source import SEARCH, Source, is_file
from trainer.agent.speech import PLAIN, Speech
from trainer.config.agent_schema import AgentConfig
from trainer.config.agents import constructor, stop_texts
from trainer.config.schema import Config
from trainer.interfaces import Engine, Sampling
from trainer.records import Prompts, Rollout
from trainer.spec import RunSpec

SLACK_S = 15.0  # beyond the retriever's own time limit


def read_environment(config: AgentConfig) -> str | None:
    """The text of the file that `agent.env` names; None where it names none. Raises ConfigError if it can't be read."""
    if config.env is None or not is_file(config.env):
        return None
    path = config.env.rpartition(":")[0]
    return user_file.read(path, f"agent.env={config.env}: {path}")


def limits_of(config: Config) -> Limits:
    """What a trajectory may take. In the rank's own process a debugger may stop it for as long as it likes."""
    agent, data, searching = config.agent, config.data, config.agent.env == SEARCH
    turn_s = agent.turn_timeout
    if searching and turn_s is not None:
        turn_s = max(turn_s, config.retriever.timeout + SLACK_S)  # whose own deadline names its URL
    return Limits(
        turns=agent.max_turns,
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
        style = PLAIN if agent.env == SEARCH else agent.speech
        self._engine, self._limits, self._pad_id = engine, limits_of(spec.config), tokenizer.pad_token_id
        self._messages = Messages.of(spec.config)
        self._speech = Speech(tokenizer, eos_ids, style, agent.max_observation_tokens)
        if self._messages.system is not None:
            self._speech.begin(".", self._messages.system)  # a template that refuses it says so before the first turn
        source = Source(agent.env, spec.environment, constructor(spec.config))
        self._houses = Houses(source, isolate=agent.isolate)
        weakref.finalize(self, self._houses.close)

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
        ).play()
