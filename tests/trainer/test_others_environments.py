"""Environments of others as they are: of gymnasium's shape with its numbers and wrappers, and of GEM's without `close`.

Neither package is among the tests' dependencies; where they are installed, it is the real ones that are played.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from devkit import cli
from tests.trainer.conversations import END, SAMPLING, Characters, Scripted, prompts_of
from trainer.agent import contract
from trainer.agent.again import environment_facts
from trainer.agent.homes import Houses
from trainer.agent.keep import scores
from trainer.agent.loop import Conversations, Limits
from trainer.agent.source import Source
from trainer.agent.speech import Speech
from trainer.config.absolute import absolute
from trainer.config.agent_schema import AgentConfig
from trainer.config.schema import Config
from trainer.samples import dump

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
REAL = """import numpy as np
from gymnasium import Env
from gymnasium.spaces import Text
from gymnasium.wrappers import TimeLimit
"""
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
SPACES = """    observation_space = Text(20, charset="Gues 0123456789.RightNo")
    action_space = Text(20)
"""
_SPACED = GUESS.replace("class Guess(Env):\n", f"class Guess(Env):\n{SPACES}")
_SOURCES = {"shaped": SHAPED + GUESS, "gem": GEM, "gymnasium": REAL + _SPACED}


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


IN_PLACE = {  # of a library that is not installed: what of it is asked for
    "gymnasium/__init__.py": """
import importlib

KNOWN = {}


def register(id, entry_point):
    KNOWN[id] = entry_point


def spec(env_id):
    return KNOWN[env_id]


def make(id, **kwargs):
    importlib.import_module(id.rpartition(":")[0])
    return KNOWN[id.rpartition(":")[2]](**kwargs)
""",
    "gem/__init__.py": "from gem.envs.registration import make\n",
    "gem/envs/__init__.py": "",
    "gem/envs/registration.py": """
from guess_gem import Guess

ENV_REGISTRY = {"game:GuessTheNumber-v0-easy": Guess}


def make(env_id, **kwargs):
    return ENV_REGISTRY[env_id]()
""",
    "guess_gem.py": GEM,
}
GAMES = """
import gymnasium
from shaped_guess import Guess

gymnasium.register(id="Guess-v0", entry_point=Guess)
"""


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """gymnasium and GEM, the real ones where they are, and a module that registers an environment with the former."""
    has = {name: importlib.util.find_spec(name) is not None for name in ("gymnasium", "gem")}
    for name, text in IN_PLACE.items():
        if not has.get(name.partition("/")[0], False):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    shaped = _SOURCES["gymnasium" if has["gymnasium"] else "shaped"]
    (tmp_path / "shaped_guess.py").write_text(shaped)
    (tmp_path / "games.py").write_text(GAMES)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _check(env: str, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    cli.main(["agent", "check", env, "--json", "--episodes", "4", *words])
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}


@pytest.mark.parametrize("env", ["gymnasium:games:Guess-v0", "gem:game:GuessTheNumber-v0-easy"])
def test_a_library_makes_one_by_its_name(env: str, libraries: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for action in ("1", "2", "\\boxed{3}") for word in ("--action", action)]
    found = _check(env, capsys, *words)
    assert {each: found[each]["status"] for each in ("episodes", "determinism", "ends")} == dict.fromkeys(
        ("episodes", "determinism", "ends"), "pass"
    ), found


@pytest.mark.parametrize("env", ["gymnasium:games:Nothing-v0", "gymnasium:nothing:Guess-v0", "gem:game:Nothing"])
def test_a_name_that_a_library_does_not_know(env: str, libraries: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "check", env]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: agent.env={env}: ") and "othing" in error
    assert hint.startswith("hint: the names it knows: python -c 'import g")


@pytest.mark.parametrize("library", ["gymnasium", "gem"])
def test_a_library_that_does_not_load(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{library}.py").write_text("raise ImportError('no such thing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["agent", "check", f"{library}:Guess-v0"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    package = {"gem": "gem-llm"}.get(library, library)
    assert error.endswith(f"needs the package {package}, and import {library} raised ImportError: no such thing")
    assert hint == f"hint: pip install {package}, on every node"


def test_a_library_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "check", "gem:"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "hint: write agent.env=gem:ID"


def test_an_observation_of_another_space_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "numbers.py").write_text(
        "class Numbers:\n"
        "    observation_space = 'Discrete(16)'\n"
        "    def reset(self, *, seed=None, options=None): return 0, {}\n"
        "    def step(self, action): return 0, 0.0, False, False, {}\n"
    )
    found = _check(f"{tmp_path / 'numbers.py'}:Numbers", capsys)
    assert "no text but a int (0); its observation_space is 'Discrete(16)'" in found["episodes"]["detail"]


def test_gems_suffix_stands_behind_the_observation_and_is_no_part_of_its_state() -> None:
    game = Source("guess.py:Guess", GEM).load()()
    first, then = contract.reset(game, 3), contract.step(game, "4")
    assert (first.text, first.state) == ("Guess.\nEnter a number.", "Guess.")
    assert then.text == then.state  # an empty suffix


def test_what_gems_wrapper_has_framed_is_not_framed_again() -> None:
    class Wrapped:
        def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
            return "> Guess.\nEnter a number.", {"prefix": "> ", "suffix": "Enter a number."}

    assert contract.reset(Wrapped(), 3).text == "> Guess.\nEnter a number."


def test_a_record_of_a_librarys_environment_is_played_again(
    libraries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = "gymnasium:games:Guess-v0"
    rollout = Conversations(
        prompts_of([[2]] * 2),
        SAMPLING,
        engine=Scripted(lambda context, uid, sample, turn: str(turn % 3 + 1)),
        speech=Speech(Characters(), [END]),
        limits=Limits(
            turns=9, turn_tokens=8, prompt_tokens=99, response_tokens=99, turn_s=60, trajectory_s=60, at_once=8
        ),
        home=Houses(Source(env), isolate=False).home,
        pad_id=0,
    ).play()
    known = environment_facts(Config(agent=AgentConfig(env=env)), None)
    dump(str(tmp_path), 1, [(rollout, scores(rollout, "turn"))], Characters().decode, environment=known)
    code = cli.main(["agent", "replay", str(tmp_path / "1.jsonl"), "--row", "1", "--env", env, "--json"])
    assert code == 0, capsys.readouterr()


def test_a_folder_of_a_librarys_name_is_not_taken_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gem").mkdir()
    (tmp_path / "guess.py").touch()
    monkeypatch.chdir(tmp_path)
    found = [absolute(Config(agent=AgentConfig(env=env))).agent.env for env in ("gem:Guess", "guess.py:Guess")]
    assert found == ["gem:Guess", f"{tmp_path}/guess.py:Guess"]


def test_an_error_that_is_coloured_is_told_without_colours() -> None:
    assert (
        contract.told(LookupError("Resource \x1b[93mwords\x1b[0m not\nfound"))
        == "LookupError: Resource words not found"
    )
