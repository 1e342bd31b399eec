"""`python -m trainer.demo.lake [--output DIR] [KEY=VALUE ...]`: a tiny model learns to cross FrozenLake, turn by turn.

The board of each task is another one, drawn from its seed. The model reads it, writes a letter, reads the board that
comes of it, and so on; the reward is 1 at the goal. A thin layer, as `trainer.demo`, over `trainer.main_ppo`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
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
from trainer.env.frozen_lake import FrozenLake
from trainer.tracking import METRICS_FILE, written
from trainer.wrapping import print_line

STEPS, WORKERS, SEED = 120, 2, 1
SIZE, TURNS = 3, 8
CHARACTERS = "LDRUP_OGX!?\n"
LINE_BREAK = "Ċ"  # as vocabularies of bytes write it
POSITIONS = 256
SUCCESS, VALIDATION = "agent/success/mean", "val-agent/success/mean"
# It is taught what a lake is, by games of drawn letters: an answer is a letter and an end, and a board comes of it. Of
# where to go it is taught nothing.
TEACHING_STEPS, TEACHING_ROWS, TEACHING_RATE = 200, 16, 3e-3


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    return tiny.parse(
        argv,
        program="trainer.demo.lake",
        description="A tiny model learns to cross a frozen lake.",
        example="agent.env_kwargs={size:4,terse:True}",
        named="lake",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, as that of `trainer.main_ppo`."""
    words = sys.argv[1:] if argv is None else argv
    return outcome(lambda: command(parse(argv)), verbose="--verbose" in words, long=True)


def command(options: argparse.Namespace) -> int:
    """Everything: make, train, show. Raises TrainerError."""
    folder = tiny.new_folder(options.output, "lake")
    console = Console(stderr=True, highlight=False)
    print_line(console, Text(f"A tiny model learns to cross a frozen lake; it is made in {folder}, here and offline."))
    with written(folder, "--output"):
        write_model(folder / "model", SEED)
        words = [*overrides(folder), *options.overrides]
        (folder / COMMAND_FILE).write_text(script(words))
    code = main_ppo.command(main_ppo.parse(words))
    if code == 0:
        show(folder)
    return code


def overrides(folder: Path) -> list[str]:
    """The words of `main_ppo`; paths are those of this machine."""
    return [
        "agent.env=frozen_lake",
        f"agent.env_kwargs={{size:{SIZE},terse:True}}",
        f"agent.max_turns={TURNS}",
        "agent.max_turn_tokens=3",
        "agent.episodes=8192",
        "agent.val_episodes=256",
        tiny.place("actor_rollout_ref.model.path", folder / "model"),
        "data.max_prompt_length=16",
        "data.max_response_length=160",
        *tiny.learning(folder, named="lake", steps=STEPS, workers=WORKERS, log_prob_rows=128),
    ]


def show(folder: Path) -> None:
    """The curve, here and as a file, and what to type next. Raises TrainerError."""
    metrics = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    success, unseen = series(metrics, SUCCESS), series(metrics, VALIDATION)
    with written(folder / CURVE_FILE, "--output"):
        (folder / CURVE_FILE).write_text(svg_curve(success), encoding="utf-8")
    blocks = BLOCKS if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
    lines = [
        "",
        "success by step: the share of trajectories that reach the goal",
        "",
        *text_curve(success, blocks=blocks),
    ]
    if len(unseen) > 1:
        before, after = (round(100 * value) for _, value in (unseen[0], unseen[-1]))
        lines += [
            "",
            f"On 256 boards that it has not seen, it reaches the goal in {before} % before and {after} % now.",
        ]
    last = sorted((folder / "samples").glob("*.jsonl"), key=lambda path: int(path.stem))[-1:]
    lines += ["", f"curve    {folder / CURVE_FILE}", f"command  {folder / COMMAND_FILE}"]
    lines += ["", "a conversation of the last step:", f"  devkit agent show {last[0]} --row 1"] if last else []
    console = Console(highlight=False)
    with output():
        for line in lines:
            print_line(console, Text(line))


def make_tokenizer() -> Any:
    """A token for each character, and no chat template: turns stand one behind the other.

    By bytes and without merges, as transformers makes a Qwen2's again from its vocabulary, whatever class saved it.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = CHARACTERS.replace("\n", LINE_BREAK)
    vocabulary = {token: number for number, token in enumerate((PAD, END, UNKNOWN, *characters))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)


def write_model(folder: Path, seed: int) -> None:
    """A Qwen2 of 0.1 million parameters that answers each board with a letter, any of the four."""
    import torch

    tokenizer = make_tokenizer()
    model = tiny.new_model(tokenizer, seed, POSITIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TEACHING_RATE)
    taught = games(tokenizer, random.Random(seed))
    for _ in range(TEACHING_STEPS):
        rows = [next(taught) for _ in range(TEACHING_ROWS)]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        labels = torch.tensor([[-100] + row[1:] + [-100] * (width - len(row)) for row in rows])
        model(input_ids=ids, labels=labels).loss.backward()  # padding stands on the right, where nobody looks
        optimizer.step()
        optimizer.zero_grad()
    tiny.save(model, tokenizer, folder)


def games(tokenizer: Any, drawn: random.Random) -> Iterator[list[int]]:
    """Random play as tokens."""
    lake = FrozenLake(size=SIZE, terse=True)

    def encoded(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    while True:
        ids = encoded(lake.reset(seed=drawn.randrange(2**31))[0])
        ended = False
        while not ended and len(ids) < POSITIONS // 2:
            letter = drawn.choice("LDRU")
            text, _, ended, _, _ = lake.step(letter)
            ids += [*encoded(letter), tokenizer.eos_token_id, *encoded(text)]
        yield ids


if __name__ == "__main__":
    main_ppo.leave(main())
