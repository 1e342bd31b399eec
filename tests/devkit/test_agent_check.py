"""`devkit agent check`: what is wrong with an environment is found without a model, and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from devkit import cli
from devkit.smoke.tiny import make_tokenizer
from tests.trainer.retrievers import serving

LAKE = '''
import os, random, time

class Count:
    """Ends after three steps."""

    def __init__(self, how=""): self.how = how
    def reset(self, *, seed):
        self.dice, self.at = random.Random(seed), 0
        return f"Start {self.dice.randint(0, 9)}", {}
    def step(self, action):
        self.at += 1
        text, reward, done = f"Go on {self.dice.randint(0, 9)}", self.at / 4, self.at == 3
        if self.how == "global": text = str(random.random())
        if self.how == "clock": reward = time.time()
        if self.how == "raises" and self.at == 2: raise ValueError("lost its way")
        if self.how == "hangs": time.sleep(1000)
        if self.how == "dies": os.abort()
        if self.how == "never": done, reward = False, 0.0
        return text, reward, done, False, {}
    def close(self): ...
'''


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """`check(how, WORD...)`: exit code and record, the checks by name."""
    (tmp_path / "count.py").write_text(LAKE)

    def run(how: str = "", *words: str) -> tuple[int, dict[str, Any]]:
        env = f"{tmp_path / 'count.py'}:Count"
        code = cli.main(["agent", "check", env, f"agent.env_kwargs=[how:{how}]", "--json", "--episodes", "4", *words])
        record = json.loads(capsys.readouterr().out)
        return code, record | {"checks": {each["name"]: each for each in record.get("checks", [])}}

    return run


def test_a_good_one_passes(check: Callable[..., Any]) -> None:
    code, record = check()
    assert (code, record["verdict"]) == (0, "pass")
    statuses = {name: each["status"] for name, each in record["checks"].items()}
    assert statuses == {
        **dict.fromkeys(("episodes", "determinism", "time", "ends"), "pass"),
        **dict.fromkeys(("mask", "lengths"), "skip"),
    }
    assert record["checks"]["episodes"]["detail"] == "4 episodes, 12 steps"
    assert "4 of 4 episodes ended by themselves" in record["checks"]["ends"]["detail"]


ASKS = """
from trainer.retrieval import here

class Asks:
    def reset(self, *, seed): return "Ask.", {}
    def step(self, action): return here().search(["Faust"])[0][0].title, 1.0, True, False, {}
    def close(self): ...
