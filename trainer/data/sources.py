"""Where `prepare` finds published records: JSON-lines files, folders of them, data sets on the hub."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainer.data.recipes import Recipe
from trainer.errors import ConfigError, DataError

SPLITS = ("train", "test")

_NAMED_SPLIT = re.compile(r"(?<![a-z])(train|test|dev|valid|validation|val|eval)(?![a-z])")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SPLIT_HINT = "add --split train or --split test"

Records = Iterator[tuple[str, Mapping[str, Any]]]  # each with the words that name its place


@dataclass(frozen=True)
class Source:
    name: str
    split: str
    records: Callable[[], Records]


def find_sources(inputs: Sequence[str], recipe: Recipe, split: str | None) -> list[Source]:
    """What the inputs hold, in their order.

    Raises DataError for an input that isn't there, ConfigError if a file's split can't be told.
    """
    return [source for text in inputs for source in _find(text, recipe, split)]


def _find(text: str, recipe: Recipe, split: str | None) -> list[Source]:
    path = Path(text).expanduser()
    if path.is_dir():
        return _folder(path, split)
    if path.is_file():
        return [_file(path, split)]
    if _HUB_ID.fullmatch(text) and not path.suffix.startswith(".json"):
        return _hub(text, recipe, split)
    raise DataError(f"{text}: no such file or folder", hint="--input is a JSON-lines file, a folder or a hub data set")


def _folder(folder: Path, split: str | None) -> list[Source]:
    files = sorted(file for file in folder.glob("*.jsonl") if file.is_file())  # a pipe would be waited for
    if split is not None:
        files = [file for file in files if split_of(file.name) in (split, None)]
    if not files:
        what = "*.jsonl file" if split is None else f"*.jsonl file of the {split} split"
        raise DataError(f"{folder}: no {what}", hint="give the files themselves: --input FILE --split train")
    return [_file(file, split) for file in files]


def _file(path: Path, split: str | None) -> Source:
    told = split or split_of(path.name)
    if told is None:
        raise ConfigError(f"{path}: its name doesn't say which split it is", hint=_SPLIT_HINT)
    return Source(str(path), told, partial(_read_lines, path))


def split_of(file_name: str) -> str | None:
    """
    >>> split_of("NQ-open.dev.jsonl"), split_of("train_v2.jsonl"), split_of("trainer.jsonl")
    ('test', 'train', None)
    """
    found = _NAMED_SPLIT.search(file_name.lower().replace("_", "-"))
    if found is None:
        return None
    return "train" if found[0] == "train" else "test"


def _read_lines(path: Path) -> Records:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path} line {number}"
                    yield where, _parse(line, where)
    except OSError as exc:
        raise DataError(f"{path} can't be read: {exc.strerror}", hint="check its permissions") from exc


def _parse(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as exc:  # bad JSON, bytes that are no UTF-8, brackets without end
        raise DataError(f"{where}: not JSON ({exc})", hint="the file needs one JSON object on each line") from exc
    if not isinstance(record, dict):
        raise DataError(f"{where}: not a JSON object", hint="the file needs one JSON object on each line")
    return record


def _hub(name: str, recipe: Recipe, split: str | None) -> list[Source]:
    if importlib.util.find_spec("datasets") is None:
        raise DataError(
            f"{name}: no such file or folder, and reading it from the hub needs the datasets library",
            hint="pip install datasets; or download the JSON-lines files and give --input FILE",
        )
    datasets: Any = importlib.import_module("datasets")
    try:
        parts = datasets.load_dataset(name, recipe.hub_config if name == recipe.hub_id else None)
    except (OSError, ValueError) as exc:  # what the hub, the network and a wrong name raise
        raise DataError(f"{name}: {' '.join(str(exc).split())}", hint="check the name and the network") from exc
    found = {told: part for part in parts if (told := split_of(part)) is not None and split in (told, None)}
    if not found:
        raise DataError(f"{name}: no split to use among {', '.join(parts)}", hint=_SPLIT_HINT)
    return [Source(name, told, partial(_read_hub, parts[part], f"{name} {part}")) for told, part in found.items()]


def _read_hub(records: Any, name: str) -> Records:
    for index, record in enumerate(records):
        yield f"{name} row {index}", record
