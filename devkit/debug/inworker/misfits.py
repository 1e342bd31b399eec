"""What did not fit in the line that failed: a key, an index, ids beyond an embedding's rows, what can only be read, a
file that was cut short.

Read from the frames as they are; none of the program's code is run.
"""

from __future__ import annotations

import ast
import difflib
import os
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from . import beyond, connected, escapes, unwritable
from .expressions import comprehensions_at, items_at, known, look, own_text
from .lineage import Place, places_of
from .ports import command
from .sources import is_users

MOST = 2  # lines
ITEMS = 100_000  # of a container that are looked at
NEAR, LAST = 2, 3  # keys that are named
KEY = 60  # characters of one
SECONDS = 0.3  # to look for who writes a file
_READS = ("EOFError", "UnpicklingError", "BadZipFile", "JSONDecodeError", "SafetensorError", "ArrowInvalid")
_TORCH_READS = ("PytorchStreamReader", "central directory", "unexpected EOF")
_PLAIN = (str, int, float, bool)


def said(error: BaseException) -> list[str]:
    """One line for each of what is known, the first of them being most of a cause."""
    places = places_of(error.__traceback__)
    looks = (beyond.said, _keys, unwritable.said, escapes.said, _files)
    found = (line for look_at in looks for line in look_at(error, places))
    return list(dict.fromkeys(found))[:MOST]


# ---- keys


def _keys(error: BaseException, places: Iterable[Place]) -> Iterator[str]:
    if type(error) is not KeyError or not error.args or type(error.args[0]) not in _PLAIN:
        return
    places = list(places)
    first = next(iter(places), None)
    if first is None or not is_users(first[0].f_code.co_filename):
        return  # a library's own dictionary says little
    if rows := list(_rows(error.args[0], places)):
        yield from rows
        return
    for node in items_at(*first):
        owner, key = look(node.value, first[0]), look(node.slice, first[0])
        if type(owner) is not dict or len(owner) > ITEMS or error.args[0] in owner:
            continue
        if not known(key) or key == error.args[0]:
            yield _no_key(own_text(node.value, first[0].f_code.co_filename), owner, error.args[0])


def _rows(key: Any, places: list[Place]) -> Iterator[str]:
    """Of a comprehension over dictionaries: which of them has no such key. Its own variable may be gone by then."""
    inner = places[0][0].f_code.co_name.startswith("<") and len(places) > 1
    frame, line = places[1] if inner else places[0]
    for loop in comprehensions_at(frame, line):
        target, rows = loop.generators[0].target, look(loop.generators[0].iter, frame)
        if not isinstance(target, ast.Name) or type(rows) not in (list, tuple) or len(rows) > ITEMS:
            continue
        asks = any(_asks(node, target.id, key) for node in ast.walk(loop))
        without = [at for at, row in enumerate(rows) if type(row) is dict and key not in row] if asks else []
        if without:
            more = f"; so it is with {len(without) - 1} more of the {len(rows)}" if len(without) > 1 else ""
            name = f"{own_text(loop.generators[0].iter, frame.f_code.co_filename)}[{without[0]}]"
            yield f"{_no_key(name, rows[without[0]], key)}{more}"


def _asks(node: ast.AST, name: str, key: Any) -> bool:
    """Whether it is `name[key]`."""
    is_item = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name
    return is_item and isinstance(node.slice, ast.Constant) and node.slice.value == key  # type: ignore[attr-defined]


def _no_key(name: str, owner: dict[Any, Any], key: Any) -> str:
    """How many keys there are instead, and which: of another type, nearly the same, the last ones.

    >>> _no_key("at", {1: "a", 2: "b"}, "1")
    "`at` has 2 keys, and 1 as int among them, where '1' is str"
    >>> _no_key("scores", {"reward": 1, "kl": 2}, "rewards")
    "`scores` has 2 keys, but not 'rewards'; near it: 'reward'"
    >>> _no_key("kept", {}, 7)
    '`kept` is empty'
    """
    if not owner:
        return f"`{name}` is empty"
    count = f"`{name}` has {len(owner)} key{'s' * (len(owner) > 1)}"
    others = (each for each in owner if type(each) in _PLAIN and type(each) is not type(key))
    alike = next((each for each in others if str(each) == str(key)), None)
    if alike is not None:
        here, there = type(key).__name__, type(alike).__name__
        return f"{count}, and {_shown(alike)} as {there} among them, where {_shown(key)} is {here}"
    texts = [each for each in owner if type(each) is str]
    near = difflib.get_close_matches(key, texts[-1000:], NEAR) if type(key) is str else []
    if near:
        return f"{count}, but not {_shown(key)}; near it: {', '.join(map(_shown, near))}"
    plain = [each for each in owner if type(each) in _PLAIN][-LAST:]
    last = f"; the last ones: {', '.join(map(_shown, plain))}" if plain else ""
    return f"{count}, but not {_shown(key)}{last}"


def _shown(key: Any) -> str:
    from .redaction import scrub

    text = scrub(repr(key))
    return text if len(text) <= KEY else f"{text[: KEY - 3]}..."


# ---- files


def _files(error: BaseException, places: Iterable[Place]) -> Iterator[str]:
    """Of a reader that came to an end too early: the file, how old it is, and who is writing to it."""
    is_cut = type(error).__name__ in _READS or any(each in str(error)[:500] for each in _TORCH_READS)
    path = next(filter(None, (_path_in(frame) for frame, _ in places)), "") if is_cut else ""
    if not path:
        return
    try:
        found = os.stat(path)
    except OSError:
        return
    writer = _writer(path)
    who = "this process" if writer == os.getpid() else f"pid {writer} ({command(writer)})"
    by = f", and {who} had it open to write" if writer else ""
    age = max(0.0, time.time() - found.st_mtime)
    yield f"the file that it read, {path}, had {found.st_size} bytes then, last written {_span(age)} before{by}"


def _span(seconds: float) -> str:
    """
    >>> _span(0.04), _span(75.0), _span(86400.0 * 3)
    ('0.0 s', '75 s', '3 days')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 86400 else f"{seconds / 86400:.0f} days"


def _path_in(frame: FrameType) -> str:
    """A file of which the frame has the path, or which it has open."""
    for value in list(frame.f_locals.values()):
        path = value if type(value) is str else _named(value)
        if path and len(path) < 4096 and "\0" not in path and os.path.isfile(path):
            return os.path.abspath(path)
    return ""


def _named(value: Any) -> str:
    """Of a path or an open file of Python's own."""
    module = type(value).__module__
    if module == "pathlib" or module.startswith("pathlib."):
        return str(value)
    name = getattr(value, "name", None) if module in ("_io", "gzip", "zipfile") else None
    return name if type(name) is str else ""


def _writer(path: str) -> int:
    """Another process that has the file open to write, of those that may be looked at; 0: none was seen."""
    end = time.monotonic() + SECONDS
    real = os.path.realpath(path)
    for pid in sorted((int(each) for each in os.listdir("/proc") if each.isdigit()), reverse=True):
        if time.monotonic() > end:
            break
        for number in connected.descriptors(pid):
            if connected.link(pid, number) == real and "w" in connected.mode(pid, number):
                return pid
    return 0


__all__ = ["said"]
