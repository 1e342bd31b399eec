"""Prompts that show tools: which of them a row's does, and what is amiss with rows and template. On the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from trainer.agent.homes import Houses, load_limit
from trainer.agent.player import read_environment
from trainer.agent.source import TOOLS, Source
from trainer.agent.speech import CHAT, Speech
from trainer.agent.tools.rows import AGENT, SINGLE, TOOL_AGENT, lacks_kwargs, options_of
from trainer.agent.tools.shown import Schema, of_row, schemas_in
from trainer.config.agents import constructor
from trainer.config.schema import Config
from trainer.config.tools import default_agent
from trainer.errors import DataError


class ToolPrompts:
    """Asks the run's tools for their schemas, once; `notes` is of all rows that were asked for."""

    def __init__(self, config: Config, tokenizer: Any) -> None:
        """Raises ConfigError for tools that do not load, ModelError for a chat template of no use."""
        self._agent = default_agent(config)
        self.text = read_environment(config)
        source, limit_s = Source(TOOLS, self.text, constructor(config)), load_limit(config.agent.turn_timeout)
        with closing(Houses(source, isolate=True, limit_s=limit_s)) as houses:
            self.schemas: Sequence[Schema] = schemas_in(houses)
        Speech(tokenizer, [tokenizer.eos_token_id], CHAT, tools=self.schemas)
        self._is_shown = _is_shown(tokenizer, self.schemas)
        self._plays = self._lacks = 0

    def of_row(self, extra_info: Mapping[str, Any], label: str) -> Sequence[Schema]:
        """What a row's prompt shows. Raises DataError for an agent or a tool that is not there."""
        options = options_of(extra_info, self._agent)
        if options[AGENT] not in (SINGLE, TOOL_AGENT):
            raise DataError(f"{label} asks for {AGENT}={options[AGENT]}", hint=f"there are {TOOL_AGENT} and {SINGLE}")
        found = of_row(self.schemas, options)
        chosen = options.get("tool_selection") or ()
        names = [schema["function"]["name"] for schema in self.schemas]
        if missing := [name for name in chosen if name not in names]:
            raise DataError(f"{label}: its tool_selection has {missing[0]}", hint=f"there are {', '.join(names)}")
        self._plays += options[AGENT] == TOOL_AGENT
        self._lacks += options[AGENT] == TOOL_AGENT and lacks_kwargs(extra_info)
        return found

    def notes(self) -> list[str]:
        """What changes what is learned, and stops nothing."""
        found = []
        if not self._plays:
            found.append(f"no row is played with tools: each has {AGENT}={SINGLE}, or it is the default")
        if self._lacks:
            found.append(f"{self._lacks} rows have need_tools_kwargs and no tools_kwargs")
        if not self._is_shown:
            found.append("the model's chat template shows no tools: no prompt says that there are any")
        return found


def _is_shown(tokenizer: Any, schemas: Sequence[Schema]) -> bool:
    """Whether a template does with tools what it does not do without."""

    def written(**tools: Any) -> str:
        asked = [{"role": "user", "content": "."}]
        return str(tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False, **tools))

    return written(tools=list(schemas)) != written()
