"""Crashes of one process: a snapshot of each, a stop at it if that is wished, and the hub's word of it."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import FrameType
from typing import Any

from . import ports, reserve, workdirs
from .identity import DRIVER, identify, task_called
from .who import Identity
from .words import say

JOIN_SECONDS = 0.5  # the most that the first crash of a new process waits for the way to the hub

Document = dict[str, Any]


class Crashes:
    """What the agent does about exceptions that leave the program's code."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._untold: list[Document] = []
        self.any = False
        self.waited: list[str] = []  # tasks whose results were asked for where this process was told of a death
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self.joined = threading.Event()  # there was a connection, at least once

    def __len__(self) -> int:
        """Those that the hub has not been told of."""
        return len(self._untold)

    def happened(self, error: BaseException, kind: str) -> None:
        """Keeps a snapshot of it, and stops there if that is wished."""
        settings = self._agent.settings
        if settings.post_mortem == "off":  # the cluster watches; this job does not want it
            return
        self.any = True
        with reserve.lent() as free:  # the program may have none left: that may be the crash
            from . import snapshot

            first = snapshot.root_of(error) is None
            document = taken(error, kind, free, identify())
            _store(document)
        self.waited += document["waited"]
        if first:
            snapshot.tag(error, document["id"])
        frame = snapshot.deepest_user_frame(error)
        once = first and document["attempt"] == 0  # who looked at the first try need not look at the others
        if settings.post_mortem == "pause" and once and frame is not None:
            self._pause(error, frame, document)
        else:
            self._tell_now(document)

    def tell(self, count: int) -> None:
        """The oldest ones, so many at most. Raises OSError when the way to the hub is gone."""
        with self._telling:
            while count > 0 and self._untold and (connection := self._agent.connection) is not None:
                connection.send({"type": "crash", "document": self._untold[0]})
                self._untold.pop(0)
                count -= 1

    def _pause(self, error: BaseException, frame: FrameType, document: Document) -> None:
        """The stop is told before its snapshot: who sees that first would look at it as at something dead."""
        listed: list[Document] = []

        def queue() -> None:
            self._add(document)
            listed.append(document)

        timeout = self._agent.settings.stop_timeout or None
        traceback = error.__traceback__
        self._agent.stops.park(frame, "exception", exception=error, traceback=traceback, timeout=timeout, listed=queue)
        if not listed:  # it could not stop here
            self._tell_now(document)

    def _tell_now(self, document: Document) -> None:
        """By this very thread if it can: once the driver has seen the exception, the job may end, and this process with
        it. On a node where nobody else lives, nobody could then send it any more.
        """
        self._add(document)
        self._agent.wake()
        if not self.joined.is_set():  # a process of this moment, whose first task fails
            self.joined.wait(JOIN_SECONDS)
            self.joined.set()  # nobody waits again
        with suppress(OSError):  # then the reporting thread does, when there is a connection again
            self.tell(len(self._untold))

    def _add(self, document: Document) -> None:
        with self._lock:
            self._untold.append(document)


def taken(error: BaseException, kind: str, lent_now: int, me: Identity) -> Document:
    """The snapshot, with what may be known of the error beside it. `lent_now`: descriptors that the program lacks."""
    from . import snapshot
    from .hooks import task_facts

    document = snapshot.take(error, me, kind, **task_facts())
    if not document["light"]:
        try:
            document |= _copies(error, kind)
        except Exception as problem:  # noqa: BLE001 - keeps the crash, though a class of the program's fails at a look
            say(f"which versions crash {document['id']} may be about could not be found out: {problem!r}")
    wanted = [each for _, each in snapshot.chain_of(error) if ports.is_wanted_twice(each)]
    if wanted and not document["light"]:
        with suppress(OSError):
            document["ports"] = ports.holders(wanted)
    with suppress(OSError):  # a folder that is gone
        if found := workdirs.of_errors(each for _, each in snapshot.chain_of(error)):
            document["relative"] = found
    with suppress(OSError):  # a system without /proc
        told = any(reserve.is_exhausted(each) for _, each in snapshot.chain_of(error))
        if told or reserve.is_nearly_exhausted(lent_now):
            document["descriptors"] = reserve.what_is_open(lent_now) | {"kept": _kept_open(error)}
    return document


def _kept_open(error: BaseException) -> list[str]:
    """Where the variables of what failed lead to what is open."""
    from . import open_objects
    from .lineage import chain_of, places_of

    frames = (frame for _, each in chain_of(error) for frame, _ in places_of(each.__traceback__))
    try:
        return open_objects.said(frames)
    except Exception as problem:  # noqa: BLE001 - keeps the crash, whatever the program's objects do at a look
        say(f"what is open could not be found in the variables: {problem!r}")
        return []


def _copies(error: BaseException, kind: str) -> Document:
    """What this process has of the modules and packages that the error may be about, for the hub to ask the others."""
    from . import editions, packages
    from .arrivals import arrival_of
    from .lineage import chain_of, places_of
    from .parcels import classes_in

    arrival = arrival_of(error)
    known: Document = {}
    if kind != DRIVER:
        chain = chain_of(error)
        known = editions.of_error(frame for _, each in chain for frame, _ in places_of(each.__traceback__))
        known |= editions.of_modules(name for name in arrival.modules if name not in known)
    found = {"modules": known, "packages": packages.of_modules(arrival.modules), "unpickled": arrival.unpickled}
    if arrival.unpickled:
        found |= {"objects": classes_in(error), "arriving": task_called() if kind != DRIVER else ""}
    return {name: each for name, each in found.items() if each}


def _store(document: Document) -> None:
    """To this node's folder at once; to the hub it goes, too, even where that cannot be written to."""
    from . import snapshot
    from .hooks import crash_folder

    try:
        snapshot.store(document, crash_folder())
    except OSError as error:
        say(f"crash {document['id']} could not be written to a file: {error!r}")
