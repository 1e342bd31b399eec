"""`devkit agent show`: recorded conversations, as they were written; a file that is none is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from devkit import cli
from tests.trainer.conversations import conversations
from trainer.records import Scores
from trainer.samples import dump


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two conversations, as a run writes them."""
    rollout = conversations([([70], [([71, 72], [73, 74], 0.5), ([75], [], 1.0)]), ([76], [([77], [], -1.0)])])
    scores = Scores(torch.tensor([1.5, -1.0]), {})
    dump(str(tmp_path), 3, [(rollout, scores)], lambda ids: "".join(map(chr, ids)).replace("J", "\n"))
    return tmp_path / "3.jsonl"


def shown(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main(["agent", "show", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_a_list_of_them(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, file).splitlines()
    assert lines[0].split() == ["number", "score", "turns", "ended", "row"]
    assert lines[1].split() == ["1", "1.5", "2", "terminated", "row", "0", "of", "lake"]
    assert len(lines) == 3


def test_one_turn_by_turn(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, file, "--row", 1).splitlines() == [
        "conversation 1: row 0 of lake, sample 0, seed 100; terminated, score 1.5",
        "   env | F",
        "turn 1: 2 tokens, mean log-prob -0.715, reward 0.5, 0.000 s",
        " model | GH",
        "   env | I",  # and a line break: each line says whose it is
        "   env | ",
        "turn 2: 1 tokens, mean log-prob -0.750, reward 1, 0.000 s",
        " model | K",
    ]
    lines = shown(capsys, file, "--row", 1, "--turn", 2).splitlines()
    assert [line.split(":")[0] for line in lines] == ["conversation 1", "turn 2", " model | K"]


def test_as_records(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed: Any = json.loads(shown(capsys, file, "--json"))
    assert [(each["number"], each["turn_count"]) for each in listed["conversations"]] == [(1, 2), (2, 1)]
    one = json.loads(shown(capsys, file, "--row", 1, "--json"))
    assert (one["prompt"], one["turns"][0]["sampled_ids"], one["turns"][0]["answered_ids"]) == ("F", [71, 72], [73, 74])


@pytest.mark.parametrize(
    ("text", "words", "error"),
    [
        (None, (), "cannot read"),
        ("not json\n", (), "line 1 of"),
        ('{"row": "row 1 of a.parquet", "prompt": "", "response": "", "score": 1.0}\n', (), "line 1 of"),
        ('{"row": "r", "prompt": "", "ended": "turns", "score": 1, "turns": [{"logp": ["x"]}]}\n', (), "line 1 of"),
        ("[" * 100_000 + "\n", (), "line 1 of"),
        ("whole", ("--row", "9"), "there is no conversation 9"),
        ("whole", ("--row", "1", "--turn", "7"), "there is no turn 7"),
        ("whole", ("--turn", "1"), "--turn needs a conversation"),
    ],
)
def test_what_is_not_there_is_one_error(
    file: Path, capsys: pytest.CaptureFixture[str], text: str | None, words: tuple[str, ...], error: str
) -> None:
    path = file.with_name("other.jsonl")
    if text is not None:
        path.write_text(file.read_text() if text == "whole" else text)
    assert cli.main(["agent", "show", str(path), *words]) == 2
    err = capsys.readouterr().err
    assert error in " ".join(err.split()) and "hint:" in err
