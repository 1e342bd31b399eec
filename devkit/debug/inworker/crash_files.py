"""Crash snapshots as files, which outlive the worker and the job: one JSON document each, for the owner only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any

from .lineage import link
from .records import CrashRecord

KEPT = 200  # snapshots of a folder, the newest ones

_FIELDS = tuple(field.name for field in fields(CrashRecord))
_told: set[str] = set()  # folders that could not be written to


def record_of(document: Mapping[str, Any]) -> CrashRecord:
    """A snapshot's line in the list."""
    return CrashRecord.from_json(dict(document))


def encode(document: Mapping[str, Any]) -> str:
    """The list's part of the document comes first, in a line of its own, so that a list need not read the rest."""
    head = {name: document[name] for name in _FIELDS if name in document}
    rest = {name: value for name, value in document.items() if name not in head}
    first, second = _dumps(head), _dumps(rest)
    return f"{first[:-1]},\n{second[1:]}\n" if rest else f"{first}\n"


def _dumps(document: Any) -> str:
    try:
        return json.dumps(document, allow_nan=False)
    except ValueError:  # NaN and infinity are no JSON, and some readers refuse the whole document
        return json.dumps(_finite(document))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def store(document: Mapping[str, Any], folder: Path) -> Path | None:
    """Writes `<id>.json`, whole or not at all. None: the folder can't be written to, which is reported once."""
    path = folder / f"{document['id']}.json"
    new = folder / f".{document['id']}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(encode(document))
        new.replace(path)
        _keep_newest(folder)
        return path
    except OSError as error:
        _give_up(new, folder, error)
        return None


def _give_up(new: Path, folder: Path, error: OSError) -> None:
    with suppress(OSError):  # the folder is no folder, or read-only: then there is nothing to remove
        new.unlink(missing_ok=True)
    if str(folder) not in _told:
        _told.add(str(folder))
        print(f"devkit: crash snapshots can't be kept in {folder}: {error.strerror or error}", file=sys.stderr)  # noqa: T201


def _keep_newest(folder: Path) -> None:
    with os.scandir(folder) as entries:
        found = [(entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.name.endswith(".json")]
    for _, path in sorted(found)[: max(0, len(found) - KEPT)]:
        Path(path).unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """The whole document. Raises OSError or ValueError for what is no snapshot."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or "id" not in document:
        raise ValueError(f"{path} is not a crash snapshot")
    return document


def list_folder(folder: Path) -> list[CrashRecord]:
    """Oldest first, linked to their roots; what is no snapshot is passed over."""
    records = [record for path in folder.glob("*.json") if (record := _first_line(path)) is not None]
    return link(sorted(records, key=lambda record: record.time))


def _first_line(path: Path) -> CrashRecord | None:
    try:
        with path.open() as file:
            line = file.readline().strip()
        return CrashRecord.from_json(json.loads(f"{line[:-1]}}}" if line.endswith(",") else line))
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # removed just now as one too many, or somebody else's file
