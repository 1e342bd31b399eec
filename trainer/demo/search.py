"""`python -m trainer.demo.search [--output DIR] [KEY=VALUE ...]`: a tiny model learns to search and to read.

A question is a name of two letters, and its answer a number that stands in the corpus alone. The model writes a query,
reads the passage that the retriever finds for it, and answers; the reward is 1 for the right number. Names that it is
validated on are never asked in training. A thin layer, as `trainer.demo`, over `trainer.main_ppo`.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from trainer import main_ppo
from trainer.commands import outcome, output
from trainer.curve import BLOCKS, svg_curve, text_curve
from trainer.demo import tiny
from trainer.demo.__main__ import ASCII, COMMAND_FILE, CURVE_FILE, script, series
from trainer.demo.task import END, PAD, UNKNOWN
from trainer.env.search import information, shown
from trainer.retrieval.api import Passage
from trainer.tracking import METRICS_FILE, SCORE, written
from trainer.wrapping import print_line

STEPS, WORKERS, SEED = 60, 2, 1
LETTERS, DIGITS = "bcdfghjklmnpqrstvwxz", string.digits  # without vowels no name is a word that retrievers leave out
UNSEEN = 80  # names that are kept for validation
TAGS = ("<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>")
CHARACTERS = string.ascii_letters + string.digits + ' .,?"():<>/'
LINE_BREAK, BLANK = "Ċ", "Ġ"  # as vocabularies of bytes write them
POSITIONS, SOURCE = 128, "popqa"  # whose answers are scored by their text
VALIDATION = f"val-core/{SOURCE}/reward/mean@1"
# It is taught what a conversation is: a query, what it finds, an answer. Of whatever is asked, searched and answered,
# some go together and most do not, so that it knows of each and prefers none.
TEACHING_STEPS, TEACHING_ROWS, TEACHING_RATE = 400, 32, 2e-3
RIGHT = 0.5  # of queries are for what is asked, and of answers what was found
SEARCHING = 0.8  # of conversations; the others answer at once


@dataclass(frozen=True)
class Files:
    """What a run of the demo needs."""

    model: Path
    corpus: Path
    train: Path
    validation: Path


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    return tiny.parse(
        argv,
        program="trainer.demo.search",
        description="A tiny model learns to search, and to read what it found.",
        example="agent.max_turns=1, with which it may not search",
        named="search",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, as that of `trainer.main_ppo`."""
    words = sys.argv[1:] if argv is None else argv
    return outcome(lambda: command(parse(argv)), verbose="--verbose" in words, long=True)


def command(options: argparse.Namespace) -> int:
    """Everything: make, train, show. Raises TrainerError."""
    folder = tiny.new_folder(options.output, "search")
    console = Console(stderr=True, highlight=False)
    print_line(console, Text(f"A tiny model learns to search; it is made in {folder}, here and offline."))
    with written(folder, "--output"):
        files = write(folder, SEED)
        words = [*overrides(files, folder), *options.overrides]
        (folder / COMMAND_FILE).write_text(script(words))
    code = main_ppo.command(main_ppo.parse(words))
    if code == 0:
        show(folder)
    return code


def overrides(files: Files, folder: Path) -> list[str]:
    """The words of `main_ppo`; paths are those of this machine."""
    return [
        "agent.env=search",
        tiny.place("retriever.serve", files.corpus),
        "retriever.topk=1",
        "agent.max_turns=2",
        "agent.max_turn_tokens=6",
        "agent.max_observation_tokens=40",
        tiny.place("data.train_files", files.train),
        tiny.place("data.val_files", files.validation),
        tiny.place("actor_rollout_ref.model.path", files.model),
        "data.max_prompt_length=4",
        "data.max_response_length=60",
        *tiny.learning(folder, named="search", steps=STEPS, workers=WORKERS, log_prob_rows=256),
    ]


