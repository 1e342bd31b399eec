"""An actor that was looked up by its name and not found: what Ray's table has of that name."""

from __future__ import annotations

import re
from typing import Any

_FAILED = re.compile(r"Failed to look up actor with name '([^'\n]{1,200})'")
DEAD = "DEAD"

ALL_GONE = "all references to the actor were removed"  # in Ray's words
UNKEPT = "no handle was left that keeps it"
_UNKEPT = f"{UNKEPT}, as those of get_actor and get_if_exists do not; it is not detached"

Document = dict[str, Any]


def wanted(document: Document) -> str:
    """The name that a crash is about, or "".

    >>> wanted({"exception": {"message": "Failed to look up actor with name 'store'. This could because"}})
    'store'
    """
    found = _FAILED.search(str(document["exception"]["message"]))
    return found[1] if found else ""


def said(name: str, found: list[Document], failed: float) -> str:
    """What is to be known of that name where the lookup failed at `failed`, in seconds since the epoch.

    Args:
        found: {"class", "namespace", "state", "pid", "why", "ended"} of each actor of that name, the oldest first.

    >>> gone = {"class": "job.Store", "namespace": "", "state": "DEAD", "pid": 7, "why": "", "ended": 10.0}
    >>> removed = "The actor is dead because all references to the actor were removed."
    >>> said("store", [{**gone, "why": removed}], 12.5).partition(", as those of")[0]
    "Store pid 7 had the name 'store', and ended 2.5 s before: no handle was left that keeps it"
    >>> said("store", [{**gone, "state": "ALIVE", "namespace": "eval"}], 12.5)
    "Store pid 7 has the name 'store' in namespace 'eval'"
    >>> said("store", [], 12.5)
    "no actor has had the name 'store'"
    """
    if not found:
        return f"no actor has had the name {name!r}"
    last = next((each for each in reversed(found) if each["state"] != DEAD), found[-1])
    who = f"{str(last['class']).rpartition('.')[2] or 'an actor'} pid {last['pid']}"
    if last["state"] != DEAD:
        state = "" if last["state"] == "ALIVE" else f", and is {last['state']}"
        return f"{who} has the name {name!r} in namespace {last['namespace']!r}{state}"
    ago = failed - float(last["ended"] or 0)
    when = f", and ended {ago:.1f} s before" if last["ended"] and ago > 0 else ", and has ended"
    gone = ALL_GONE in str(last["why"])
    why = _UNKEPT if gone else str(last["why"]).rstrip(".")
    return f"{who} had the name {name!r}{when}{f': {why}' if why else ''}"


def unkept(name: str) -> str:
    """Why an actor ended to which nothing referred any more, in Ray's words; one without a name has other handles.

    >>> unkept("")
    'no handle was left that keeps it; it is not detached'
    """
    return _UNKEPT if name else f"{UNKEPT}; it is not detached"


__all__ = ["ALL_GONE", "said", "unkept", "wanted"]
