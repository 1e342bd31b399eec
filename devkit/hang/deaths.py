"""Why an actor has ended, from Ray's table of actors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devkit.debug.briefly import brief
from devkit.debug.inworker.redaction import scrub
from devkit.debug.inworker.words import in_short

LENGTH = 200  # characters of Ray's own words
_UNREFERENCED = "no handle was left that keeps it, as those of get_actor do not, and it was not detached"
_REASONS = {
    "OUT_OF_SCOPE": _UNREFERENCED,
    "REF_DELETED": _UNREFERENCED,
    "RAY_KILL": "it was killed by ray.kill",
    "OWNER_DIED": "its owner, the process that made it, has ended, and it was not detached",
    "NODE_DIED": "its node is gone",
}
_MESSAGES = {  # of a Ray whose table has no reasons
    "all references to the actor were removed": "OUT_OF_SCOPE",
    "was killed by `ray.kill`": "RAY_KILL",
    "its owner has died": "OWNER_DIED",
    "its node has died": "NODE_DIED",
}
_EXIT = "Worker exit detail: "  # what follows is the reason


def why(cause: Mapping[str, Any]) -> str:
    """Half a sentence; empty where the table does not tell.

    Args:
        cause: the `death_cause` of an actor's row: one context, by its name.

    >>> why({"actor_died_error_context": {"reason": "RAY_KILL", "error_message": "The actor is dead because ..."}})
    'it was killed by ray.kill'
    >>> why({"actor_died_error_context": {"error_message": "The actor died because its node has died. Node Id: 0a"}})
    'its node is gone'
    >>> why({})
    ''
    """
    kind, known = next(((name, each) for name, each in cause.items() if isinstance(each, Mapping)), ("", {}))
    message = str(known.get("error_message") or "")
    if kind == "creation_task_failure_context":
        return _of_init(str(known.get("formatted_exception_string") or ""))
    if kind == "oom_context":
        return "it was killed by Ray's memory monitor"
    reason = str(known.get("reason") or "")
    reason = reason if reason in _REASONS else next((name for text, name in _MESSAGES.items() if text in message), "")
    if reason:
        return _REASONS[reason]
    told = in_short(message.rpartition(_EXIT)[2])
    return _cut(told.rstrip(". "))


def _of_init(text: str) -> str:
    """Of one whose `__init__` has raised."""
    if not text.strip():
        return "its __init__ has failed"
    known = brief("ActorDiedError", text)
    own = known.said if known.type != "ActorDiedError" else text.strip().rpartition("\n")[2]
    return f"its __init__ has failed: {_cut(own)}"


def _cut(text: str) -> str:
    """At the end of a sentence, or of a word.

    >>> _cut("ends. " + "a" * 200), _cut("one " + "b " * 150)[-6:]
    ('ends', 'b b...')
    """
    line = " ".join(scrub(text).split())
    if len(line) <= LENGTH:
        return line
    head, end, _ = line[:LENGTH].rpartition(". ")
    return head if end else f"{line[:LENGTH].rpartition(' ')[0] or line[:LENGTH]}..."


__all__ = ["why"]
