"""What tools a chat template is given, asked of the tools themselves: their classes may say it, and not the YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.agent.homes import START_S, Broken, Houses, answered
from trainer.agent.source import CONSTRUCTOR
from trainer.agent.tools.rows import SELECTION, SINGLE
from trainer.errors import ConfigError

Schema = Mapping[str, Any]


def schemas_in(houses: Houses) -> list[Schema]:
    """Of all tools. Raises ConfigError for tools that cannot be made, and for one whose schema is none."""
    home = houses.home()
    try:
        home.ask("schemas")
        if not answered([home], START_S):
            raise Broken("hung", f"no answer within {START_S:g} s")
        found: list[Schema] = json.loads(home.take().text)
    except Broken as error:
        said = str(error).removeprefix("schemas raised ").removeprefix(f"{CONSTRUCTOR} raised ")
        raise ConfigError(
            f"the tools cannot be made: {said}", hint="each needs a tool_schema with a name, of its own or in the YAML"
        ) from error
    finally:
        home.end(kill=True)
    return found


def of_row(schemas: Sequence[Schema], options: Mapping[str, Any]) -> list[Schema]:
    """Those that a row's prompt shows; `options` as `rows.options_of` gives them.

    >>> add, sub = ({"type": "function", "function": {"name": name}} for name in ("add", "sub"))
    >>> of_row([add, sub], {"agent_name": "tool_agent", "tool_selection": ["sub"]}) == [sub]
    True
    """
    if options.get("agent_name") == SINGLE:
        return []
    chosen = options.get(SELECTION)
    return [each for each in schemas if not chosen or each["function"]["name"] in chosen]
