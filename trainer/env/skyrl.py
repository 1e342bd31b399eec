"""Environments of SkyRL-Gym: `agent.env=skyrl_gym:ID`. A row of data has the prompt and what the answer is measured by.

    init(messages) -> (messages, metadata)
    step(text)     -> {"observations": messages, "reward": number, "done": bool, "metadata": mapping}

`skyrl_gym.envs.base_text_env` of skyrl-gym 0.4; each environment is made with the settings `env_config` and the row's
columns, `extras`, as SkyRL's generator makes it. Standard library only, but for what makes the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer.agent.contract import Unfit
from trainer.agent.row_options import PROMPT, ROW

METRICS = "skyrl"  # before the names of its metrics, which may be the trainer's own


class SkyRL:
    """One conversation: SkyRL's environments are made for one row, and reset makes a new one.

    `make` is `skyrl_gym.make` of the environment's name, `turns` the most turns of a conversation.
    """

    def __init__(self, make: Callable[..., Any], turns: int, env_config: Mapping[str, Any] | None = None) -> None:
        self._make, self._turns, self._config = make, turns, dict(env_config or {})
        self._made: Any = None

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The row of `options` (`row_options.options_of`). Raises Unfit where its prompt is changed."""
        from omegaconf import OmegaConf

        self.close()
        row = dict((options or {}).get(ROW) or {})
        prompt = row.pop(PROMPT, [])
        extras = {**row, "max_turns": self._turns}
        self._made = self._make(env_config=OmegaConf.create(self._config), extras=extras)
        begun = self._made.init([dict(each) for each in prompt])
        if not isinstance(begun, tuple) or len(begun) != 2:
            raise Unfit(f"init gave a {type(begun).__name__}, and not (messages, metadata)")
        if begun[0] != prompt:
            raise Unfit(f"init makes another prompt of the row's: write it into the rows; it made {begun[0]!r:.200}")
        return _text(prompt), {}

    def step(self, action: str) -> tuple[str, Any, Any, bool, dict[str, Any]]:
        """The messages of its answer. Its metrics are reported at its end. Raises Unfit for an answer that is none."""
        found = self._made.step(action)
        if not isinstance(found, Mapping) or not {"observations", "reward", "done"} <= set(found):
            raise Unfit(f"step gave no observations, reward and done but a {type(found).__name__}: {found!r:.60}")
        said, done = found["observations"], found["done"]
        if not isinstance(said, list) or not all(isinstance(each, Mapping) for each in said):
            raise Unfit(f"step gave observations that are no messages: {said!r:.60}")
        numbers = self._numbers() if done else {}
        return _text(said), found["reward"], done, False, {"messages": said, "metrics": numbers}

    def close(self) -> None:
        """Ends the row's, if there is one."""
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def _numbers(self) -> dict[str, Any]:
        """Numbers alone, as SkyRL itself averages them."""
        found = self._made.get_metrics() if hasattr(self._made, "get_metrics") else {}
        return {f"{METRICS}/{name}": value for name, value in found.items() if isinstance(value, (bool, int, float))}


def _text(messages: list[Any]) -> str:
    """
    >>> _text([{"role": "user", "content": "Add."}, {"role": "user", "content": "1 and 2"}])
    'Add.\\n1 and 2'
    """
    return "\n".join(str(each.get("content", "")) for each in messages)
