"""The frames of a crash snapshot as the protocol shows them, with text for the files that aren't here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from devkit.debug.crash_page import chain_of
from devkit.debug.dap_paths import Paths
from devkit.debug.naming import Who, is_library, label
from devkit.debug.protocols import Document
from devkit.reading import read_source

MOST_LINES = 10_000_000  # of a file: what is shown has that many lines
CRASHED = 1  # the thread that failed
MARKS = {"raised": "then raised", "cause": "caused by", "context": "while handling", "member": "one of"}


@dataclass(frozen=True)
class CrashFrame:
    """One frame of one thread; `locals` is None where none were recorded."""

    function: str
    file: str
    line: int
    user: bool
    locals: Mapping[str, Any] | None = None
    source: Document | None = None


@dataclass(frozen=True)
class CrashThread:
    name: str
    frames: tuple[CrashFrame, ...] = field(default=())


def threads_of(document: Document) -> dict[int, CrashThread]:
    """By number: the one that failed, as its exceptions went, and then the others as they were."""
    exception = document["exception"]
    name = f"{label(Who.of(document))}: {exception.get('type', '')}"
    threads = {CRASHED: CrashThread(name, tuple(_crashed_frames(document)))}
    for number, thread in enumerate(document.get("threads") or (), start=CRASHED + 1):
        threads[number] = CrashThread(str(thread["name"]), tuple(_frame(each) for each in thread["frames"]))
    return threads


def _crashed_frames(document: Document) -> list[CrashFrame]:
    """Those of the exception that the crash is named after, then those of what else was raised on the way."""
    chain = chain_of(document)
    shown = next((index for index, each in enumerate(chain) if each["frames"] is document["frames"]), 0)
    order = [shown, *(index for index in range(len(chain)) if index != shown)]
    frames = []
    for index in order:
        each = chain[index]
        mark = "" if index == shown else f"[{MARKS.get(str(each.get('relation')), 'then')}: {each['type']}] "
        frames += [_frame(frame, mark) for frame in each["frames"]]
    return frames


def _frame(frame: Document, mark: str = "") -> CrashFrame:
    file = str(frame["file"])
    user = bool(frame["user"]) if "user" in frame else not is_library(file)
    return CrashFrame(
        mark + frame["function"], file, int(frame["line"]), user, frame.get("locals"), frame.get("source")
    )


def stack_trace(chain: Sequence[Document]) -> str:
    """The exceptions as Python prints them, the first cause on top."""
    parts = []
    for each in reversed(chain):
        lines = [f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}' for frame in each["frames"]]
        said = f"{each['type']}: {each['message']}" if each.get("message") else str(each["type"])
        parts.append("\n".join(["Traceback (most recent call last):", *reversed(lines), said]))
    return "\n\n".join(parts)


def exception_info(document: Document) -> Document:
    """The body of `exceptionInfo`."""
    chain = chain_of(document)
    exception = document["exception"]
    inner: list[Document] = []
    for each in reversed(chain[1:]):
        inner = [{"message": each.get("message", ""), "typeName": each["type"], "innerException": inner}]
    details = {
        "message": exception.get("message", ""),
        "typeName": exception.get("type", ""),
        "stackTrace": stack_trace(chain),
        "innerException": inner,
    }
    return {
        "exceptionId": exception.get("type", ""),
        "description": exception.get("message", ""),
        "breakMode": "unhandled",
        "details": details,
    }


class RecordedSources:
    """Which file to open for a frame: the one here if it is still what ran, else the lines that were recorded."""

    def __init__(self, threads: Mapping[int, CrashThread], paths: Paths) -> None:
        self._paths = paths
        self._lines: dict[str, dict[int, str]] = {}
        for thread in threads.values():
            for frame in thread.frames:
                if frame.source:
                    first = int(frame.source["first"])
                    if not 0 <= first <= MOST_LINES:
                        raise ValueError(f"a source that begins at line {first}")
                    self._lines.setdefault(frame.file, {}).update(enumerate(map(str, frame.source["lines"]), first))
        self._files = list(self._lines)

    def source(self, frame: CrashFrame) -> Document:
        here = self._paths.to_editor(frame.file)
        hint = {} if frame.user else {"presentationHint": "deemphasize"}
        recorded = self._lines.get(frame.file, {})
        if os.path.isfile(here) and is_as_recorded(here, recorded):
            return {"name": os.path.basename(here), "path": here, **hint}
        document: Document = {"name": os.path.basename(frame.file), "path": frame.file, **hint}
        if recorded:
            document |= {"sourceReference": self._files.index(frame.file) + 1, "origin": "as recorded in the crash"}
        return document

    def text(self, reference: int, path: str) -> str | None:
        """The recorded lines at their places, or a file that is here; None when there is neither."""
        if 1 <= reference <= len(self._files):
            path = self._files[reference - 1]
        if path in self._lines:
            lines = self._lines[path]
            return "\n".join(lines.get(number, "") for number in range(1, max(lines) + 1)) + "\n"
        found = _lines_of(self._paths.to_editor(path))
        return None if found is None else "\n".join(found) + "\n"


def is_as_recorded(path: str, recorded: Mapping[int, str]) -> bool:
    """Whether a file still has the lines that were recorded."""
    lines = _lines_of(path)
    if lines is None:
        return False
    return all(
        number <= len(lines) and lines[number - 1].rstrip() == text.rstrip() for number, text in recorded.items()
    )


@lru_cache(maxsize=64)
def _lines_of(path: str) -> list[str] | None:
    text = read_source(path)
    return None if text is None else text.splitlines()
