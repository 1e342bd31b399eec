"""Which actors a process has killed by `ray.kill`, and where: Ray says of a killed actor only that it was."""

from __future__ import annotations

import functools
import re
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from .passing import unframed
from .stacks import users_lines

MOST = 20  # that are told, the last ones
BY_KILL = "killed by `ray.kill`"  # in Ray's words
_BY = " was killed by ray.kill, which "
_FIELD = re.compile(r"^\s*(class_name|actor_id|pid|name|namespace|ip): (.*)$", re.MULTILINE)

Document = dict[str, Any]

_MARK = "__devkit_kills__"
_noted: deque[Document] = deque(maxlen=MOST)


# ---- in the process that kills


def watch(module: Any, on_new: Callable[[], object]) -> None:
    """Notes where `ray.kill` is called. Calls back before each. `module` is `ray._private.worker`."""
    for holder in (module, sys.modules.get("ray")):
        original = getattr(holder, "kill", None)
        if original is not None and not hasattr(original, _MARK):
            holder.kill = _watched(original, on_new)  # type: ignore[union-attr]


def _watched(original: Callable[..., Any], on_new: Callable[[], object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def kill(actor: Any, *arguments: Any, **options: Any) -> Any:
        if (name := _id_of(actor)) and (site := next(users_lines(sys._getframe(1)), None)):
            _noted.append({"actor": name, **site})
            on_new()
        try:
            return original(actor, *arguments, **options)
        except BaseException as error:
            unframed(error)
            raise

    setattr(kill, _MARK, True)
    return kill


def _id_of(actor: Any) -> str:
    """Of a handle of Ray's; whatever else it is given, Ray refuses."""
    try:
        return str(object.__getattribute__(actor, "__dict__")["_ray_actor_id"].hex())
    except (AttributeError, KeyError, TypeError):
        return ""


def noted() -> list[Document]:
    """[{"actor", "file", "line", "function"}], the oldest first."""
    return list(_noted)


# ---- where it is told


def fields(message: str) -> dict[str, str]:
    """What Ray says of an actor that died: {"class_name", "actor_id", "pid", "name"}, as far as it does.

    >>> fields("The actor died.\\n\\tclass_name: Trainer\\n\\tpid: 7\\nThe actor is dead.")
    {'class_name': 'Trainer', 'pid': '7'}
    """
    return dict(_FIELD.findall(message))


def without_fields(message: str) -> str:
    return _FIELD.sub("", message)


def called(known: dict[str, str]) -> str:
    """
    >>> called({"class_name": "job.Trainer", "name": "trainer_1", "pid": "7"}), called({})
    ('Trainer trainer_1 (pid 7)', 'the actor')
    """
    named = " ".join(filter(None, (known.get("class_name", "").rpartition(".")[2], known.get("name"))))
    return (named or "the actor") + (f" (pid {known['pid']})" if "pid" in known else "")


def victim(document: Document) -> dict[str, str]:
    """Of a crash that tells of an actor which was killed: that one's fields; empty for any other."""
    message = document["exception"]["message"]
    found = fields(message) if BY_KILL in message else {}
    return found if found.get("actor_id") else {}


def sentence(known: dict[str, str], killer: Document, site: Document) -> str:
    """Who was killed, by whom, and where.

    Args:
        killer: the identity of who did it.
    """
    return f"{called(known)}{_by(killer, site)}"


def reason(killer: Document, site: Document) -> str:
    """The same of a process that has been named before."""
    return f"it{_by(killer, site)}"


def who(killer: Document) -> str:
    """
    >>> who({"role": "driver", "pid": 3}), who({"role": "Watchdog", "pid": 7})
    ('the driver', 'Watchdog pid 7')
    >>> who({"role": "Rollout", "pid": 7, "rank": 0})
    'Rollout rank 0'
    """
    if killer["role"] == "driver":
        return "the driver"
    rank = killer.get("rank")
    return f"{killer['role']} pid {killer['pid']}" if rank is None else f"{killer['role']} rank {rank}"


def _by(killer: Document, site: Document) -> str:
    return f"{_BY}{who(killer)} called at {site['file']}:{site['line']} in {site['function']}"


def is_told(message: str) -> bool:
    """Whether it is such a sentence: then nothing else is to be found out about that death."""
    return _BY in message
