"""What a snapshot says beside its frames and values, a line for each clue. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from devkit.debug.inworker import workdirs
from devkit.debug.inworker.identity import DRIVER, WORKER
from devkit.debug.inworker.redaction import scrub
from devkit.debug.inworker.reserve import OURS
from devkit.debug.naming import count, short_places


def clues_of(document: Mapping[str, Any]) -> Iterator[str]:
    """What else had failed; what could not be pickled; another copy or version; who has the port; what was open."""
    yield from map(str, document.get("failed") or ())
    yield from map(str, document.get("waiting") or ())
    yield from (str(document[name]) for name in ("anew", "again") if document.get(name))
    if document.get("way"):
        yield f"what cannot be pickled: {document['way']}"
    if document.get("remade"):
        yield str(document["remade"])
    if document.get("none"):
        yield f"{document['none']} is None"
    for name in ("misfits", "loops"):
        yield from map(str, document.get(name) or ())
    if document.get("left"):
        yield str(document["left"])
    if earlier := document.get("ran"):
        yield f"this process has run other tasks before, and keeps whatever they changed in it: {', '.join(earlier)}"
    if classes := document.get("objects"):
        call = str(document.get("arriving") or "")
        what = f"the argument of {call} that could not be unpickled" if call else "what could not be unpickled"
        names = list(map(str, classes))
        objects = f"an object of {names[0]}" if len(names) == 1 else f"objects of {', '.join(names)}, in this order"
        yield f"{what} contains {objects}"
    if document.get("named"):
        yield str(document["named"])
    if document.get("masked"):
        yield short_places(str(document["masked"]))
    yield from (str(document[name]) for name in ("remote", "hidden", "late", "resized") if document.get(name))
    for name in ("cancelled", "unasked", "dropped", "changed", "earlier", "orphans"):
        yield from map(str, document.get(name) or ())
    if document.get("relative"):
        yield workdirs.said(document["relative"])
    for each in document.get("differs") or ():
        yield f"another copy of {each['module']} than the driver's: here {each['here']}, there {each['there']}"
    yield from map(_version_clue, document.get("other_versions") or ())
    yield from map(_port_clue, document.get("ports") or ())
    if found := document.get("descriptors"):
        yield _open(found)
        yield from map(str, found.get("kept") or ())
        yield from (f"open {number} times: {name}" for name, number in found["often"].items())
        yield from (f"{number} of these files are in {name}" for name, number in found.get("folders", {}).items())


def _open(found: Mapping[str, Any]) -> str:
    """What a process has open, counted when its crash was taken: `with` blocks that the error left are closed by then.

    >>> _open({"open": 30, "limit": 64, "kinds": {"Unix socket": 22, "devkit's": 8}})
    'open once any `with` block had closed its own: 30 of 64 file descriptors: 22 Unix sockets, 8 of devkit'
    >>> _open({"open": 64, "limit": 64, "kinds": {"pipe": 64}})
    'open: 64 of 64 file descriptors: 64 pipes'
    """
    own = (f"{number} of devkit" if kind == OURS else count(number, kind) for kind, number in found["kinds"].items())
    later = " once any `with` block had closed its own" if found["open"] < found["limit"] else ""
    return f"open{later}: {found['open']} of {found['limit']} file descriptors: {', '.join(own)}"


def _port_clue(found: Mapping[str, Any]) -> str:
    """
    >>> _port_clue({"port": 29500, "pid": 7, "command": "ray::Rank.join"}), _port_clue({"port": 80, "pid": 0})
    ('port 29500 is in use by pid 7: ray::Rank.join', "port 80 is in use by another user's process")
    """
    who = f"pid {found['pid']}: {scrub(str(found['command']))}" if found["pid"] else "another user's process"
    who += ", which this process has started, and which has inherited its socket" if found.get("inherited") else ""
    return f"port {found['port']} is in use by {who}"


def _version_clue(found: Mapping[str, Any]) -> str:
    """
    >>> numpy = {"package": "numpy", "here": "1.26.4", "there": "2.1.0", "whose": "driver"}
    >>> _version_clue(numpy), _version_clue({**numpy, "whose": "Reader"})
    ('this process has numpy 1.26.4, the driver 2.1.0', 'this process has numpy 1.26.4, Reader 2.1.0')
    >>> _version_clue({**numpy, "here": None, "whose": "worker"})
    'a worker has numpy 2.1.0, this process has none'
    """
    other = {DRIVER: "the driver", WORKER: "a worker"}.get(str(found["whose"]), str(found["whose"]))
    if found["here"] is None:
        return f"{other} has {found['package']} {found['there']}, this process has none"
    return f"this process has {found['package']} {found['here']}, {other} {found['there']}"
