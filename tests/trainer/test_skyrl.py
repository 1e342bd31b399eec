"""SkyRL-Gym's environments: rows of data with prompts, answers in messages, rewards of their own.

That package is not among the tests' dependencies: where it is missing, a stand-in has what is asked of it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from devkit import cli
from tests.trainer.conftest import Words
from tests.trainer.test_agent_run import ran
from trainer import replay
from trainer.agent import contract
from trainer.agent.contract import Unfit
from trainer.agent.row_options import options_of, whole_row
from trainer.agent.source import NoEnvironment, Source
from trainer.config import check_command
from trainer.findings import table

HAS = importlib.util.find_spec("skyrl_gym") is not None
IN_PLACE = {
    "skyrl_gym/__init__.py": """
from skyrl_gym.envs.registration import make, register, spec
""",
    "skyrl_gym/envs/__init__.py": "",
    "skyrl_gym/envs/registration.py": """
class EnvSpec:
    def __init__(self, id, entry_point):
        self.id, self.entry_point = id, entry_point


KNOWN = {}


def register(id, entry_point):
    KNOWN[id] = EnvSpec(id, entry_point)


def spec(env_id):
    if env_id not in KNOWN:
        raise RuntimeError(f"No registered env with id: {env_id}")
    return KNOWN[env_id]


def make(id, **kwargs):
    return id.entry_point(**kwargs)
""",
    "skyrl_gym/envs/base_text_env.py": """
class BaseTextEnv:
    def __init__(self):
        self.turns = 0

    def init(self, prompt):
        return prompt, {}

    def close(self): ...

    def get_metrics(self):
        return {}
""",
}
ADDS = '''
"""An environment as SkyRL's users write them."""

from skyrl_gym.envs.base_text_env import BaseTextEnv
from skyrl_gym import register


class Add(BaseTextEnv):
    def __init__(self, env_config=None, extras={}):
        super().__init__()
        assert "reward_spec" in extras, "reward_spec field is required"
        self.truth = extras["reward_spec"]["ground_truth"]
        self.max_turns, self.hint = extras["max_turns"], env_config.get("hint", "No.")

    def step(self, action):
        self.turns += 1
        right = self.truth in action
        done = right or self.turns >= self.max_turns
        said = [{"role": "user", "content": text} for text in (self.hint, f"Turn {self.turns}") if not done]
        return {"observations": said, "reward": float(right) + len(action) / 100, "done": done, "metadata": {"a": {}}}

    def get_metrics(self):
        return {"steps": self.turns, "right": True, "note": "text"}


class Prefaced(Add):
    def init(self, prompt):
        return [{"role": "system", "content": "Add."}, *prompt], {}


class Odd(Add):
    def step(self, action):
        return "No.", 0.0, False, {}


