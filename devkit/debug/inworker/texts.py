"""The texts that the code of this process was made from: files, archives, what a loader or `linecache` keeps."""

from __future__ import annotations

import linecache
import os
import sys
import tokenize
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from importlib.util import decode_source
from types import ModuleType
from typing import Any

from .finding import Functions, path_rank, stacks
from .sources import is_users

ALIKE = 0.7  # how like a name must be to one that is not there
MOST_NEAR = 3


def texts_here(filename: str) -> Iterator[str]:
    """The versions of a file that this process knows. One that is no file may be a loader's, or a notebook's cell."""
    is_file = os.path.isfile(filename)
    try:
        if is_file:  # a pipe would be waited for
            with tokenize.open(filename) as file:
                yield file.read()
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        pass
    cached = "" if os.path.exists(filename) and not is_file else "".join(linecache.getlines(filename))
    if cached:
        yield cached
    yield from _of_loaders(filename)


def _of_loaders(filename: str) -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and filename in _files_of(module):
            text = _of_loader(vars(module).get("__loader__"), name, filename)
            if text:
                yield text


def _of_loader(loader: Any, name: str, filename: str) -> str:
    try:
        if hasattr(loader, "get_data"):  # an archive's `get_source` knows no encoding but one
            return decode_source(loader.get_data(filename))
        return str(loader.get_source(name) or "")
    except Exception:  # noqa: BLE001 - a loader of the program's that has no text; another may have it
        return ""


def _files_of(module: ModuleType) -> tuple[object, object]:
    return vars(module).get("__file__"), getattr(vars(module).get("__spec__"), "origin", None)


def source_of(name: str) -> dict[str, Any]:
    """{"file", "text"} of the code here whose file bears this name; else {"near"}: files whose names are like it."""
    known = _known_files()
    ranked = [file for file in known if path_rank(file, (name,)) is not None]
    for file in sorted(ranked, key=lambda file: (not is_users(file), len(file))):
        text = next(texts_here(file), None)
        if text is not None:
            return {"file": file, "text": text, "near": []}
    return {"near": near(name, (file for file in known if is_users(file) and file != name))}


def _known_files() -> set[str]:
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    of_modules = {file for module in modules for file in _files_of(module) if isinstance(file, str)}
    running = {frame.f_code.co_filename for _, frame in stacks()}
    return Functions().files | of_modules | running | set(linecache.cache)


def near(name: str, files: Iterable[str]) -> list[str]:
    """Those of these files whose names are most like `name`.

    >>> near("trian.py", ["/w/train.py", "/w/pkg/trail.py", "/w/other.py"])
    ['/w/train.py', '/w/pkg/trail.py']
    """
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(os.path.basename(file).lower(), []).append(file)
    wanted = os.path.basename(name).lower()
    found = get_close_matches(wanted, by_name, n=MOST_NEAR, cutoff=ALIKE)
    return [file for each in found for file in sorted(by_name[each], key=len)][:MOST_NEAR]
