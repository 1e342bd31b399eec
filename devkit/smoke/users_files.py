"""The full command, looked at before its tiny run: its settings, and the user's files against its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa

from devkit.smoke import made_up_responses as made_up
from devkit.smoke.checks import users_data, users_settings
from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.file_rows import tokens_of
from devkit.smoke.results import Results
from devkit.smoke.row_reader import RowReader
from trainer.config.schema import Config
from trainer.errors import TrainerError
from trainer.tokenizer import load_tokenizer

NEAR = 64  # rows of a file that are looked at with those beside them
SAMPLE = 1000  # rows of the training files, and of those for validation


@dataclass(frozen=True)
class _Files:
    train: list[users_data.Sampled]
    validation: list[users_data.Sampled]


def look_at_command(full: Config, results: Results) -> None:
    """The full command's settings, and the user's files against its limits."""
    results.add("command-settings", lambda: users_settings.command_settings(full, _steps(full)))
    _look_at_data(full, results)


def _steps(full: Config) -> int:
    """Of the full run; 0 where its files cannot be read, which the trainer tells in words."""
    if full.trainer.total_training_steps:
        return full.trainer.total_training_steps
    rows = RowReader(full.data.prompt_key, full.data.reward_fn_key)
    try:
        return full.trainer.total_epochs * (sum(map(rows.count, full.data.train_files)) // full.data.train_batch_size)
    except (pa.ArrowException, OSError):
        return 0


def _look_at_data(full: Config, results: Results) -> None:
    if not full.data.train_files:
        for name in ("data-rows", "data-limits"):
            results.add(name, lambda: Outcome(None, "data.train_files is not set"))
        return
    try:
        files = _Files(_sample(full, full.data.train_files), _sample(full, full.data.val_files))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):  # the trainer tells it in words
        for name in ("data-rows", "data-limits"):
            results.add(name, lambda: Outcome(None, "the files cannot be read"))
        return
    results.add("data-rows", lambda: users_data.data_rows(files.train, files.validation))
    results.add("data-limits", lambda: _limits(full, [*files.train, *files.validation]))


def _sample(full: Config, files: Sequence[str]) -> list[users_data.Sampled]:
    rows = RowReader(full.data.prompt_key, full.data.reward_fn_key)
    found = []
    for file in files:
        last = rows.count(file) - 1
        for number, (index, row) in enumerate(rows.sample(file, SAMPLE // len(files))):
            known = users_data.Sampled(f"row {index} of {file}", row.prompt, row.ground_truth, file=file)
            if number < NEAR and 0 < index < last:
                near = (rows(file, index - 1).ground_truth, rows(file, index + 1).ground_truth)
                published = "\n".join(said.text for said in made_up.published(index, row))
                known = replace(known, published=published, near=near)
            found.append(known)
    return found


def _limits(full: Config, sampled: Sequence[users_data.Sampled]) -> Outcome:
    model = full.actor_rollout_ref.model
    folder = Path(model.tokenizer_path or model.path or "").expanduser()
    if not (model.tokenizer_path or model.path) or not folder.is_dir():
        return Outcome(None, f"the full model's tokenizer is not in a folder here: {folder}")
    try:
        tokenizer = load_tokenizer(model)
        return users_data.data_limits([_measured(tokenizer, row) for row in sampled], full.data)
    except (TrainerError, jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
        return Outcome(None, f"the full model's tokenizer cannot be used: {' '.join(f'{error}'.split())}")


def _measured(tokenizer: Any, row: users_data.Sampled) -> users_data.Sampled:
    truth = made_up.truth_text(row.ground_truth)
    said = len(tokenizer(truth, add_special_tokens=False)["input_ids"]) if truth else 0
    return replace(row, prompt_tokens=len(tokens_of(row.prompt, tokenizer)), truth_tokens=said)
