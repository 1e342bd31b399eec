"""Actors that `get_if_exists` finds, made before with other arguments: those that are given now have no effect.

Who makes one notes with what, for the others: at home, and in Ray's key-value store by the actor's id.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import threading
from contextlib import suppress
from typing import Any, NamedTuple

from . import calls_made
from .hub_place import KV_NAMESPACE, gcs
from .line_warnings import once
from .passing import unframed
from .plain_data import Parts, differing, parts, shown
from .stacks import users_lines

MOST = 500  # actors of which is known with what they were made
MOST_BYTES = 20_000  # in Ray's store, of one actor
LOOKS = 3  # for each name: who has made it may be about to note it
SHOWN = 3  # arguments
KV_SECONDS = 2.0
_MARK = "__devkit_found__"


class _Made(NamedTuple):
    """With what an actor was made, and where."""

    parts: Parts
    at: str

    def to_json(self) -> str:
        return json.dumps(self._asdict())


_made: dict[str, _Made] = {}  # by the actor's id
_looks: dict[str, int] = {}  # by its name
_told: set[str] = set()  # names
_now = threading.local()  # the actor that this thread has made last


def watch() -> None:
    """Warns of each line that names an actor, and gives it other arguments than it has. Needs Ray's `ActorClass`."""
    kind: Any = getattr(sys.modules.get("ray.actor"), "ActorClass", None)
    original = getattr(kind, "_remote", None)
    if original is None or hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def _remote(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        calls_made.tell_passed(args, kwargs)
        if not options.get("name"):
            try:
                return original(self, args, kwargs, **options)
            except BaseException as error:
                unframed(error)
                raise
        _now.made = ""
        try:
            found = original(self, args, kwargs, **options)
        except BaseException as error:
            unframed(error)
            raise
        with suppress(Exception):  # another Ray's, or one that ends: the actor is there all the same
            _came(self, args or (), kwargs or {}, options, found._ray_actor_id.hex())
        return found

    setattr(_remote, _MARK, True)
    kind._remote = _remote


def _came(actor_class: Any, args: Any, kwargs: Any, options: dict[str, Any], actor: str) -> None:
    if not options.get("get_if_exists"):
        _now.made = actor
        _keep(actor, _Made(_given(actor_class, args, kwargs), _site()))
    elif _now.made != actor:
        _compare(str(options["name"]), _given(actor_class, args, kwargs), actor)
    elif actor in _made and len(text := _made[actor].to_json()) <= MOST_BYTES:
        gcs().internal_kv_put(_key(actor), text.encode(), True, KV_NAMESPACE, timeout=KV_SECONDS)


def _keep(actor: str, made: _Made) -> _Made:
    """Of as many as there is room for."""
    if len(_made) < MOST:
        _made[actor] = made
    return made


def _given(actor_class: Any, args: Any, kwargs: Any) -> Parts:
    """By the names that the actor's `__init__` has for them, with its defaults."""
    made = inspect.signature(actor_class.__ray_metadata__.modified_class.__init__).bind(None, *args, **kwargs)
    made.apply_defaults()
    found: Parts = {}
    for name, value in list(made.arguments.items())[1:]:
        found |= {f"{name}{way}": text for way, text in parts(value, name).items()}
    return found


def _site() -> str:
    """The program's line that makes it, and the one that called that: many have a function of their own for it."""
    lines = [f"{os.path.basename(each['file'])}:{each['line']}" for each in users_lines(sys._getframe(1))]
    return ", called at ".join(lines[:2])


def _compare(name: str, given: Parts, actor: str) -> None:
    known = _made.get(actor)
    if known is None:
        if _looks.get(name, 0) >= LOOKS:
            return
        _looks[name] = _looks.get(name, 0) + 1
        text = gcs().internal_kv_get(_key(actor), KV_NAMESPACE, timeout=KV_SECONDS)
        if not text:
            return
        known = _keep(actor, _Made(**json.loads(text)))
    if name not in _told and (others := differing(known.parts, given)):
        has = "; ".join(f"{way} = {shown(was)}, and not {shown(now)}" for way, was, now in others[:SHOWN])
        more = f"; and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        called = _site().partition(", ")[2]
        here = f"here ({called})" if called else "here"
        _told.add(name)
        text = f"the actor {name!r} was made before, at {known.at}: what it is given {here} has no effect"
        once(f"found {name}", f"{text}; it was made with {has}{more}", 1)


def _key(actor: str) -> bytes:
    return f"made:{actor}".encode()


__all__ = ["watch"]
