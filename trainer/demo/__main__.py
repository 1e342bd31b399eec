"""`python -m trainer.demo [--output DIR] [KEY=VALUE ...]`: the command line.

A thin layer: it makes a model, data and a reward function, and calls `trainer.main_ppo` with a command that it also
writes down. What is shown meanwhile is what every run shows.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from trainer import main_ppo
from trainer.commands import outcome, output
from trainer.curve import BLOCKS, Point, svg_curve, text_curve
from trainer.demo import task, tiny
from trainer.tracking import METRICS_FILE, SCORE, written
from trainer.wrapping import print_line

STEPS, WORKERS, SEED = 30, 2, 1
VALIDATION = "val-core/sums/reward/mean@1"
CURVE_FILE, COMMAND_FILE = "reward.svg", "run.sh"
ASCII = "#"
STOP = "trainer.rewards.score:score_all"  # as devkit takes it


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    return tiny.parse(
        argv,
        program="trainer.demo",
        description="A tiny model learns to add on this machine.",
        example="algorithm.adv_estimator=gae",
        named="demo",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, as that of `trainer.main_ppo`."""
    words = sys.argv[1:] if argv is None else argv
    return outcome(lambda: command(parse(argv)), verbose="--verbose" in words, long=True)


def command(options: argparse.Namespace) -> int:
    """Everything: make, train, show. Raises TrainerError."""
    folder = tiny.new_folder(options.output, "demo")
    files = make(folder)
    words = [*overrides(files, folder), *options.overrides]
    with written(folder / COMMAND_FILE, "--output"):
        (folder / COMMAND_FILE).write_text(script(words))
    code = main_ppo.command(main_ppo.parse(words))
    if code == 0:
        show(folder)
    return code


def make(folder: Path) -> task.Files:
    """The model and what it learns from. Raises TrainerError where `folder` can not be written."""
    console = Console(stderr=True, highlight=False)
    print_line(console, Text("A tiny model learns to add two numbers: PPO on two workers, here and offline."))
    doing = f"making the model, the sums and the reward function in {folder}"
    if not console.is_terminal:
        print_line(console, Text(f"{doing} ..."))
    with written(folder, "--output"), console.status(doing):  # which shows nothing off a terminal
        return task.write(folder, SEED)


def overrides(files: task.Files, folder: Path) -> list[str]:
    """The words of `main_ppo`, in verl's keys; paths are those of this machine."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        tiny.place("data.train_files", files.train),
        tiny.place("data.val_files", files.validation),
        tiny.place("custom_reward_function.path", files.reward),
        tiny.place("actor_rollout_ref.model.path", files.model),
        f"data.max_prompt_length={task.PROMPT_TOKENS}",
        f"data.max_response_length={task.RESPONSE_TOKENS}",
        "data.train_batch_size=128",
        f"{actor}.ppo_mini_batch_size=64",
        f"{actor}.ppo_micro_batch_size_per_gpu=256",
        f"{actor}.optim.lr=2e-3",
        f"{rollout}.name=hf",
        f"{rollout}.n=8",
        f"{rollout}.max_num_seqs=512",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=512",
        "algorithm.adv_estimator=grpo",
        "trainer.nnodes=1",
        f"trainer.n_gpus_per_node={WORKERS}",
        "trainer.device=cpu",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
        f"trainer.save_freq={STEPS}",
        "trainer.project_name=demo",
        "trainer.logger=[console,file]",
        tiny.place("trainer.default_local_dir", folder),
    ]


def script(words: Sequence[str]) -> str:
    """The same run as a command of its own, which goes on where the demo has ended."""
    lines = [
        "#!/usr/bin/env bash",
        f"# What `python -m trainer.demo` ran. For more steps: bash {COMMAND_FILE} trainer.total_training_steps=60",
        " \\\n    ".join(["python -m trainer.main_ppo", *map(shlex.quote, words), '"$@"']),
    ]
    return "\n".join([*lines, ""])


def show(folder: Path) -> None:
    """The curve, here and as a file; where everything lies, and what to type next. Raises TrainerError."""
    metrics = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    rewards = series(metrics, SCORE)
    with written(folder / CURVE_FILE, "--output"):
        (folder / CURVE_FILE).write_text(svg_curve(rewards), encoding="utf-8")
    lines = summary(folder, rewards, series(metrics, VALIDATION), plain=not _takes_blocks())
    console = Console(highlight=False)
    with output():
        for line in lines:
            print_line(console, Text(line))


def series(metrics: Sequence[dict[str, float | None]], name: str) -> list[Point]:
    """A metric by step, where it was measured."""
    found = ((line["step"], line.get(name)) for line in metrics)
    return [(float(step), value) for step, value in found if step is not None and value is not None]


def summary(folder: Path, rewards: Sequence[Point], right: Sequence[Point], *, plain: bool) -> list[str]:
    """What a person reads at the end."""
    lines = ["", "mean reward by step: the share of right sums among the responses", ""]
    lines += text_curve(rewards, blocks=ASCII if plain else BLOCKS)
    if len(right) > 1:
        before, after = (round(100 * value) for _, value in (right[0], right[-1]))
        lines += ["", f"Of all 100 sums, the model got {before} right before and gets {after} right now."]
    saved = sorted(folder.glob("global_step_*"))
    lines += ["", f"curve       {folder / CURVE_FILE}", f"metrics     {folder / METRICS_FILE}"]
    lines += [f"checkpoint  {saved[-1]}"] if saved else []
    return [*lines, f"command     {folder / COMMAND_FILE}", "", *next_steps(saved[-1] if saved else None)]


def next_steps(checkpoint: Path | None) -> list[str]:
    """Commands that work as they stand, but for the last one, which asks for names."""
    lines = ["What to type next", ""]
    if checkpoint is not None:
        exported = checkpoint.parent / "exported"
        lines += ["  the model as transformers loads it:"]
        lines += [f"    {_typed('trainer.export', checkpoint, '--output', exported)}"]
    devkit, own = program("devkit"), ("--check", "actor_rollout_ref.model.path=MODEL", "data.train_files=FILE.parquet")
    return [
        *lines,
        "  the same with a breakpoint where rewards are computed; then `devkit attach` in a second terminal:",
        f"    {devkit} run --break {STOP} -- {_typed('trainer.demo')}",
        "  a model and data of your own; --check says what is missing:",
        f"    {_typed('trainer.main_ppo', *own)}",
    ]


def _typed(module: str, *words: object) -> str:
    return shlex.join([program("python"), "-m", module, *map(str, words)])


def program(name: str) -> str:
    """How it is typed here: the one beside this Python, by its path unless a shell finds it by its name.

    >>> program("python").endswith("python")
    True
    """
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and Path(found) == beside:
        return name
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)


def _takes_blocks() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


if __name__ == "__main__":
    main_ppo.leave(main())
