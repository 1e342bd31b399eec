"""Crash snapshots as files, which outlive the worker and the job: one JSON document each, for the owner only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any

from . import private
from .lineage import link
from .records import CrashRecord, crash_of
from .words import say

KEPT = 200  # snapshots of a folder, the newest ones
OWN = 2  # the folder and the one that it is in are devkit's

_FIELDS = tuple(field.name for field in fields(CrashRecord))
_told: set[str] = set()  # folders that could not be written to


def record_of(document: Mapping[str, Any]) -> CrashRecord:
    """A snapshot's line in the list. Raises ValueError for what is none."""
    return crash_of(dict(document))


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
    try:
        private.write(path, encode(document), OWN)
        _keep_newest(folder)
        return path
    except OSError as error:
        if str(folder) not in _told:
            _told.add(str(folder))
            say(f"crash snapshots can't be stored in {folder}: {error.strerror or error}")
        return None


def _keep_newest(folder: Path) -> None:
    with private.opened(folder, OWN) as at:
        found = []
        for name in os.listdir(at):
            with suppress(FileNotFoundError):  # removed by another process
                if name.endswith(".json"):
                    found.append((os.stat(name, dir_fd=at, follow_symlinks=False).st_mtime_ns, name))
        for _, name in sorted(found)[: max(0, len(found) - KEPT)]:
            with suppress(FileNotFoundError):
                private.unlink(name, dir_fd=at)


def load(path: Path) -> dict[str, Any]:
    """The whole document. Raises OSError or ValueError for what is no snapshot of this user's."""
    document = json.loads(private.read(path, OWN))
    if not isinstance(document, dict) or "id" not in document:
        raise ValueError(f"{path} is not a crash snapshot")
    return document


def list_folder(folder: Path) -> list[CrashRecord]:
    """Oldest first, linked to their roots; what is no snapshot, or not this user's, is passed over."""
    try:
        names = [name for name in private.names(folder, OWN) if name.endswith(".json")]
    except OSError:
        names = []
    records = [record for name in names if (record := _first_line(folder / name)) is not None]
    return link(list(_once(sorted(records, key=lambda record: record.time))))


def _once(records: Iterable[CrashRecord]) -> Iterator[CrashRecord]:
    """A process ends once: the hub and a driver whose Ray ends with it may both have found that out."""
    ended: set[str] = set()
    for record in records:
        if record.kind != "exit" or record.worker_id not in ended:
            yield record
        if record.kind == "exit":
            ended.add(record.worker_id)


def _first_line(path: Path) -> CrashRecord | None:
    try:
        with private.reading(path, OWN) as file:
            line = file.readline().decode().strip()
        return crash_of(json.loads(f"{line[:-1]}}}" if line.endswith(",") else line))
    except (OSError, ValueError, RecursionError):
        return None  # removed just now as one too many, or somebody else's file
