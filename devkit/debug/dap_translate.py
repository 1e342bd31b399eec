"""Rewrites messages between an editor and a worker: files by `Paths`, those that only the worker has by reference."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from devkit.debug.dap_paths import Paths
from devkit.debug.protocols import Document

FIRST_REFERENCE = 1_000_000_000  # the worker's own are smaller

Rewrite = Callable[[Document], Document]


class Translation:
    """One worker's files. Bodies go in and come out as new documents."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._only_there: list[str] = []

    def to_editor(self, body: Any) -> Any:
        """A response's or an event's body as the editor understands it."""
        return with_sources(body, self._source_to_editor)

    def to_worker(self, arguments: Mapping[str, Any]) -> Document:
        """A request's arguments as the worker understands them."""
        changed: Document = with_sources(dict(arguments), self._source_to_worker)
        reference = changed.get("sourceReference")
        if isinstance(reference, int) and reference >= FIRST_REFERENCE:
            path = self._path(reference)
            changed |= {"sourceReference": 0, "source": {"path": path, "sourceReference": 0}}
        return changed

    def _source_to_editor(self, source: Document) -> Document:
        path = source.get("path")
        if not isinstance(path, str) or not path:
            return source
        here = self.paths.to_editor(path)
        if os.path.isfile(here):
            return {**source, "path": here, "name": os.path.basename(here), "sourceReference": 0}
        if source.get("sourceReference") or not os.path.isabs(path):
            return source
        return {**source, "sourceReference": self._reference(path), "origin": "read from the worker"}

    def _source_to_worker(self, source: Document) -> Document:
        reference = source.get("sourceReference") or 0
        if isinstance(reference, int) and reference >= FIRST_REFERENCE:
            return {**source, "path": self._path(reference), "sourceReference": 0}
        path = source.get("path")
        return {**source, "path": self.paths.to_worker(path)} if isinstance(path, str) and path else source

    def _reference(self, path: str) -> int:
        if path not in self._only_there:
            self._only_there.append(path)
        return FIRST_REFERENCE + self._only_there.index(path)

    def _path(self, reference: int) -> str:
        index = reference - FIRST_REFERENCE
        return self._only_there[index] if index < len(self._only_there) else ""


def with_sources(body: Any, rewrite: Rewrite) -> Any:
    """The body with each `source` (and each of `sources`) in it rewritten.

    >>> with_sources({"stackFrames": [{"id": 1, "source": {"path": "/a"}}]}, lambda source: {"path": "/b"})
    {'stackFrames': [{'id': 1, 'source': {'path': '/b'}}]}
    """
    if isinstance(body, list):
        return [with_sources(each, rewrite) for each in body]
    if not isinstance(body, dict):
        return body
    changed: Document = {}
    for name, value in body.items():
        if name == "source" and isinstance(value, dict):
            changed[name] = rewrite(value)
        elif name == "sources" and isinstance(value, list):
            changed[name] = [rewrite(each) if isinstance(each, dict) else each for each in value]
        else:
            changed[name] = with_sources(value, rewrite)
    return changed
