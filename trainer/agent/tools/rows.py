"""What a row of data asks of tools, under verl's names. Pure; standard library only.

agent_name     tool_agent | single_turn_agent; a column of its own, or in extra_info
extra_info     need_tools_kwargs, tools_kwargs {TOOL: {create_kwargs: {...}}}, tool_selection [TOOL, ...]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SINGLE, TOOL_AGENT = "single_turn_agent", "tool_agent"
AGENT, KWARGS, SELECTION, NEEDS = "agent_name", "tools_kwargs", "tool_selection", "need_tools_kwargs"

OPTIONS = (AGENT, KWARGS, SELECTION)


@dataclass(frozen=True)
class Asked:
    """Of one row. A tool's `execute` is given it as `agent_data`, with verl's `tools_kwargs`."""

    agent: str = TOOL_AGENT
    tools_kwargs: Mapping[str, Any] = field(default_factory=dict)
    selection: tuple[str, ...] = ()  # of tools; empty: all
    extra_fields: dict[str, Any] = field(default_factory=dict)  # verl's place for what tools keep of a conversation

    @staticmethod
    def of(options: Mapping[str, Any]) -> Asked:
        """
        >>> Asked.of({"tools_kwargs": {"add": {"create_kwargs": None}, "sub": None}}).tools_kwargs
        {'add': {'create_kwargs': None}}
        """
        given = options.get(KWARGS)
        kwargs = {name: each for name, each in given.items() if each is not None} if isinstance(given, Mapping) else {}
        chosen = options.get(SELECTION)
        names = tuple(map(str, chosen)) if isinstance(chosen, Sequence) and not isinstance(chosen, str) else ()
        return Asked(str(options.get(AGENT) or TOOL_AGENT), kwargs, names)

    def may_use(self, tool: str) -> bool:
        return not self.selection or tool in self.selection

    def create_kwargs(self, tool: str) -> dict[str, Any]:
        """Of columns that hold several tools' names, a row has None for those that it does not mean."""
        given = self.tools_kwargs.get(tool)
        made = given.get("create_kwargs") if isinstance(given, Mapping) else None
        return dict(made) if isinstance(made, Mapping) else {}


def options_of(extra_info: Mapping[str, Any], default: str) -> dict[str, Any]:
    """What a conversation's tools are reset with, of a row's `extra_info`; `default`: the agent of a row without one.

    >>> options_of({"index": 3, "tools_kwargs": {"add": None}}, TOOL_AGENT)
    {'agent_name': 'tool_agent', 'tools_kwargs': {'add': None}}
    """
    found = {name: extra_info[name] for name in (KWARGS, SELECTION) if extra_info.get(name)}
    given: dict[str, Any] = json.loads(json.dumps({AGENT: extra_info.get(AGENT) or default, **found}, default=str))
    return given  # as it goes to an environment's process: dates and such as texts


def lacks_kwargs(extra_info: Mapping[str, Any]) -> bool:
    """Whether a row says that its tools need something, and does not have it."""
    return bool(extra_info.get(NEEDS)) and not Asked.of(extra_info).tools_kwargs
