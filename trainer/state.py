"""`state.json`, the last file of a checkpoint: where the run was, and what the other files are known by."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config.model_folder import read_text
from trainer.digests import Digest
from trainer.errors import CheckpointError
from trainer.ppo import Progress

STATE_FILE = "state.json"
LARGEST = 2**53  # of a count: what any JSON reader holds
_OWN = "crc32"  # of everything else in the file
_HINT = "choose another checkpoint with trainer.resume_from_path, or trainer.resume_mode=disable"


@dataclass(frozen=True)
class State:
    """What a checkpoint holds beside weights."""

    progress: Progress
    data: Mapping[str, int]  # of PromptLoader
    files: Mapping[str, Digest] | None = None  # by name below the folder; None: written by a version without digests
    saved: int = 0  # counts up with each checkpoint of a folder: which is newer


def to_json(state: State) -> str:
    record: dict[str, Any] = {
        "step": state.progress.step,
        "kl_coef": state.progress.kl_coef,
        "data": dict(state.data),
        "saved": state.saved,
    }
    if state.files is not None:
        record["files"] = {name: str(digest) for name, digest in state.files.items()}
    return json.dumps(record | {_OWN: _crc(record)}, indent=2)


def read_state(folder: Path) -> State:
    """Raises CheckpointError if it is not there, or not as `to_json` wrote it."""
    try:
        text = read_text(folder / STATE_FILE)
    except OSError as error:
        why = error.strerror or str(error)
    except UnicodeDecodeError:
        why = "it is not text"
    else:
        try:
            return parse(text)
        except ValueError as error:
            why = str(error)
    raise CheckpointError(f"cannot read {folder / STATE_FILE}: {why}", hint=_HINT)


def parse(text: str) -> State:
    """The inverse of `to_json`. Raises ValueError that says what is wrong, in one line."""
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not valid JSON ({str(error).splitlines()[0]:.80})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    if _OWN in record and record.pop(_OWN) != _crc(record):
        raise ValueError("it has changed since it was written: its checksum differs")
    if odd := sorted(record.keys() - {"step", "kl_coef", "data", "saved", "files"}):
        raise ValueError(f"{odd[0]!r:.40} is not known here")
    coefficient = _of(record, "kl_coef", _is_coefficient, "a number from 0")
    progress = Progress(_of(record, "step", _is_count, "a count"), float(coefficient))
    data = _of(record, "data", lambda value: isinstance(value, dict), "an object")
    if not all(type(value) is int and abs(value) < 2**64 for value in data.values()):
        raise ValueError("data holds something other than numbers")
    return State(progress, data, _files(record), _of({"saved": 0} | record, "saved", _is_count, "a count"))


def _files(record: Mapping[str, Any]) -> dict[str, Digest] | None:
    if "files" not in record:
        return None
    files = _of(record, "files", lambda value: isinstance(value, dict) and bool(value), "an object")
    for name in files:
        if not _is_below(name):
            raise ValueError(f"it names a file outside the checkpoint, {name!r:.80}")
    return {name: Digest.parse(value) for name, value in files.items()}


def _of(record: Mapping[str, Any], name: str, fits: Callable[[Any], bool], what: str) -> Any:
    if name not in record:
        raise ValueError(f"it has no {name}")
    if not fits(record[name]):
        raise ValueError(f"{name} is not {what}: {record[name]!r:.40}")
    return record[name]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_coefficient(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < LARGEST and math.isfinite(value)  # type: ignore[operator,arg-type]


def _is_below(name: str) -> bool:
    return not name.startswith("/") and "\0" not in name and not {"", ".", ".."}.intersection(name.split("/"))


def _crc(record: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(record, sort_keys=True).encode()):08x}"
