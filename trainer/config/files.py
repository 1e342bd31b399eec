"""What a command's files must be like: data, models and reward functions, looked at from outside.

Only parquet footers are read, and Python files are parsed, never run.
"""

from __future__ import annotations

import ast
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config.model_folder import model_faults, tokenizer_faults
from trainer.config.problems import Note, Problem
from trainer.config.schema import Config, DataConfig, RewardFunctionConfig
from trainer.user_file import text_of

if TYPE_CHECKING:
    import pyarrow as pa

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
FILE, FOLDER, NOTHING, NO_PATH = "a file", "a folder", "nothing", "no path"
PARQUET_HINT = "give parquet files, such as those of: python -m trainer.data.prepare gsm8k --output data/gsm8k"
_PREPARE = "prepare rows with prompt, data_source and reward_model.ground_truth"


@dataclass(frozen=True)
class Rows:
    """The rows of the data files, after `*_max_samples`; None where a file can not be counted."""

    train: int | None
    val: int | None


def count_rows(data: DataConfig) -> tuple[Rows, list[Problem]]:
    """The rows, and what is wrong with the files."""
    train, problems = _count(data, "data.train_files", data.train_files, data.train_max_samples)
    val, val_problems = _count(data, "data.val_files", data.val_files, data.val_max_samples)
    return Rows(train, val), [*problems, *val_problems]


def _count(data: DataConfig, key: str, files: Sequence[str], most: int) -> tuple[int | None, list[Problem]]:
    rows: list[int] = []
    problems: list[Problem] = []
    for name in files:
        found, wrong = _look(data, key, name)
        rows.append(found)
        problems += wrong
    if problems or not files:
        return None, problems
    total = sum(rows) if most == -1 else min(sum(rows), most)
    return total, ([] if total else [Problem(key, f"{key}: there are no rows in {', '.join(files)}", _PREPARE)])


def _look(data: DataConfig, key: str, name: str) -> tuple[int, list[Problem]]:
    import pyarrow as pa  # only where there is a file to look at: it is half of what a check without one takes
    import pyarrow.parquet as pq

    if "://" in name:
        return 0, [Problem(key, f"{key}: {name} is not on a file system", "copy it to a path that all nodes see")]
    if (kind := kind_of(name)) != FILE:
        what = "does not exist" if kind == NOTHING else f"is {kind}"
        return 0, [Problem(key, f"{key}: {name} {what}", PARQUET_HINT)]
    try:
        with pq.ParquetFile(Path(name).expanduser()) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        return 0, [Problem(key, f"{key}: {name} is not a parquet file ({said})", _PREPARE)]
    return rows, list(_column_problems(data, key, name, schema))


def _column_problems(data: DataConfig, key: str, name: str, schema: pa.Schema) -> Iterator[Problem]:
    import pyarrow as pa

    for setting, column in (("prompt_key", data.prompt_key), ("reward_fn_key", data.reward_fn_key)):
        if column not in schema.names:
            has = ", ".join(schema.names)
            yield Problem(key, f"{key}: {name} has no column {column}", f"set data.{setting}; its columns are {has}")
    rewards = next((column for column in ("reward_model", "reward_spec") if column in schema.names), None)  # or SkyRL's
    if rewards is None:
        yield Problem(key, f"{key}: {name} has no column reward_model", _PREPARE)
    else:
        kind = schema.field(rewards).type
        if not pa.types.is_struct(kind) or kind.get_field_index("ground_truth") < 0:
            yield Problem(key, f"{key}: {name} has no ground_truth in its column {rewards}", _PREPARE)


def model_findings(config: Config) -> Iterator[Problem | Note]:
    """What is known about the model folders without loading them."""
    model = config.actor_rollout_ref.model
    key, tokenizer_key = "actor_rollout_ref.model.path", "actor_rollout_ref.model.tokenizer_path"
    if not model.path:
        yield Problem(key, f"{key} is not set", "give a model folder or a hub id such as Qwen/Qwen2.5-0.5B-Instruct")
    else:
        yield from folder_findings(key, model.path, weights=True, tokenizer=model.tokenizer_path is None)
    if model.tokenizer_path is not None:
        yield from folder_findings(tokenizer_key, model.tokenizer_path, weights=False, tokenizer=True)
    if config.uses_critic and config.critic.model.path != model.path:
        yield from folder_findings("critic.model.path", config.critic.model.path, weights=True, tokenizer=False)


def folder_findings(key: str, name: str, *, weights: bool, tokenizer: bool) -> Iterator[Problem | Note]:
    """What is known of one, of which `weights` and `tokenizer` are wanted, without loading it."""
    kind = kind_of(name)
    if kind != FOLDER:
        if HUB_ID.fullmatch(name) and kind == NOTHING:
            yield Note("here", key, f"{key}={name} is not a local folder: it will be downloaded from the hub")
        else:
            what = "does not exist" if kind == NOTHING else f"is {kind}"
            yield Problem(key, f"{key}={name} {what}", "give a model folder or a hub id such as org/name")
        return
    folder = Path(name).expanduser()
    for said, hint in model_faults(folder) if weights else ():
        yield Problem(key, f"{key}={name} {said}", hint)
    for said, hint in tokenizer_faults(folder) if tokenizer else ():
        yield Problem(key, f"{key}={name} {said}", hint)


def kind_of(name: str) -> str:
    """What is at a path: FILE, FOLDER, NOTHING, NO_PATH and why, or words for something else."""
    try:
        mode = Path(name).expanduser().stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING
    except (OSError, ValueError, RuntimeError) as error:  # too long, forbidden; a zero byte; a home of nobody
        return f"{NO_PATH} ({getattr(error, 'strerror', None) or error})"
    return FILE if stat.S_ISREG(mode) else FOLDER if stat.S_ISDIR(mode) else "neither a file nor a folder"


def reward_problems(function: RewardFunctionConfig) -> Iterator[Problem]:
    """Whether the reward function's file exists and defines it."""
    key = "custom_reward_function.path"
    if function.path is None:
        return
    if kind_of(function.path) != FILE:
        yield Problem(key, f"{key}={function.path} is not a file", "give a Python file")
        return
    module = parsed(key, function.path, function.path)
    if isinstance(module, Problem):
        yield module
        return
    names = set(_defined(module))
    if function.name not in names and "*" not in names:
        there = ", ".join(sorted(names)) or "nothing"
        message = f"custom_reward_function.name={function.name} is not defined in {function.path}"
        yield Problem("custom_reward_function.name", message, f"it defines {there}")


def parsed(key: str, value: str, path: str) -> ast.Module | Problem:
    """A user's Python file, or what is wrong with it; `value` is what `key` has."""
    try:
        return ast.parse(text_of(path), path)
    except OSError as error:
        said = "" if value == path else f": {path}"
        return Problem(key, f"{key}={value}{said} cannot be read: {error.strerror or error}", "give a Python file")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two of nesting without end
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        said = "" if value == path else f": {path}"
        return Problem(key, f"{key}={value}{said} is not Python{line}", f"check it: python -m py_compile {path}")


def _defined(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node in module.body:
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign) and node in module.body:
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
