"""Word problems in GSM8K's published format, written on the spot, and the reward of the learning gate."""

from __future__ import annotations

import json
import random
from pathlib import Path

NAMES = ("Ada", "Bo", "Chen", "Dina", "Emil", "Fay")
THINGS = ("apples", "books", "cards", "keys", "pens", "stones")

# The gate's task: answer in digits. The share of digits among a response's characters rises from what a random model
# gives by chance (a few per cent) to nearly 1, and no reasoning is needed to find out how.
GATE_REWARD = '''\
"""The learning gate's reward: the share of digits among the characters of a response."""


def compute_score(data_source, solution_str, ground_truth, extra_info):
    return sum(c.isdigit() for c in solution_str) / max(1, len(solution_str))
'''


def word_problems(count: int, seed: int) -> list[dict[str, str]]:
    """`count` records with `question` and `answer`, the answer ending in `#### number`.

    >>> word_problems(1, seed=0)[0]["answer"].splitlines()[-1].startswith("#### ")
    True
    """
    draw = random.Random(seed)
    problems = []
    for _ in range(count):
        name, thing = draw.choice(NAMES), draw.choice(THINGS)
        had, more, gone = draw.randint(10, 60), draw.randint(2, 40), draw.randint(1, 9)
        total = had + more - gone
        question = f"{name} has {had} {thing}, finds {more} and gives away {gone}. How many {thing} are left?"
        answer = f"{had} + {more} = <<{had}+{more}={had + more}>>{had + more}.\n#### {total}"
        problems.append({"question": question, "answer": answer})
    return problems


def write_parquet(folder: Path, count: int, seed: int) -> tuple[str, str]:
    """Training and validation files, through the very code that prepares the published data."""
    from trainer.data.prepare import prepare

    for split, rows, offset in (("train", count, 0), ("test", max(4, count // 8), 1)):
        records = word_problems(rows, 2 * seed + offset)
        (folder / f"{split}.jsonl").write_text("\n".join(json.dumps(record) for record in records) + "\n")
    inputs = [str(folder / "train.jsonl"), str(folder / "test.jsonl")]
    prepare("gsm8k", inputs, folder)
    return str(folder / "train.parquet"), str(folder / "test.parquet")