def show(folder: Path) -> None:
    """The curve, here and as a file, and what to type next. Raises TrainerError."""
    metrics = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    right, unseen = series(metrics, SCORE), series(metrics, VALIDATION)
    with written(folder / CURVE_FILE, "--output"):
        (folder / CURVE_FILE).write_text(svg_curve(right), encoding="utf-8")
    blocks = BLOCKS if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
    lines = ["", "right answers by step: their share among the conversations", "", *text_curve(right, blocks=blocks)]
    if len(unseen) > 1:
        before, after = (round(100 * value) for _, value in (unseen[0], unseen[-1]))
        lines += ["", f"Of {UNSEEN} questions that it has not seen, it answers {before} % before and {after} % now."]
    last = sorted((folder / "samples").glob("*.jsonl"), key=lambda path: int(path.stem))[-1:]
    lines += ["", f"curve    {folder / CURVE_FILE}", f"command  {folder / COMMAND_FILE}"]
    lines += ["", "a conversation of the last step:", f"  devkit agent show {last[0]} --row 1"] if last else []
    console = Console(highlight=False)
    with output():
        for line in lines:
            print_line(console, Text(line))


def write(folder: Path, seed: int) -> Files:
    """Everything, below `folder`, which is made."""
    files = write_files(folder, seed)
    write_model(files.model, seed)
    return files


def write_files(folder: Path, seed: int) -> Files:
    """The corpus and the questions, below `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    files = Files(folder / "model", folder / "corpus.jsonl", folder / "train.parquet", folder / "test.parquet")
    drawn = random.Random(seed)
    names = [first + second for first in LETTERS for second in LETTERS if first != second]
    drawn.shuffle(names)
    answers = {name: drawn.choice(DIGITS) for name in names}
    rows = [json.dumps({"id": name, "contents": f'"{name}"\n{answers[name]}'}) for name in names]
    files.corpus.write_text("\n".join(rows) + "\n")
    write_rows(files.validation, names[:UNSEEN], answers)
    write_rows(files.train, names[UNSEEN:] * 8, answers)
    return files


def write_rows(path: Path, names: Sequence[str], answers: dict[str, str]) -> None:
    """A parquet file in verl's schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "data_source": SOURCE,
            "prompt": [{"role": "user", "content": question(name)}],
            "reward_model": {"style": "rule", "ground_truth": {"target": [answers[name]]}},
        }
        for name in names
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


def question(name: str) -> str:
    """
    >>> question("bc")
    'bc?'
    """
    return f"{name}?"


def make_tokenizer() -> Any:
    """A token for each character and each tag, and no chat template: turns stand one behind the other."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = [{" ": BLANK}.get(character, character) for character in CHARACTERS] + [LINE_BREAK]
    vocabulary = {token: number for number, token in enumerate((PAD, END, UNKNOWN, *characters))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    special = {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)


def write_model(folder: Path, seed: int) -> None:
    """A Qwen2 of 0.1 million parameters that searches for something, and answers something."""
    import torch

    tokenizer = make_tokenizer()
    model = tiny.new_model(tokenizer, seed, POSITIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TEACHING_RATE)
    taught = conversations(tokenizer, random.Random(seed))
    for _ in range(TEACHING_STEPS):
        rows = [next(taught) for _ in range(TEACHING_ROWS)]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
        said = [[token if own else -100 for token, own in zip(ids, mask, strict=True)] for ids, mask in rows]
        labels = torch.tensor([each + [-100] * (width - len(each)) for each in said])
        model(input_ids=ids, labels=labels).loss.backward()  # padding stands on the right, where nobody looks
        optimizer.step()
        optimizer.zero_grad()
    tiny.save(model, tokenizer, folder)


def conversations(
    tokenizer: Any, drawn: random.Random, searching: float = SEARCHING
) -> Iterator[tuple[list[int], list[bool]]]:
    """Questions, queries, passages and answers as tokens, and which of them the model would say.

    The numbers are drawn anew for each: nothing of the corpus is taught. `searching`: the share that searches.
    """
    while True:
        asked, other = ("".join(drawn.sample(LETTERS, 2)) for _ in range(2))
        query = asked if drawn.random() < RIGHT else other
        found = drawn.choice(DIGITS)
        answer = found if drawn.random() < RIGHT else drawn.choice(DIGITS)
        read = information(shown([Passage(query, f'"{query}"', found)]))
        searches = drawn.random() < searching
        parts = [(f"<search>{query}</search>", True), (read, False)] if searches else []
        ids: list[int] = []
        own: list[bool] = []
        for text, is_own in [(question(asked), False), *parts, (f"<answer>{answer}</answer>", True)]:
            ids += tokenizer(text, add_special_tokens=False)["input_ids"]
            own += [is_own] * (len(ids) - len(own))
        yield ids, own


if __name__ == "__main__":
    main_ppo.leave(main())
