"""Several environments of the trainer in one run, each under a name, its tag: which one is played, the seed says.

Tag number i of n has the seeds that leave i when divided by n: `trainer.data.episodes` draws them so. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENV = "env"  # of a tag's settings: which environment; the rest is for its constructor


class Several:
    """`envs` has a mapping for each tag: `env`, and what its constructor is given.

    >>> rooms = {"env": "sokoban", "rows": "#####/#PXO#/#####"}
    >>> several = Several({"Lake": {"env": "frozen_lake", "rows": "SF/FG", "terse": True}, "Room": rooms})
    >>> several.reset(seed=6)[0], several.reset(seed=7)[0]
    ('P_\\n_G', '#####\\n#PXO#\\n#####')
    """

    def __init__(self, envs: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises ValueError, and what the environments raise."""
        from trainer.agent.source import BUILT_IN, Source, makes_tasks

        if not isinstance(envs, Mapping) or not envs or not all(isinstance(each, Mapping) for each in envs.values()):
            raise ValueError(f"envs={envs!r:.80} does not name environments, as {{Lake: {{env: frozen_lake}}}} does")
        self._tags, self._made = tuple(envs), dict[str, Any]()
        for tag, given in envs.items():
            env = given.get(ENV)
            if env not in BUILT_IN or env == "several" or not makes_tasks(env):
                raise ValueError(f"{tag}: env={env} is no environment of the trainer that makes its own tasks")
            settings = {name: value for name, value in given.items() if name != ENV}
            try:
                self._made[tag] = Source(env, None, settings).load()(**settings)
            except TypeError as error:
                raise ValueError(f"{tag}: {error}") from error
        self._tag = self._tags[0]

    def reset(self, *, seed: int, options: Any = None) -> tuple[str, dict[str, Any]]:
        """Of the environment that `seed` names."""
        self._tag = self._tags[seed % len(self._tags)]
        text, info = self._made[self._tag].reset(seed=seed)
        return text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """What it reports is reported under its tag, too."""
        text, reward, terminated, truncated, info = self._made[self._tag].step(action)
        metrics = dict(info.get("metrics", {}))
        metrics |= {f"{self._tag}/{name}": value for name, value in metrics.items()}
        if "success" in info:
            metrics[f"{self._tag}/success"] = info["success"]
        return text, reward, terminated, truncated, {**info, "metrics": metrics}

    def close(self) -> None:
        for each in self._made.values():
            each.close()
