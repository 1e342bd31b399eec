"""`devkit agent play`: a person in the model's place sees the tokens and masks that the trainer's own loop makes."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit import cli
from devkit.smoke.tiny import make_tokenizer
from tests.pace import stretched
from tests.trainer.search_stub import retriever
from trainer.env.frozen_lake import FrozenLake

COUNT = '''
class Count:
    """Says what it was told, and ends at the third step."""

    def reset(self, *, seed):
        print("talk")
        self.at = 0
        return f"Start {seed}", {}
    def step(self, action):
        self.at += 1
        if action == "fail": raise ValueError("as told")
        return f"{action}?", self.at / 4, self.at == 3, False, {"metrics": {"hints": 5}}
    def close(self): print("closed")
'''
LAKE = ("frozen_lake", "agent.env_kwargs={size:3,terse:True}")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = make_tokenizer(tuple(f"Ann has {n} pens and buys {n + 3} more." for n in range(100)))
    made.save_pretrained(tmp_path_factory.mktemp("tokenizer"))
    made.folder = str(tmp_path_factory.getbasetemp() / "tokenizer0")
    return made


@pytest.fixture
def count(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "count.py").write_text(COUNT)
    yield f"{tmp_path / 'count.py'}:Count"
    sys.modules.pop("agent_environment", None)


@pytest.fixture
def played(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any]]:
    """`played("said\\n", ENV, ...)`: the exit code, and the document."""

    def play(said: str, *words: str) -> tuple[int, Any]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        code = cli.main(["agent", "play", *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return play


def test_tokens_and_masks_are_those_of_a_run(played: Callable[..., tuple[int, Any]], tokenizer: Any) -> None:
    """Given a template; what stands between two turns is glue and observation, and the end is sampled."""
    code, document = played("R\nD\n", *LAKE, "--tokenizer", tokenizer.folder, "--seed", "5")
    lake = FrozenLake(size=3, terse=True)
    first, _ = lake.reset(seed=5)
    second = lake.step("R")[0]
    assert (code, document["ended"], document["seed"], document["prompt"]) == (0, "left", 5, first)
    assert tokenizer.decode(document["prompt_ids"]) == f"<|im_start|>user\n{first}<|im_end|>\n<|im_start|>assistant\n"
    turn = document["turns"][0]
    assert turn["sampled_ids"] == [*tokenizer("R")["input_ids"], tokenizer.eos_token_id]
    assert turn["observation"] == second
    glue = f"\n<|im_start|>user\n{second}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(turn["answered_ids"]) == glue


def test_an_episode_ends_by_its_environment_and_by_the_runs_limits(
    count: str, played: Callable[..., tuple[int, Any]]
) -> None:
    code, document = played("a\nb\nc\nd\n", count)
    assert (code, document["ended"], document["score"]) == (0, "terminated", 1.5)
    assert [turn["observation"] for turn in document["turns"]] == ["a?", "b?", "c?"]
    assert [turn["sampled_ids"] for turn in document["turns"]] == [None] * 3 and document["prompt_ids"] is None
    assert played("a\nb\nc\nd\n", count, "agent.max_turns=2")[1]["ended"] == "turns"
    assert played("", count)[1]["turns"] == []
    code, document = played("a\nfail\n", count)
    assert code == 1 and "step raised ValueError: as told" in document["failure"] and len(document["turns"]) == 2


def test_a_turn_has_the_tokens_that_a_run_gives_it(played: Callable[..., tuple[int, Any]], tokenizer: Any) -> None:
    words = (*LAKE, "--tokenizer", tokenizer.folder, "agent.max_turn_tokens=2")
    document = played("Right\n", *words)[1]
    assert document["turns"][0]["sampled"] == "Ri" and document["turns"][0]["answered_ids"][0] == tokenizer.eos_token_id


def test_a_search_ends_its_turn_at_a_tag(played: Callable[..., tuple[int, Any]], tokenizer: Any) -> None:
    with retriever(lambda query: [f"{query}\nof {query}"]) as stub:
        words = ("search", "--prompt", "Who? ", "--tokenizer", tokenizer.folder, f"retriever.url={stub.url}")
        code, document = played("<search>a</search> and more\n<answer>b</answer>\n", *words)
    assert (code, document["ended"]) == (0, "terminated")
    assert [turn["sampled"] for turn in document["turns"]] == ["<search>a</search>", "<answer>b</answer>"]
    assert "<information>Doc 1(Title: a) of a" in document["turns"][0]["observation"]


def test_a_search_without_a_question_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "play", "search", "retriever.url=http://127.0.0.1:1/retrieve"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert "no first observation" in error and "--prompt" in hint


def test_on_a_terminal_one_is_asked_and_leaves_by_ctrl_d(count: str) -> None:
    here, there = pty.openpty()
    command = [sys.executable, "-m", "devkit", "agent", "play", count]
    with subprocess.Popen(command, stdin=there, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        os.close(there)
        os.write(here, b"a\n\x04")
        said = process.communicate(timeout=stretched(60.0))[0].decode()
        os.close(here)
    assert process.returncode == 0
    assert said.count("you> ") == 2 and "   env | a?" in said and "left after 1 turn, score 0.25" in said
