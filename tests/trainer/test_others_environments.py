"""Environments of others as they are: of gymnasium's shape with its numbers and wrappers, and of GEM's without `close`.

Neither package is among the tests' dependencies; where gymnasium is installed, it is the real one that is played.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from devkit import cli

SHAPED = '''
import numpy as np
from typing import Any, Generic, SupportsFloat, TypeVar

ObsType, ActType = TypeVar("ObsType"), TypeVar("ActType")


class Env(Generic[ObsType, ActType]):
    """What gymnasium's `Env` has: a generator of its own, spaces, and numbers of numpy."""

    metadata: dict[str, Any] = {"render_modes": []}
    _np_random = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        if seed is not None:
            self._np_random = np.random.default_rng(seed)

    def close(self): ...

    @property
    def np_random(self):
        return self._np_random


class TimeLimit(Env):
    """A wrapper."""

    def __init__(self, env, max_episode_steps):
        self.env, self.most, self.steps = env, max_episode_steps, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        return observation, reward, terminated, truncated or self.steps >= self.most, info

    def close(self):
        self.env.close()
'''
REAL = "import numpy as np\nfrom gymnasium import Env\nfrom gymnasium.wrappers import TimeLimit\n"
GUESS = """

class Guess(Env):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = self.np_random.integers(1, 4)
        return f"Guess {self.np_random.random():.3f}", {"number": self.number}

    def step(self, action):
        right = np.bool_(action == str(self.number))
        reward = np.float32(right) + self.np_random.random(dtype=np.float32)
        return "Right" if right else "No", reward, right, False, {"success": right, "metrics": {"n": self.number}}


def make(turns=3):
    return TimeLimit(Guess(), max_episode_steps=turns)
"""
GEM = '''
import abc, random


class Env(abc.ABC):
    @abc.abstractmethod
    def step(self, action): ...

    @abc.abstractmethod
    def reset(self, seed=None):
        if seed is not None:
            self._np_random = random.Random(seed)


class Guess(Env):
    """`reset(seed)` without options, a text with a suffix, and nothing to close."""

    def reset(self, seed=None):
        super().reset(seed)
        self.number = self._np_random.randint(1, 3)
        return "Guess.", {"suffix": "Enter a number."}

    def step(self, action):
        right = action == str(self.number)
        return ("Right" if right else f"No {self._np_random.random()}"), 1 if right else 0, right, False, {"suffix": ""}


def make(env_id="game:Guess", **kwargs):
    return Guess()
'''
_SOURCES = {"shaped": SHAPED + GUESS, "gem": GEM, "gymnasium": REAL + GUESS}


@pytest.mark.parametrize("kind", _SOURCES)
@pytest.mark.parametrize("name", ["Guess", "make"])
def test_it_is_played_as_it_is(kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "gymnasium" and importlib.util.find_spec("gymnasium") is None:
        pytest.skip("gymnasium is not installed: the class of its shape is played")
    (tmp_path / "guess.py").write_text(_SOURCES[kind])
    env = f"{tmp_path / 'guess.py'}:{name}"
    words = [word for action in ("1", "2", "3") for word in ("--action", action)]
    code = cli.main(["agent", "check", env, "--json", "--episodes", "6", *words])
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    found = {each["name"]: each for each in record["checks"]}
    assert code == 0, found
    assert {name: found[name]["status"] for name in ("episodes", "determinism", "ends")} == dict.fromkeys(
        ("episodes", "determinism", "ends"), "pass"
    )


def test_a_function_that_makes_nothing_of_use_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "guess.py").write_text("def make():\n    return 3\n")
    code = cli.main(["agent", "check", f"{tmp_path / 'guess.py'}:make", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert code == 1
    assert "'int' object has no attribute 'reset'" in record["checks"][0]["detail"]