register(id="add", entry_point=Add)
'''
ROWS = [
    {
        "data_source": "sums",
        "env_class": "add",
        "prompt": [{"role": "user", "content": f"What is {i} and 1?"}],
        "reward_spec": {"method": "rule", "ground_truth": str(i + 1)},
        "extra_info": {"index": i},
    }
    for i in range(8)
]
ROW = options_of({"whole_row": whole_row(ROWS[2]["prompt"], ROWS[2]["reward_spec"], "sums", {"index": 2})})


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """skyrl_gym, and a module `adds` that registers an environment."""
    for name, text in {**({} if HAS else IN_PLACE), "adds.py": ADDS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [*sys.modules]:
        if name == "adds" or name.partition(".")[0] == "skyrl_gym":
            del sys.modules[name]


@pytest.fixture
def rows(tmp_path: Path) -> str:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    return str(tmp_path / "rows.parquet")


def made(name: str = "adds:add", turns: int = 3, **env_config: Any) -> Any:
    kwargs = {"turns": turns, "env_config": env_config}
    return Source(f"skyrl_gym:{name}", None, kwargs).load()(**kwargs)


@pytest.mark.parametrize("name", ["adds:add", "adds:Add"])
def test_a_row_is_played(name: str) -> None:
    add = made(name, hint="Not so.")
    assert contract.reset(add, 0, ROW).text == "What is 2 and 1?"
    wrong, right = contract.step(add, "four"), contract.step(add, "It is 3.")
    assert wrong.messages == [{"role": "user", "content": "Not so."}, {"role": "user", "content": "Turn 1"}]
    assert (wrong.text, wrong.reward, wrong.terminated) == ("Not so.\nTurn 1", 0.04, False)
    assert (right.text, right.reward, right.terminated, right.messages) == ("", 1.08, True, [])
    assert right.numbers == {"skyrl/steps": 2, "skyrl/right": 1}


def test_its_most_turns_are_the_runs() -> None:
    add = made(turns=1)
    contract.reset(add, 0, ROW)
    assert contract.step(add, "four").terminated


@pytest.mark.parametrize(
    ("name", "said"), [("Prefaced", "init makes another prompt of the row's"), ("Odd", "no observations, reward and")]
)
def test_what_cannot_be_played_is_told(name: str, said: str) -> None:
    add = made(f"adds:{name}")

    def play() -> None:
        contract.reset(add, 0, ROW)
        contract.step(add, "four")

    with pytest.raises(Unfit, match=said):
        play()


@pytest.mark.parametrize("name", ["nothing", "adds:nothing", "nothing:Add"])
def test_a_name_that_is_not_known(name: str) -> None:
    with pytest.raises(NoEnvironment, match="othing") as caught:
        made(name)
    assert "skyrl_gym.pprint_registry()" in caught.value.hint


def test_its_class_in_a_file_is_shown_the_way(tmp_path: Path) -> None:
    with pytest.raises(NoEnvironment) as caught:
        Source(f"{tmp_path}/adds.py:Add", ADDS).load()
    assert caught.value.hint == "SkyRL-Gym's, which have init, are agent.env=skyrl_gym:MODULE:Add"


def test_it_is_checked_with_rows(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for action in ("It is 3.", "four", "5") for word in ("--action", action)]
    code = cli.main(["agent", "check", "skyrl_gym:adds:add", f"data.train_files={rows}", "--json", *words])
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert (code, found["determinism"]["status"]) == (0, "pass"), found
    assert "rewards from 0.01 to 1.08" in found["ends"]["detail"]


@pytest.mark.parametrize("verb", ["check", "play"])
def test_without_rows_nothing_is_played(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", verb, "skyrl_gym:adds:add"]) == 2
    assert "error: skyrl_gym:adds:add is played with rows of data" in capsys.readouterr().err


def test_what_has_no_effect_and_what_is_refused_beside_it(rows: str, words: Words, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def compute_score(*_): return 0.0\n")
    report = check_command(
        words(
            *("agent.env=skyrl_gym:adds:add", f"data.train_files={rows}", f"data.val_files={rows}"),
            *("agent.episodes=5", "agent.template=x", "agent.reward=last", "agent.env_kwargs={hint: no}"),
            *(f"custom_reward_function.path={tmp_path / 'mine.py'}", "agent.rows=turn"),
        )
    )
    assert [problem.key for problem in report.problems] == ["agent.rows", "custom_reward_function.path"]
    inert = {note.key for note in report.notes if note.kind == "inert" and note.key.startswith("agent.")}
    assert inert == {"agent.episodes", "agent.template"}


def test_a_run_is_trained_on_its_rewards_recorded_and_played_again(
    rows: str, words: Words, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ran(
        words(
            *("agent.env=skyrl_gym:adds:add", f"data.train_files={rows}", f"data.val_files={rows}"),
            *("agent.max_turns=2", "agent.max_turn_tokens=6", "data.max_response_length=60"),
            *("trainer.total_training_steps=2", "trainer.test_freq=2", "trainer.save_freq=2"),
            *(f"trainer.capsule_dir={tmp_path / 'capsules'}", f"trainer.rollout_data_dir={tmp_path / 'samples'}"),
            f"trainer.default_local_dir={tmp_path / 'run'}",
        )
    )
    assert [line["agent/dropped"] for line in lines] == [0, 0]
    assert all(line["agent/turns/max"] == 2 and line["training/rollout_logp_diff_max"] < 1e-4 for line in lines)
    assert lines[0]["agent/skyrl/steps/mean"] == lines[0]["agent/turns/mean"]
    assert "val-core/sums/reward/mean@1" in lines[1]
    samples = [json.loads(text) for text in (tmp_path / "samples/1.jsonl").read_text().splitlines()]
    for sample in samples:
        truth = sample["asked"]["whole_row"]["reward_spec"]["ground_truth"]
        assert sample["asked"]["whole_row"]["prompt"][0]["content"] == f"What is {int(truth) - 1} and 1?"
        earned = sum(len(turn["action"]) / 100 + (truth in turn["action"]) for turn in sample["turns"])
        assert sample["score"] == pytest.approx(earned)
    found = list(replay.replay(tmp_path / "capsules/step_2.capsule"))
    assert {each.verdict for each in found} == {"same", "skipped"}, "\n".join(table(found))
    capsys.readouterr()
    assert cli.main(["agent", "replay", str(tmp_path / "samples/1.jsonl"), "--row", "2", "--trust"]) == 0
    assert "same turn 1" in capsys.readouterr().out
