"""Actors that ended with their owner: what they would have answered fails later, and somewhere else."""

from __future__ import annotations

import os
import re
from itertools import groupby
from typing import Any

from .named import ALL_GONE

_OWNERS_END = re.compile(r"owner has died\. Owner Id: (?P<owner>[0-9a-f]+)")
SHOWN = 3  # owners

Document = dict[str, Any]


def owner_in(why: str) -> str:
    """The id of the owner with which an actor ended, in Ray's words on its end; "" of any other end.

    >>> owner_in("The actor is dead because its owner has died. Owner Id: 0ab1 Owner Ip address: 10.0.0.1 Owner w...")
    '0ab1'
    """
    found = _OWNERS_END.search(why)
    return found["owner"] if found else ""


def said(found: list[Document], failed: float) -> list[str]:
    """One line for each owner that took others with it before `failed`, in seconds since the epoch.

    Args:
        found: {"class", "pid", "ended", "owner": {"class", "pid", "why"}} of each; the owner may be unknown. It has
            "killed", {"by", "file", "line", "function"}, where somebody has told of that.

    >>> owner = {"class": "job.Launcher", "pid": 7, "why": "... because all references to the actor were removed."}
    >>> said([{"class": "job.Server", "pid": each, "ended": 10.0, "owner": owner} for each in (8, 9)], 12.5)
    ['2 x Server ended 2.5 s before with their owner, Launcher pid 7, to which nothing referred any more']
    >>> owner["killed"] = {"by": "the driver", "file": "/job/job.py", "line": 3, "function": "main"}
    >>> said([{"class": "job.Server", "pid": 8, "ended": 10.0, "owner": owner}], 12.5)
    ['Server pid 8 ended 2.5 s before with its owner, Launcher pid 7, which the driver killed by ray.kill at \
job.py:3 in main']
    """
    before = [each for each in found if each["ended"] and each["ended"] <= failed]
    lines = []
    for (owner, name), group in groupby(sorted(before, key=_key), key=_key):
        actors = list(group)
        ago = failed - max(each["ended"] for each in actors)
        many = len(actors) > 1
        who = f"{len(actors)} x {name}" if many else f"{name} pid {actors[0]['pid']}"
        whose = "their" if many else "its"
        lines.append(f"{who} ended {ago:.1f} s before with {whose} owner{f', {owner}' if owner else ''}")
    return lines[:SHOWN]


def _key(one: Document) -> tuple[str, str]:
    owner = one.get("owner") or {}
    name = str(one["class"]).rpartition(".")[2] or "an actor"
    if not owner:
        return "", name
    gone = ", to which nothing referred any more" if ALL_GONE in str(owner["why"]) else ""
    if site := owner.get("killed"):
        at = f"{os.path.basename(site['file'])}:{site['line']} in {site['function']}"
        gone = f", which {site['by']} killed by ray.kill at {at}"
    return f"{str(owner['class']).rpartition('.')[2]} pid {owner['pid']}{gone}", name


__all__ = ["owner_in", "said"]
