"""The validations of the pipeline run, from the files that the run wrote of them, for `checks/validated.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from devkit.smoke.checks import validated
from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.checks.validated import KEY, Answered, Wanted
from devkit.smoke.file_rows import FileRows, RowId, cut_to
from trainer.config.schema import Config

Score = Callable[[str, int, str], float | None]  # file, row and response -> score by a direct call


def findings(folder: Path, metrics: Path, config: Config, tokenizer: Any, score: Score) -> Iterator[Outcome]:
    """One for each file in `folder`, which is `trainer.validation_data_dir`; `metrics` is the run's log."""
    if len(set(config.data.val_files)) < len(config.data.val_files):
        yield Outcome(None, "a file of data.val_files is given twice, so its rows cannot be distinguished")
        return
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    logged: dict[int, dict[str, float]] = {}
    for line in metrics.read_text().splitlines():
        told = json.loads(line)
        if any(name.startswith(KEY) for name in told):
            logged[int(told["step"])] = told
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: int(path.stem)):
        answered = [_answered(json.loads(line), special, score) for line in path.read_text().splitlines()]
        wanted = wanted_of(config, tokenizer, {each.row for each in answered})
        yield validated.as_configured(int(path.stem), answered, wanted, logged.get(int(path.stem), {}))


def wanted_of(config: Config, tokenizer: Any, seen: Set[RowId]) -> Wanted:
    """From the files, row by row; of a random part of them, whatever rows of theirs were `seen`."""
    data = replace(config.data, train_files=config.data.val_files, train_max_samples=config.data.val_max_samples)
    files = FileRows(data, tokenizer)
    plan = files.plan
    own = [row for row in sorted(seen) if row[1] < plan.sizes.get(row[0], 0)]
    rows = own if plan.rows is None else list(plan.rows)
    prompts = {
        row: tokenizer.decode(cut_to(files.tokens(row), data.max_prompt_length, data.truncation)) for row in rows
    }
    return Wanted(plan.kept, prompts, in_order=plan.rows is not None)


def _answered(told: dict[str, Any], special: Set[str], score: Score) -> Answered:
    index, file = told["row"].removeprefix("row ").split(" of ", 1)
    text, row = told["response"], (file, int(index))
    for token in special:
        text = text.replace(token, "")
    return Answered(row, told["data_source"], told["prompt"], told["score"], score(*row, text))
