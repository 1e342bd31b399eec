"""The lake's demo: its command is one of the trainer's, and its model reads and writes what the lake does."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

from trainer.agent.player import limits_of
from trainer.config import load
from trainer.config.agents import agent_notes, agent_problems, env_kwargs
from trainer.demo import lake
from trainer.env.frozen_lake import FrozenLake


def test_its_command_is_one_of_the_trainers(tmp_path: Path) -> None:
    resolved = load(lake.overrides(tmp_path))
    assert (list(agent_problems(resolved.config)), list(agent_notes(resolved.config)), resolved.notes) == ([], [], ())


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


def test_what_is_taught_is_letters_and_ends() -> None:
    tokenizer = lake.make_tokenizer()
    for ids, labels in itertools.islice(lake.games(tokenizer, random.Random(1)), 20):
        taught = tokenizer.decode([label for label in labels if label >= 0])
        assert set(taught.replace(tokenizer.eos_token, "")) <= set("LDRU")
        assert [i for i, label in zip(ids, labels, strict=True) if label >= 0] == [x for x in labels if x >= 0]
        assert taught.count(tokenizer.eos_token) * 2 == sum(label >= 0 for label in labels)
