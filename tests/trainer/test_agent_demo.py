"""The lake's demo: its command is one of the trainer's, and its model reads and writes what the lake does."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

from trainer.agent.player import limits_of
from trainer.config import load
from trainer.config.agents import agent_notes, agent_problems, env_kwargs
from trainer.config.schema import ModelConfig
from trainer.demo import lake
from trainer.env.frozen_lake import FrozenLake
from trainer.tokenizer import load_tokenizer


def test_its_command_is_one_of_the_trainers(tmp_path: Path) -> None:
    resolved = load(lake.overrides(tmp_path))
    assert (list(agent_problems(resolved.config)), list(agent_notes(resolved.config)), resolved.notes) == ([], [], ())


def test_its_command_can_be_read_in_a_folder_of_any_name(tmp_path: Path) -> None:
    assert load(lake.overrides(tmp_path / "Über uns, mit 'Platz'")).config.trainer.default_local_dir.endswith("'Platz'")


def test_every_board_and_answer_has_its_characters_and_fits(tmp_path: Path) -> None:
    config, tokenizer = load(lake.overrides(tmp_path)).config, lake.make_tokenizer()
    limits = limits_of(config)
    board = FrozenLake(**env_kwargs(config.agent))
    unknown = tokenizer.unk_token_id
    for seed in range(50):
        text, _ = board.reset(seed=seed)
        first = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert unknown not in first and len(first) <= limits.prompt_tokens and tokenizer.decode(first) == text
        longest = max(
            len(tokenizer(board.step(letter)[0], add_special_tokens=False)["input_ids"]) for letter in ("?", "U", "L")
        )
        turns = limits.turns * limits.turn_tokens + (limits.turns - 1) * longest
        assert turns <= limits.response_tokens


def test_the_trainer_loads_the_same_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers makes a Qwen2's tokenizer anew from its vocabulary: no board may lose a line break by that."""
    monkeypatch.setattr(lake, "TEACHING_STEPS", 1)
    lake.write_model(tmp_path, 1)
    loaded, made = load_tokenizer(ModelConfig(path=str(tmp_path))), lake.make_tokenizer()
    text, _ = FrozenLake(size=3, terse=True).reset(seed=1)
    ids = made(text, add_special_tokens=False)["input_ids"]
    assert loaded(text, add_special_tokens=False)["input_ids"] == ids and len(ids) == 3 * 3 + 2
    assert loaded.decode(ids) == made.decode(ids) == text


def test_what_is_taught_is_how_letters_move_and_not_where_to_go() -> None:
    """Games of drawn letters: each of the four as often as the others, in front of any board."""
    tokenizer, letters = lake.make_tokenizer(), Counter[str]()
    for ids in itertools.islice(lake.games(tokenizer, random.Random(1)), 300):
        assert tokenizer.unk_token_id not in ids
        first, *turns = tokenizer.decode(ids).split(tokenizer.eos_token)
        letters.update([first[-1], *(turn[-1] for turn in turns[:-1])])
    assert set(letters) == set("LDRU")
    assert max(letters.values()) < 1.2 * min(letters.values())