"""


def test_an_environment_that_searches_has_the_retriever_of_the_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    words = ["agent", "check", f"{tmp_path / 'asks.py'}:Asks", "--json", "--episodes", "2"]
    with serving() as url:
        assert cli.main([*words, f"retriever.url={url}"]) == 0
    first, second, *_ = json.loads(capsys.readouterr().out)["checks"]
    assert (first["name"], first["status"], second["status"]) == ("retriever", "pass", "pass")
    assert first["detail"].startswith(f"4 passages, digest d, at {url}; a search took ")
    assert cli.main([*words, f"retriever.url={url}", "retriever.timeout=1"]) == 1
    assert f"no retriever answers at {url}" in capsys.readouterr().err
    assert cli.main([*words, "retriever.url=nowhere"]) == 2
    assert "is not http://HOST:PORT/PATH" in capsys.readouterr().err
    assert cli.main(words) == 1
    assert "there is no retriever here" in json.loads(capsys.readouterr().out)["checks"][0]["detail"]


@pytest.mark.parametrize(
    ("how", "name", "said"),
    [
        ("raises", "episodes", "turn 2, after the action"),
        ("raises", "episodes", "step raised ValueError: lost its way at "),
        ("dies", "episodes", "its process was ended by SIGABRT"),
        ("hangs", "episodes", "step had not answered after 0.5 s"),
        ("global", "determinism", "turn 1: the observation was '0."),
        ("clock", "determinism", "turn 1: reward was 1"),
    ],
)
def test_what_is_wrong_is_named_with_seed_and_turn(check: Callable[..., Any], how: str, name: str, said: str) -> None:
    code, record = check(how, *(("--timeout", "0.5") if how == "hangs" else ()))
    assert (code, record["verdict"]) == (1, "fail")
    found = record["checks"][name]
    assert found["status"] == "fail" and said in found["detail"] and "seed " in found["detail"], found


def test_one_that_never_ends_asks_for_actions(check: Callable[..., Any]) -> None:
    code, record = check("never", "agent.max_turns=5")
    assert code == 0 and record["checks"]["ends"]["status"] == "skip"
    assert "0 of 4 episodes" in record["checks"]["ends"]["detail"] and "--action" in record["checks"]["ends"]["detail"]


def test_with_a_tokenizer_the_mask_is_proved_and_lengths_are_counted(check: Callable[..., Any], tmp_path: Path) -> None:
    make_tokenizer(["Start and go on", "yes"]).save_pretrained(tmp_path / "model")
    words = (f"actor_rollout_ref.model.tokenizer_path={tmp_path / 'model'}", "--action", "yes", "--action", "no ✓")
    code, record = check("", *words)
    assert code == 0, record
    assert record["checks"]["mask"]["detail"].startswith("chat: what is trained of 4 episodes is what was done")
    assert "data.max_prompt_length=512" in record["checks"]["lengths"]["detail"]
    code, record = check("", *words, "data.max_prompt_length=2")
    assert code == 1 and record["checks"]["lengths"]["status"] == "fail"
    code, record = check("", *words, "data.max_response_length=20")
    assert code == 0 and "4 of 4 would be cut short" in record["checks"]["lengths"]["detail"]


def test_an_observation_that_the_tokenizer_changes_is_named(check: Callable[..., Any], tmp_path: Path) -> None:
    tokenizer = make_tokenizer(["Start and go on"])
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save_pretrained(tmp_path / "model")
    code, record = check("", f"actor_rollout_ref.model.tokenizer_path={tmp_path / 'model'}")
    assert code == 1 and record["checks"]["mask"]["status"] == "fail"
    assert "turn 0: the observation 'Start " in record["checks"]["mask"]["detail"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["frozen_lak"], "agent.env=frozen_lak is no environment"),
        (["gone.py:Lake"], "gone.py is not a file"),
        ([""], "ENV is empty"),
        ([" "], "ENV is empty"),
        (["frozen_lake", "data.train_files=x.parquet"], "data.train_files is given beside agent.env"),
        (["frozen_lake", "custom_reward_function.path=x.py"], "custom_reward_function.path is given beside agent.env"),
        (["frozen_lake", "algorithm.adv_estimator=gigpo", "agent.reward=last"], "leaves nothing for the turns"),
        (["frozen_lake", "agent.env=sokoban"], "agent.env=sokoban is given beside frozen_lake"),
        (["frozen_lake", "agent.max_turns=0"], "agent.max_turns=0 is out of range"),
        (["frozen_lake", "agent.env_kwargs=[size]"], "'size' is not NAME:VALUE"),
        (["frozen_lake", "agent.env_kwargs={sise:3}"], None),
    ],
)
def test_words_of_no_use_are_one_error(capsys: pytest.CaptureFixture[str], words: list[str], error: str | None) -> None:
    code = cli.main(["agent", "check", *words])
    out, err = capsys.readouterr()
    if error is None:  # the environment's own error is a finding
        assert code == 1 and "unexpected keyword argument 'sise'" in out.replace("\n", " ")
    else:
        assert code == 2 and error in err and "hint:" in err


def test_people_read_a_line_per_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "check", "frozen_lake", "--episodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["episodes", "determinism", "time", "ends", "mask", "lengths"]
    assert lines[0].startswith("ok ") and lines[-1].startswith("skip ")


def test_each_problem_comes_with_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "check", "frozen_lake", "agent.max_turns", "agent.episodes=0"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: 2 problems: ") and "agent.max_turns is not an override" in error
    assert hint.startswith("hint: ") and "; " in hint and "--check" not in hint


def test_what_has_no_effect_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "check", "frozen_lake", "max_turns=3", "--episodes", "1"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == ["note: max_turns has no effect: nothing is searched; agent.max_turns bounds other conversations"]


def test_a_file_without_a_class_is_said_with_its_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "count.py").write_text(LAKE)
    assert cli.main(["agent", "check", str(tmp_path / "count.py")]) == 2
    assert "count.py:CLASS; it has Count" in capsys.readouterr().err


SHARED = """
print("loading")

class Shared:
    resets = 0
    def reset(self, *, seed):
        Shared.resets += 1
        print("a reset")
        return f"{Shared.resets}", {}
    def step(self, action): return "", 0.0, True, False, {}
"""


@pytest.mark.parametrize(("isolate", "code"), [(True, 0), (False, 1)])
def test_it_plays_where_the_run_plays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], isolate: bool, code: int
) -> None:
    """Environments of one process share what belongs to their class."""
    (tmp_path / "shared.py").write_text(SHARED)
    env = f"{tmp_path / 'shared.py'}:Shared"
    assert cli.main(["agent", "check", env, f"agent.isolate={isolate}", "--episodes", "3", "--json"]) == code
    _, same, timed, ends, *_ = json.loads(capfd.readouterr().out)["checks"]
    wanted = "same twice, in other processes" if isolate else "the observation was '1' and then '3'"
    assert wanted in same["detail"] and ("no time limit" in timed["detail"]) != isolate
    assert ends["status"] == "skip" and "no reward is other than 0: give actions that earn one" in ends["detail"]


def test_what_a_file_that_leaves_threads_costs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "count.py").write_text(f"import threading; threading.Thread(target=input, daemon=True)\n{LAKE}")
    waits = "import threading; threading.Thread(target=threading.Event().wait, name='mine', daemon=True).start()"
    (tmp_path / "count.py").write_text(f"{waits}\n{LAKE}")
    env = f"{tmp_path / 'count.py'}:Count"
    assert cli.main(["agent", "check", env, "--episodes", "2", "--json"]) == 0
    timed = json.loads(capsys.readouterr().out)["checks"][2]["detail"]
    assert "each environment loads " in timed and "leaves a thread of its own (mine) running" in timed
