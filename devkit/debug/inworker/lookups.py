"""Which actors this process looks up by name in vain, and how often: a loop of that moves, and gets nowhere.

A list of all names is such a look, too, as long as it stays the same; it is noted under no name.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from .passing import unframed
from .stacks import users_lines

MOST_NAMES = 20
FRESH_SECONDS = 60.0  # a name that nobody has asked for in this time is forgotten

Document = dict[str, Any]
_MARK = "__devkit_looks__"
_failed: dict[tuple[str, str], Document] = {}


def watch(module: Any) -> None:
    """Counts what `ray.get_actor` does not find, and how often `ray.util.list_named_actors` finds nothing new.

    `module` is `ray._private.worker`; `ray` has a `get_actor` of its own.
    """
    for holder in (module, sys.modules.get("ray")):
        original = getattr(holder, "get_actor", None)
        if original is not None and not hasattr(original, _MARK):
            holder.get_actor = _watched(original, module)  # type: ignore[union-attr]
    util = sys.modules.get("ray.util")
    original = getattr(util, "list_named_actors", None)
    if original is not None and not hasattr(original, _MARK):
        util.list_named_actors = _watched_list(original, module)  # type: ignore[union-attr]


def _watched_list(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    seen: dict[str, Sequence[str]] = {}

    @functools.wraps(original)
    def list_named_actors(all_namespaces: bool = False) -> Any:
        found = original(all_namespaces)
        if not all_namespaces:
            namespace = str(getattr(module.global_worker, "namespace", "") or "")
            if seen.get(namespace) != sorted(found):
                _failed.pop(("", namespace), None)
            seen[namespace] = sorted(found)
            _note("", namespace)
        return found

    setattr(list_named_actors, _MARK, True)
    return list_named_actors


def _watched(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_actor(name: str, namespace: str | None = None) -> Any:
        key = str(name), namespace or str(getattr(module.global_worker, "namespace", "") or "")
        try:
            handle = original(name, namespace)
        except Exception as error:
            if isinstance(error, ValueError):
                _note(*key)
            unframed(error)
            raise
        _failed.pop(key, None)
        return handle

    setattr(get_actor, _MARK, True)
    return get_actor


def _note(name: str, namespace: str) -> None:
    now = time.time()
    before = _failed.pop((name, namespace), None)
    since = before if before is not None and now - before["last"] < FRESH_SECONDS else {"count": 0, "since": now}
    at = next(users_lines(sys._getframe(2)), None) or (before or {}).get("at")
    _failed[name, namespace] = {"count": since["count"] + 1, "since": since["since"], "last": now, "at": at}
    while len(_failed) > MOST_NAMES:
        _failed.pop(next(iter(_failed)))


def in_vain() -> list[Document]:
    """[{"name", "namespace", "count", "seconds", "at"}], those that were asked for of late."""
    now = time.time()
    return [
        {
            "name": name,
            "namespace": namespace,
            "count": each["count"],
            "seconds": each["last"] - each["since"],
            "at": each["at"],
        }
        for (name, namespace), each in list(_failed.items())
        if now - each["last"] < FRESH_SECONDS and each["at"]
    ]
