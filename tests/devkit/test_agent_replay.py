"""`devkit agent replay`: what a run wrote is played again in this process, and the first difference is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit import cli
from devkit.agent.show import read
from tests.trainer.conversations import END, SAMPLING, Characters, Scripted, prompts_of
from trainer.agent.again import digest, environment_facts
from trainer.agent.homes import Houses
from trainer.agent.keep import scores
from trainer.agent.loop import Conversations, Limits
from trainer.agent.source import Source
from trainer.agent.speech import Speech
from trainer.config.agent_schema import AgentConfig
from trainer.config.schema import Config
from trainer.samples import dump

COUNT = '''
import random

class Count:
    """Says what it draws, and ends at the third step."""

    def __init__(self, most): self.most = most
    def reset(self, *, seed):
        self.dice, self.at = random.Random(seed), 0
        return self.line("Start"), {}
    def step(self, action):
        self.at += 1
        return self.line(f"{action}?"), self.at / 4, self.at == 3, False, {"metrics": {"hints": 5}}
    def line(self, word):
        return f"{word} {self.dice.randint(0, self.most)}\\u2028\\x85é"
    def close(self): print("closed")
'''
LIMITS = Limits(turns=9, turn_tokens=8, prompt_tokens=99, response_tokens=99, turn_s=60, trajectory_s=60, at_once=8)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`run(**limits)`: a run of three conversations, played by the trainer's own loop; the file that it writes."""
    path = tmp_path / "count.py"
    path.write_text(COUNT)

    def play(**limits: Any) -> Path:
        agent = AgentConfig(env=f"{path}:Count", env_kwargs=["most:999999"])
        source = Source(str(agent.env), COUNT, {"most": 999999})
        rollout = Conversations(
            prompts_of([[2]] * 3),
            SAMPLING,
            engine=Scripted(lambda context, uid, sample, turn: f"w{uid}{turn}"),
            speech=Speech(Characters(), [END]),
            limits=Limits(**(vars(LIMITS) | limits)),
            home=Houses(source, isolate=False).home,
            pad_id=0,
        ).play()
        known = environment_facts(Config(agent=agent), COUNT)
        dump(str(tmp_path), 3, [(rollout, scores(rollout, "turn"))], Characters().decode, environment=known)
        return tmp_path / "3.jsonl"

    yield play
    sys.modules.pop("agent_environment", None)


