"""`devkit vscode init`: our launch configurations and tasks, merged into those of a folder and not over them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from devkit import console
from devkit.errors import DevkitError, UsageError
from devkit.reading import read_regular
from devkit.vscode import jsonc
from devkit.vscode.entries import Entry, File, Part, files, is_ours, programs_of

LARGEST = 1_000_000  # bytes of a file of VS Code's
Outcome = Literal["added", "updated", "kept", "unchanged"]  # kept: changed by the user


@dataclass(frozen=True)
class WrittenFile:
    """What became of our entries in one file."""

    path: str
    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # changed by the user
    unchanged: tuple[str, ...] = ()


@dataclass(frozen=True)
class InitRecord:
    """`devkit vscode init`."""

    folder: str
    files: tuple[WrittenFile, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def main(folder: Path | None = None, *, force: bool = False, json: bool = False) -> int:
    """Writes both files or, if one of them cannot be read, none."""
    record = init((folder or Path.cwd()).absolute(), force=force)
    if json:
        console.emit(record.to_json())
        return 0
    out = console.result()
    for line in _lines(record):
        out.print(line, soft_wrap=True)
    return 0


def init(folder: Path, *, force: bool = False) -> InitRecord:
    """Merges our entries into the folder's files. Raises UsageError for one that is broken; nothing is written then."""
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}", hint="choose the folder you open in the editor with --folder")
    merged = [_Merge(folder / ".vscode" / file.name, file, force) for file in files(programs_of(folder))]
    for each in merged:
        each.write()
    return InitRecord(str(folder), tuple(each.record() for each in merged))


class _Merge:
    """One file: read and merged when it is made, written by `write`."""

    def __init__(self, path: Path, file: File, force: bool) -> None:
        self._path = path
        self._force = force
        self._found: dict[Outcome, list[str]] = {"added": [], "updated": [], "kept": [], "unchanged": []}
        self._before = _read(path)
        try:
            self._text = self._merge(self._before, file)
        except jsonc.JsoncError as error:
            hint = "fix it, or move it away; nothing was written"
            raise UsageError(f"{path} is not JSON with comments: {error}", hint=hint) from None

    def record(self) -> WrittenFile:
        return WrittenFile(str(self._path), **{name: tuple(names) for name, names in self._found.items()})

    def write(self) -> None:
        if self._text != self._before:
            write_whole(self._path, self._text)

    def _merge(self, before: str, file: File) -> str:
        text = before if jsonc.parse(before) else _new(before, file)
        if "version" not in self._root(text).members:
            text = jsonc.apply(text, jsonc.set_member(text, self._root(text), "version", file.version))
        for part in file.parts:
            text = self._merge_part(text, part)
        return text

    def _merge_part(self, text: str, part: Part) -> str:
        if part.array not in self._root(text).members:
            text = jsonc.apply(text, jsonc.set_member(text, self._root(text), part.array, []))
        for entry in part.entries:
            text = self._merge_entry(text, part, entry)
        return text

    def _merge_entry(self, text: str, part: Part, entry: Entry) -> str:
        array = self._root(text).members[part.array]
        if not isinstance(array.value, list):
            raise UsageError(f"{self._path}: {part.array!r} is not an array", hint="fix it; nothing was written")
        there = [
            node for node in array.items if isinstance(node.value, dict) and node.value.get(part.key) == entry[part.key]
        ]
        outcome = self._outcome(text, there, entry)
        self._found[outcome].append(str(entry[part.key]))
        if outcome == "added":
            return jsonc.apply(text, jsonc.append(text, array, entry))
        return jsonc.apply(text, [jsonc.replace(text, there[0], entry)]) if outcome == "updated" else text

    def _outcome(self, text: str, there: list[jsonc.Node], entry: Entry) -> Outcome:
        if not there:
            return "added"
        if there[0].value == entry:
            return "unchanged"
        touched = jsonc.comments(text[there[0].start : there[0].end]) or not is_ours(there[0].value, entry)
        return "kept" if touched and not self._force else "updated"

    def _root(self, text: str) -> jsonc.Node:
        root = jsonc.parse(text)
        if root is None or not isinstance(root.value, dict):
            raise UsageError(
                f"{self._path} does not contain an object", hint="fix it, or move it away; nothing was written"
            )
        return root


def _new(comments: str, file: File) -> str:
    """The frame of a file that is not there, or that holds nothing but comments."""
    before = f"{comments.rstrip()}\n" if comments.strip("\ufeff \t\r\n") else ""
    arrays = ",\n".join(f'    "{part.array}": []' for part in file.parts)
    return f'{before}{{\n    // {file.about}\n    "version": "{file.version}",\n{arrays}\n}}\n'


def _read(path: Path) -> str:
    """The file's text with its line ends as they are; empty if there is no file."""
    try:
        return read_regular(path, LARGEST).decode()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8", hint="save it as UTF-8; nothing was written") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="nothing was written") from error


def write_whole(path: Path, text: str) -> None:
    """Writes the file whole or not at all; one that is there keeps its permissions, and a link stays a link."""
    target = path.resolve()
    new = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(text.encode())
        if target.exists():
            shutil.copymode(target, new)
        new.replace(target)
    except OSError as error:
        with suppress(OSError):  # a folder that can't be written to has none
            new.unlink()
        raise DevkitError(
            f"cannot write {path}: {error.strerror}", hint="do you have permission to write to that folder?"
        ) from error


def _lines(record: InitRecord) -> Iterator[str]:
    words: Mapping[str, str] = {
        "added": "added",
        "updated": "updated",
        "kept": "kept with your changes (overwrite with --force)",
        "unchanged": "there already",
    }
    for file in record.files:
        yield file.path
        for outcome, word in words.items():
            for name in getattr(file, outcome):
                yield f"  {name}: {word}"
