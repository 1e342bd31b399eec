"""The demo's task, sums of two numbers below ten: its model, data and reward function, made here and offline."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.demo import tiny

BELOW = 10  # both numbers of a sum
PAIRS = tuple((a, b) for a in range(BELOW) for b in range(BELOW))
PAD, END, UNKNOWN = "<pad>", "<end>", "<unknown>"
CHARACTERS = "0123456789+="
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
POSITIONS = 32
PROMPT_TOKENS, RESPONSE_TOKENS = 4, 3  # "7+8=", and "15" with its end
ROWS = 2048
# What is learned from is the reward. Without any right answer there would be none, so some are taught before.
TEACHING_STEPS, TEACHING_ROWS, TEACHING_RATE = 400, 64, 3e-3
RIGHT = 0.5  # of the sums that are taught

REWARD = '''\
"""The demo's reward: 1 for the right sum, nothing else."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str.strip() == ground_truth)
'''


@dataclass(frozen=True)
class Files:
    """What a run of the demo needs."""

    model: Path
    train: Path
    validation: Path
    reward: Path


def write(folder: Path, seed: int) -> Files:
    """Everything, below `folder`, which is made."""
    files = Files(folder / "model", folder / "train.parquet", folder / "test.parquet", folder / "reward.py")
    folder.mkdir(parents=True, exist_ok=True)
    files.reward.write_text(REWARD)
    drawn = random.Random(seed)
    write_rows(files.train, [drawn.choice(PAIRS) for _ in range(ROWS)])
    write_rows(files.validation, PAIRS)
    write_model(files.model, seed)
    return files


def write_rows(path: Path, pairs: Sequence[tuple[int, int]]) -> None:
    """A parquet file in verl's schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": question(a, b)}],
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        }
        for a, b in pairs
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


def question(a: int, b: int) -> str:
    """
    >>> question(7, 8)
    '7+8='
    """
    return f"{a}+{b}="


def make_tokenizer() -> Any:
    """A token for each character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate((PAD, END, UNKNOWN, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE, padding_side="left", **special
    )


def write_model(folder: Path, seed: int) -> None:
    """A Qwen2 of 0.1 million parameters that writes a number behind each question, and now and then the right one."""
    tokenizer = make_tokenizer()
    model = tiny.new_model(tokenizer, seed, POSITIONS)
    teach_to_write(model, tokenizer, random.Random(seed))
    tiny.save(model, tokenizer, folder)


def teach_to_write(model: Any, tokenizer: Any, drawn: random.Random) -> None:
    """Some steps of plain supervised training on sums, most of them with the answer of another one."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=TEACHING_RATE)
    for _ in range(TEACHING_STEPS):
        asked = [drawn.choice(PAIRS) for _ in range(TEACHING_ROWS)]
        added = [pair if drawn.random() < RIGHT else drawn.choice(PAIRS) for pair in asked]
        texts = [question(*pair) + str(sum(other)) for pair, other in zip(asked, added, strict=True)]
        batch = tokenizer([text + END for text in texts], padding=True, padding_side="right", return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        labels[:, :PROMPT_TOKENS] = -100
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
