"""Which file of the editor's workspace a worker's file is, and the other way round.

Ray unpacks a job's code at `.../working_dir_files/_ray_pkg_<hash>/pkg/m.py`, under a new hash for each upload, and a
driver that is pickled by value names its files as they are on the driver's machine. Both are the workspace's file with
the same relative path; if both can be read they must have the same content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from devkit.debug.naming import is_library
from devkit.reading import LONGEST_SOURCE, read_regular

_UNPACKED = re.compile(r"/[^\s'\"]*?/(?:working_dir_files|py_modules_files)/_ray_pkg_[0-9a-f]+(?=[/'\"\s]|$)")
_DEPTH = 2  # folders below the workspace that may be a job's working folder
_MOST_FOLDERS = 500
_NOT_CODE = frozenset({"node_modules", "__pycache__", "site-packages", "build", "dist", "outputs", "checkpoints"})
_NOBODYS = frozenset({"__init__.py", "__main__.py", "setup.py", "conftest.py"})  # every project has one


@dataclass(frozen=True)
class PathMapping:
    """A folder here, and what it is called in a worker."""

    local: str
    remote: str

    def to_local(self, path: str) -> str | None:
        return _moved(path, self.remote, self.local)

    def to_remote(self, path: str) -> str | None:
        return _moved(path, self.local, self.remote)


def _moved(path: str, old: str, new: str) -> str | None:
    relative = below(path, old)
    return None if relative is None else os.path.join(new, relative) if relative else new


def below(path: str, folder: str) -> str | None:
    """What of a path is below a folder.

    >>> below("/a/b/c.py", "/a/"), below("/ab/c.py", "/a")
    ('b/c.py', None)
    """
    folder = folder.rstrip("/")
    if path == folder:
        return ""
    return path[len(folder) + 1 :] if path.startswith(folder + "/") else None


def unpacked_roots(text: str) -> list[str]:
    """The folders into which Ray unpacked code, in a path or in any other text.

    >>> unpacked_roots("['/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0f3a', '/usr/lib']")
    ['/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0f3a']
    """
    return list(dict.fromkeys(_UNPACKED.findall(text)))


def explicit_mappings(arguments: Mapping[str, Any]) -> list[PathMapping]:
    """Those that an attach request brings.

    >>> explicit_mappings({"pathMappings": [{"localRoot": "/w", "remoteRoot": "/job"}, {"localRoot": 1}]})
    [PathMapping(local='/w', remote='/job')]
    """
    pairs = [pair for pair in arguments.get("pathMappings") or () if isinstance(pair, Mapping)]
    roots = [(pair.get("localRoot"), pair.get("remoteRoot")) for pair in pairs]
    return [PathMapping(*each) for each in roots if isinstance(each[0], str) and isinstance(each[1], str)]  # type: ignore[arg-type]


def find_local(remote: str, workspace: str) -> PathMapping | None:
    """Whose part a worker's file is; None when it is to be opened as it is."""
    roots = unpacked_roots(remote)
    if roots:
        relative = below(remote, roots[0]) or ""
        for base in bases(workspace):
            if relative and os.path.isfile(os.path.join(base, relative)):
                local = os.path.join(base, relative)
                return PathMapping(base, roots[0]) if same_content(local, remote) else None
        return None
    if not os.path.isabs(remote) or is_library(remote) or os.path.exists(remote):
        return None
    return _by_end(remote, workspace)


def _by_end(remote: str, workspace: str) -> PathMapping | None:
    """The workspace's file that shares the longest end of its path with this one, which is on another machine."""
    parts = remote.strip("/").split("/")
    for start in range(1, len(parts)):
        rest = parts[start:]
        if len(rest) == 1 and rest[0] in _NOBODYS:
            return None
        if os.path.isfile(os.path.join(workspace, *rest)):
            return PathMapping(workspace, "/" + "/".join(parts[:start]))
    return None


def find_remote(local: str, workspace: str, known: Sequence[PathMapping], roots: Sequence[str]) -> str | None:
    """What the workspace's file is called in a worker; None when nothing is known of it there.

    `known` are the pairs that were found so far, `roots` the folders with unpacked code of which no file was seen yet.
    """
    for pair in known:
        remote = pair.to_remote(local)
        if remote is not None and _may_be(local, remote, pair.remote):
            return remote
    for root in roots:
        for base in bases(workspace) if os.path.isdir(root) else [workspace]:
            remote = PathMapping(base, root).to_remote(local)
            if remote is not None and _may_be(local, remote, root):
                return remote
    return None


def _may_be(local: str, remote: str, root: str) -> bool:
    """A folder that can't be seen from here is trusted to have the file."""
    if not os.path.isdir(root):
        return True
    return os.path.isfile(remote) and same_content(local, remote)


def same_content(one: str, other: str) -> bool:
    """Whether two files are equal, as far as both can be read."""
    contents = [_content(path) for path in (one, other)]
    return None in contents or contents[0] == contents[1]


def _content(path: str) -> bytes | None:
    try:
        return read_regular(path, LONGEST_SOURCE)
    except (OSError, ValueError):
        return None


def bases(workspace: str) -> list[str]:
    """Folders of the workspace that may have been a job's working folder, the workspace itself first."""
    return [workspace, *_folders_below(workspace)]


@lru_cache(maxsize=8)
def _folders_below(workspace: str) -> tuple[str, ...]:
    found: list[str] = []
    layer = [workspace]
    for _ in range(_DEPTH):
        layer = [folder for above in layer for folder in _folders_in(above)]
        found += layer
        if len(found) > _MOST_FOLDERS:
            break
    return tuple(found[:_MOST_FOLDERS])


def _folders_in(folder: str) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        is_code = not entry.name.startswith(".") and entry.name not in _NOT_CODE
        if is_code and entry.is_dir(follow_symlinks=False) and not os.path.exists(f"{entry.path}/pyvenv.cfg"):
            yield entry.path


class Paths:
    """The translation for one worker; learns from every path that it sees."""

    def __init__(self, workspace: str, roots: Sequence[str] = ()) -> None:
        self.workspace = workspace
        self._explicit: list[PathMapping] = []
        self._roots = list(roots)
        self._known: list[PathMapping] = []
        self._local: dict[str, str] = {}

    def attach(self, arguments: Mapping[str, Any]) -> None:
        """Takes what an attach request says: the worker applies its `pathMappings`, so they are left alone here."""
        self._explicit = explicit_mappings(arguments)
        root = arguments.get("localRoot") or arguments.get("cwd")
        if isinstance(root, str) and os.path.isdir(root):
            self.workspace = os.path.abspath(root)
            self._local.clear()

    def learn(self, text: str) -> None:
        """Takes the folders with unpacked code from a text in which they may be named."""
        self._roots += [root for root in unpacked_roots(text) if root not in self._roots]

    def to_editor(self, path: str) -> str:
        if path not in self._local:
            self._local[path] = self._find_local(path)
        return self._local[path]

    def to_worker(self, path: str) -> str:
        if any(pair.to_remote(path) is not None for pair in self._explicit):
            return path
        return find_remote(path, self.workspace, self._known, self._roots) or path

    def _find_local(self, path: str) -> str:
        self.learn(path)
        pair = None
        if not any(each.to_local(path) is not None or each.to_remote(path) is not None for each in self._explicit):
            pair = find_local(path, self.workspace)
        if pair is None:
            return path
        if pair not in self._known:
            self._known.insert(0, pair)
        return pair.to_local(path) or path
