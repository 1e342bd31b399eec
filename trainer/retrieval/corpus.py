"""A corpus of passages: JSON lines, `{"id": ..., "contents": "\\"title\\"\\ntext"}` or `{"title": ..., "text": ...}`.

The former is Search-R1's. An `id` may be missing: then it is the row's number, from 0.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainer.errors import DataError
from trainer.retrieval.api import clean

DIGEST_CHARACTERS = 16  # of the SHA-256, as hexadecimal digits
_FORMS = 'each line is {"id": ..., "contents": "title\\ntext"} or {"title": ..., "text": ...}'
_SHOWN = 60  # characters of what is there instead


class BadRow(ValueError):
    """A line that is no passage; the message says why."""


@dataclass(frozen=True)
class Corpus:
    """All passages of a file, by row."""

    name: str  # of the file
    ids: list[str]
    contents: list[str]
    digest: str  # of the file's bytes: two corpora of one digest are the same

    def __len__(self) -> int:
        return len(self.ids)

    def document(self, row: int) -> dict[str, str]:
        """As the API has it."""
        return {"id": self.ids[row], "contents": self.contents[row]}


def read(path: str) -> Corpus:
    """Raises DataError that names the row, from 1, of the first that is no passage."""
    sha = hashlib.sha256()
    ids: list[str] = []
    contents: list[str] = []
    first_with: dict[str, int] = {}
    for number, line in _lines(path):
        sha.update(line)
        if not line.strip():
            continue
        try:
            name, text = passage(line, number)
        except BadRow as error:
            raise DataError(f"{path}, row {number}: {error}", hint=_FORMS) from error
        name = str(len(ids)) if name is None else name
        if name in first_with:
            raise DataError(
                f"{path}, row {number}: its id {_shown(name)} is that of row {first_with[name]}, too",
                hint="each passage needs an id of its own, or none of them has one",
            )
        first_with[name] = number
        ids.append(name)
        contents.append(text)
    if not ids:
        raise DataError(f"{path} holds no passages", hint=_FORMS)
    return Corpus(os.path.basename(path), ids, contents, sha.hexdigest()[:DIGEST_CHARACTERS])


def look(path: str) -> None:
    """Whether the first row of a file is a passage, which takes no time. Raises DataError."""
    for number, line in _lines(path):
        if line.strip():
            try:
                passage(line, number)
            except BadRow as error:
                raise DataError(f"{path}, row {number}: {error}", hint=_FORMS) from error
            return
    raise DataError(f"{path} holds no passages", hint=_FORMS)


def passage(line: bytes, number: int = 1) -> tuple[str | None, str]:
    """Its id, if it has one, and its contents. Raises BadRow.

    >>> passage(b'{"id": 7, "contents": "\\\\"Munro\\\\"\\\\nBritish writer."}')
    ('7', '"Munro"\\nBritish writer.')
    >>> passage(b'{"title": "Munro", "text": "British writer."}')
    (None, '"Munro"\\nBritish writer.')
    """
    row = _parsed(line, number)
    contents = row.get("contents")
    if contents is None:
        title, text = row.get("title"), row.get("text")
        if title is None or text is None:
            raise BadRow(f"there is neither contents nor title and text in {_shown(row)}")
        _require_text("title", title)
        _require_text("text", text)
        contents = f'"{" ".join(title.split())}"\n{text}'  # the title is a line of its own
    _require_text("contents", contents)
    if not contents.strip():
        raise BadRow("contents is empty")
    return _id(row.get("id")), clean(contents)


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise BadRow(f"byte {error.start + 1} of it is not UTF-8") from error
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRow(f"it is no JSON ({error.msg} at character {error.pos + 1}): {_shown(text.strip())}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets within brackets
        raise BadRow(f"it is no JSON that can be read: {_shown(text.strip())}") from error
    if not isinstance(row, dict):
        raise BadRow(f"it is no object: {_shown(row)}")
    return row


def _id(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise BadRow(f"id is neither text nor a whole number: {_shown(value)}")
    try:
        return clean(str(value))
    except ValueError as error:  # of thousands of digits
        raise BadRow("id is too long") from error


def _require_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise BadRow(f"{name} is no text: {_shown(value)}")


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, from 1. Raises DataError where the file cannot be read."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            yield from enumerate(file, 1)
    except (OSError, ValueError) as error:  # the latter of a zero byte in the name
        why = getattr(error, "strerror", None) or error
        raise DataError(
            f"the corpus {path} cannot be read: {why}", hint="give a file of JSON lines that this node has"
        ) from error


def _shown(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else json.dumps(value)).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