def replayed(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    capsys.readouterr()
    code = cli.main(["agent", "replay", *map(str, words), "--trust", "--json"])
    return code, json.loads(capsys.readouterr().out)


def edit(file: Path, before: str, after: str) -> None:
    path = file.with_name("count.py")
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_what_was_recorded_comes_again(run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    file = run()
    for row in (1, 2, 3):
        code, record = replayed(capsys, file, "--row", row)
        assert (code, record["verdict"], record["answers"], record["seed"]) == (0, "pass", 4, 99 + row)
    assert cli.main(["agent", "replay", str(file), "--row", "2", "--turn", "2", "--trust"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("conversation 2: row 1 of lake, sample 0, seed 101; ")
    assert [line.rpartition(",")[0] for line in lines[1:-1]] == [
        "same reset",
        "same turn 1: reward 0.25",
        "same turn 2: reward 0.5",
    ]
    assert lines[-1] == "closed"  # what it prints is seen


def test_a_limit_of_the_run_is_no_end_of_the_environments(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the last answer of a trajectory is compared, though no token of it is laid."""
    file = run(turns=2)
    assert read(file)[0]["ended"] == "turns"
    assert replayed(capsys, file, "--row", 1)[0] == 0
    edit(file, 'f"{action}?"', '(f"{action}?" if self.at < 2 else "gone")')
    code, record = replayed(capsys, file, "--row", 1)
    assert (code, record["difference"]["turn"], record["difference"]["what"]) == (1, 2, "observation")


@pytest.mark.parametrize(
    ("before", "after", "turn", "what", "recorded", "now"),
    [
        ('"Start"', '"Begin"', 0, "observation", "Start ", "Begin "),
        ("self.at / 4", "self.at / 8", 1, "reward", "0.25", "0.125"),
        ("self.at == 3, False", "self.at == 2, False", 2, "end", "goes on", "terminated"),
        ("self.at == 3, False", "False, self.at == 3", 3, "end", "terminated", "truncated"),
        ("self.at == 3, False", "False, False", 3, "end", "terminated", "goes on"),
        ("self.at += 1", "self.at += 1; 1 / (2 - self.at)", 2, "error", "an answer", "ZeroDivisionError"),
        ("(0, self.most)", "(0, 9) + random.random()", 0, "observation", "Start ", "Start "),
        ('{"metrics": {"hints": 5}}', "None", 1, "error", "an answer", "info that is no mapping"),
    ],
)
def test_the_first_difference_is_named(
    run: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    turn: int,
    what: str,
    recorded: str,
    now: str,
) -> None:
    file = run()
    edit(file, before, after)
    code, record = replayed(capsys, file, "--row", 1)
    found = record["difference"]
    assert (code, record["verdict"], found["turn"], found["what"]) == (1, "fail", turn, what), found
    assert recorded in str(found["recorded"]) and now in str(found["replayed"])
    code = cli.main(["agent", "replay", str(file), "--row", "1", "--trust"])
    out, err = capsys.readouterr()
    assert code == 1 and f"DIFF {f'turn {turn}' if turn else 'reset'}: {what}" in out
    assert "count.py has changed since the run" in " ".join(err.split())
    if "ZeroDivisionError" in now:  # its own lines alone, to step through
        assert f'count.py", line {COUNT[: COUNT.index("self.at += 1")].count(chr(10)) + 1}, in step' in err
        assert "contract.py" not in err


def test_an_environment_may_have_moved(run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    file = run()
    file.with_name("count.py").rename(moved := file.with_name("moved.py"))
    assert cli.main(["agent", "replay", str(file), "--row", "1", "--trust"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "error: cannot read" in err and "--env FILE.py:CLASS" in err
    assert replayed(capsys, file, "--row", 1, "--env", f"{moved}:Count")[0] == 0


def test_a_breakpoint_in_it_is_at_a_prompt(run: Callable[..., Path]) -> None:
    """`breakpoint()` in the environment, and pdb's own breakpoints at its lines."""
    file = run()
    line = COUNT[: COUNT.index("self.at += 1")].count("\n") + 1
    edit(file, "        self.at += 1", "        self.at += 1; breakpoint()")
    replay = ["-m", "devkit", "agent", "replay", str(file), "--row", "1", "--trust"]
    typed = {
        tuple(replay): "p 'see', action, self.at\nc\nq\n",
        ("-m", "pdb", *replay): f"b {file.with_name('count.py')}:{line}\nc\np 'see', action\nq\n",
    }
    for words, keys in typed.items():
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, *words], input=keys, capture_output=True, text=True, timeout=120, env=env
        )
        assert "('see', 'w00'" in done.stdout, done
        assert "Traceback" not in done.stdout + done.stderr, done


@pytest.mark.parametrize(
    ("change", "words", "error"),
    [
        ({"seed": None}, ("--row", "1"), "has no seed"),
        ({"observation": None}, ("--row", "1"), "has no seed, or not what its environment was given"),
        ({"environment": None}, ("--row", "1"), "does not say which environment"),
        ({"environment": {"env": "gone", "kwargs": {}}}, ("--row", "1"), "gone is neither an environment"),
        ({"environment": {"env": 5, "kwargs": {}}}, ("--row", "1"), "does not say which environment"),
        ({"environment": {"kwargs": {}}}, ("--row", "1"), "does not say which environment"),
        ({}, ("--row", "9"), "there is no conversation 9"),
        ({}, ("--row", "1", "--turn", "9"), "there is no turn 9"),
        ({}, ("--row", "1", "--env", "count.py"), "count.py is neither"),
    ],
)
def test_a_record_without_what_it_needs_is_one_error(
    run: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    words: tuple[str, ...],
    error: str,
) -> None:
    file = run()
    file.write_text("".join(json.dumps(sample | change) + "\n" for sample in read(file)))
    assert cli.main(["agent", "replay", str(file), *words, "--trust"]) == 2
    err = capsys.readouterr().err
    assert error in " ".join(err.split()) and "hint:" in err


def test_a_class_that_is_gone_is_one_error(run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    file = run()
    edit(file, "class Count", "class Counter")
    assert cli.main(["agent", "replay", str(file), "--row", "1", "--trust"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "has no class Count" in err and "it has Counter" in err


@pytest.mark.parametrize(
    ("env", "what"),
    [
        ("FOLDER/evil.py:Evil", "names code: "),
        ("gymnasium:evil:Evil-v0", "names code: gymnasium:evil:Evil-v0"),
        ("gem:evil:Evil-v0", "names code: "),
        ("skyrl_gym:evil:Evil", "names code: "),
        ("openenv+ws://127.0.0.1:9", "names a server: ws://127.0.0.1:9"),
        ("tools", "names tools, which are files of code"),
    ],
)
def test_a_sent_file_runs_nothing_that_it_names(
    env: str,
    what: str,
    run: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not even with the digest of what is there: whoever sends one file may send two."""
    mark, evil = tmp_path / "ran", tmp_path / "evil.py"
    evil.write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n{COUNT.replace('Count', 'Evil')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked: list[object] = []
    monkeypatch.setattr("trainer.agent.others.load", lambda *given: asked.append(given))
    env = env.replace("FOLDER", str(tmp_path))
    files = {"tool_config_path": None, "function_tool_path": str(evil)}
    known = {"env": env, "kwargs": {"most": 999999}, "files": files, "agent": "tool_agent"}
    if env.endswith(".py:Evil"):
        known["sha256"] = digest(evil.read_text())
    file = run()
    file.write_text("".join(json.dumps(sample | {"environment": known}) + "\n" for sample in read(file)))
    named = ("--env", "tools") if env == "tools" else ()
    assert cli.main(["agent", "replay", str(file), "--row", "1", *named]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert what in err and "if you know who wrote that file" in err and "--trust" in err
    assert not mark.exists() and not asked


def test_an_environment_that_is_named_runs(run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The same file, by who types the command; one of the trainer's own needs no word."""
    file = run()
    path = file.with_name("count.py")
    assert cli.main(["agent", "replay", str(file), "--row", "1", "--env", f"{path}:Count"]) == 0
    samples = read(file)
    own = {"env": "frozen_lake", "kwargs": {"rows": "SF/FG"}}
    file.write_text("".join(json.dumps(sample | {"environment": own}) + "\n" for sample in samples))
    assert cli.main(["agent", "replay", str(file), "--row", "1"]) == 1
    assert "DIFF reset: observation" in capsys.readouterr().out


@pytest.mark.parametrize(
    "files",
    [None, "x", {"tool_config_path": 5}, {"unknown": "x"}, {"function_tool_path": "\0"}, {"tool_config_path": "gone"}],
)
def test_tools_that_no_run_wrote_are_one_error(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str], files: object
) -> None:
    file = run()
    known = {"env": "tools", "kwargs": {}, "files": files, "agent": "tool_agent"}
    file.write_text("".join(json.dumps(sample | {"environment": known}) + "\n" for sample in read(file)))
    assert cli.main(["agent", "replay", str(file), "--row", "1", "--trust"]) == 2
    assert "hint:" in capsys.readouterr().err
