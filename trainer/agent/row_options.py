"""What an environment is given of the row of data that it is played with: all of it, as SkyRL-Gym's ask for.

Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

ROW = "whole_row"  # in a row's `extra_info`, and in what an environment is reset with
PROMPT = "prompt"  # of it, as messages


def whole_row(prompt: Any, reward: Any, data_source: str, extra_info: Mapping[str, Any]) -> dict[str, Any]:
    """A row under SkyRL's names; a prompt that is one text is a user's message.

    >>> whole_row("1+2?", {"ground_truth": "3"}, "add", {})["prompt"]
    [{'role': 'user', 'content': '1+2?'}]
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return {PROMPT: messages, "reward_spec": reward, "data_source": data_source, "extra_info": dict(extra_info)}


def options_of(extra_info: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `reset` is given beside the seed; None of a row that was not read whole.

    >>> options_of({"index": 3, "whole_row": {"prompt": []}}), options_of({"index": 3})
    ({'whole_row': {'prompt': []}}, None)
    """
    if ROW not in extra_info:
        return None
    given: dict[str, Any] = json.loads(json.dumps({ROW: extra_info[ROW]}, default=str))
    return given  # as it goes to an environment's process: dates and such as texts
