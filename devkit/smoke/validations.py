"""The validations of the pipeline run, from the files that the run wrote of them, for `checks/validated.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from devkit.smoke.checks import validated
from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.checks.validated import KEY, Answered, Wanted
from devkit.smoke.file_rows import FileRows, cut_to
from trainer.config.schema import Config

Score = Callable[[str, int, str], float | None]  # file, row and response -> score by a direct call


def findings(folder: Path, metrics: Path, config: Config, tokenizer: Any, score: Score) -> Iterator[Outcome]:
    """One for each file in `folder`, which is `trainer.validation_data_dir`; `metrics` is the run's log."""
    wanted = wanted_of(config, tokenizer)
    logged: dict[int, dict[str, float]] = {}
    for line in metrics.read_text().splitlines():
        told = json.loads(line)
        if any(name.startswith(KEY) for name in told):
            logged[int(told["step"])] = told
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: int(path.stem)):
        answered = [_answered(json.loads(line), tokenizer, score) for line in path.read_text().splitlines()]
        yield validated.as_configured(int(path.stem), answered, wanted, logged.get(int(path.stem), {}))


def wanted_of(config: Config, tokenizer: Any) -> Wanted:
    """From the files, row by row."""
    data = replace(config.data, train_files=config.data.val_files, train_max_samples=config.data.val_max_samples)
    files = FileRows(data, tokenizer)
    everything = [(file, index) for file, size in files.plan.sizes.items() for index in range(size)]
    rows = everything if files.plan.rows is None else list(files.plan.rows)
    most = data.train_max_samples if data.train_max_samples >= 0 else len(rows)
    prompts = {
        f"row {index} of {file}": tokenizer.decode(
            cut_to(files.tokens((file, index)), data.max_prompt_length, data.truncation)
        )
        for file, index in rows
    }
    return Wanted(min(most, len(rows)), prompts, every=files.plan.rows is not None)


def _answered(told: dict[str, Any], tokenizer: Any, score: Score) -> Answered:
    index, file = told["row"].removeprefix("row ").split(" of ", 1)
    text = told["response"]
    for special in tokenizer.all_special_tokens:
        text = text.replace(special, "")
    return Answered(told["row"], told["data_source"], told["prompt"], told["score"], score(file, int(index), text))
