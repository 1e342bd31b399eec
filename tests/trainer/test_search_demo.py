"""The search demo: its command is one of the trainer's, and its model reads and writes what a conversation holds."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from trainer.agent.player import limits_of
from trainer.config import check_command, load
from trainer.config.schema import ModelConfig
from trainer.demo import search
from trainer.env.search import action_in, information, shown
from trainer.retrieval.api import Passage
from trainer.retrieval.bm25 import Index
from trainer.retrieval.corpus import read
from trainer.tokenizer import load_tokenizer


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> search.Files:
    monkeypatch.setattr(search, "TEACHING_STEPS", 1)
    return search.write(tmp_path, 1)


def test_its_command_is_one_of_the_trainers(files: search.Files, tmp_path: Path) -> None:
    words = search.overrides(files, tmp_path)
    resolved, report = load(words), check_command(words)
    assert (report.problems, report.notes, resolved.dialect) == ((), (), "verl-head")
    twin = check_command([*words, "agent.max_turns=1"])  # which may not search
    assert twin.ok


def test_every_question_finds_its_own_passage_and_fits(files: search.Files, tmp_path: Path) -> None:
    limits = limits_of(load(search.overrides(files, tmp_path)).config)
    tokenizer, index = load_tokenizer(ModelConfig(path=str(files.model))), Index(read(str(files.corpus)))
    names = [json.loads(line)["id"] for line in files.corpus.read_text().splitlines()]
    assert len(names) == len(set(names)) == 380
    for name, found in zip(names, index.search(names, 1), strict=True):
        [(row, _)] = found
        assert names[row] == name
        passage = Passage.of(index.corpus.document(row))
        assert passage.title == f'"{name}"' and passage.text in search.DIGITS
        read_ids = tokenizer(information(shown([passage])), add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in read_ids and len(read_ids) <= 40
        assert tokenizer.decode(read_ids) == information(shown([passage]))
        prompt = tokenizer(search.question(name), add_special_tokens=False)["input_ids"]
        assert len(prompt) <= limits.prompt_tokens
        assert 2 * limits.turn_tokens + len(read_ids) <= limits.response_tokens


def test_what_is_taught_is_a_form_and_nothing_of_the_corpus() -> None:
    tokenizer = search.make_tokenizer()
    for ids, own in itertools.islice(search.conversations(tokenizer, random.Random(1)), 200):
        assert len(ids) == len(own) and tokenizer.unk_token_id not in ids
        said = tokenizer.decode([token for token, is_own in zip(ids, own, strict=True) if is_own])
        kind, content = action_in(said)
        assert kind in ("search", "answer") and content and said.endswith("</answer>")
        assert tokenizer.convert_tokens_to_ids("<information>") not in [
            t for t, is_own in zip(ids, own, strict=True) if is_own
        ]


def test_names_of_validation_are_never_asked_in_training(files: search.Files) -> None:
    import pyarrow.parquet as pq

    asked = [
        {row["prompt"][0]["content"] for row in pq.read_table(path).to_pylist()}
        for path in (files.train, files.validation)
    ]
    assert len(asked[1]) == search.UNSEEN and not asked[0] & asked[1]
