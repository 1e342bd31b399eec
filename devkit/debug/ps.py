"""`devkit ps`: what is stopped where, which breakpoints are armed, and what has ended."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress

from devkit import console
from devkit.debug import object_stores
from devkit.debug.object_stores import Stores
from devkit.debug.protocols import Document, Hub
from devkit.debug.ps_view import page
from devkit.errors import DevkitError, UnreachableError, UsageError, describe

Connect = Callable[[], AbstractContextManager[Hub]]

PROMISED = ("stops", "breakpoints", "crashes", "gone", "workers")
STORE_SECONDS = 4.0  # between two looks at the object stores
REDRAWS = 2  # a second: the ages move on by themselves
SOON, LATER = 0.4, 1.5  # seconds until --wait looks again: for a job in a cluster that is there, for a cluster


def main(*, address: str | None = None, json: bool = False, watch: bool = False, wait: bool = False) -> int:
    """Show the stops once, or again at each change until Ctrl-C."""
    from devkit.debug.client import connect

    if wait:
        if not (watch and json):
            raise UsageError("--wait only works with --watch --json", hint="devkit ps --watch --wait --json")
        threading.Thread(target=_end_with_the_reader, name="devkit-reader", daemon=True).start()
        for document in patient_news(lambda: connect(address), is_read):
            console.emit(document)
        return 0
    with connect(address) as hub:
        return run_watch(hub, json=json, connect=lambda: connect(address)) if watch else run(hub, json=json)


def run(hub: Hub, *, json: bool = False) -> int:
    document = record(hub.call("ps"))
    if json:
        console.emit(document)
        return 0
    result = console.result()
    result.print(page(document, time.time(), width=_width(result.width, result.is_terminal)), soft_wrap=True)
    return 0


def run_watch(hub: Hub, *, json: bool = False, connect: Connect | None = None) -> int:
    """News until the cluster ends or the user has seen enough. By `connect`: what the object stores have to say."""
    if json:
        return _watch_json(hub.watch())
    result = console.result()
    if console.is_live(result):
        return _watch_live(hub.watch(), StoreWatch(connect))
    for document in hub.watch():
        result.print(page(record(document), time.time(), width=None), soft_wrap=True)
    return _ended()


def record(document: Document) -> Document:
    """The document of `--json`: every promised field, whatever an older hub left out."""
    return {**{name: 0 if name == "crashes" else [] for name in PROMISED}, **document}


def _watch_json(news: Iterator[Document]) -> int:
    for document in news:
        console.emit(record(document))
    return _ended()


def patient_news(
    connect: Callable[[], AbstractContextManager[Hub]], goes_on: Callable[[float], bool]
) -> Iterator[Document]:
    """What `ps` shows, at each change; where nothing can be shown, why, once. A later job or cluster is found, too.

    `goes_on` waits for so many seconds, and says whether there is anybody left to tell.
    """
    said, seconds = None, SOON
    while True:
        try:
            with connect() as hub:
                for document in hub.watch():
                    said, seconds = None, SOON
                    yield record(document)
        except DevkitError as error:
            seconds = LATER if said and isinstance(error, UnreachableError) else SOON
            problem = describe(error)
            if problem != said:
                yield problem.to_json()
            said = problem
        if not goes_on(seconds):
            return


def is_read(seconds: float) -> bool:
    """Waits, but no longer than until the reader of our stdout is gone: an editor that was killed says no goodbye."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLERR | select.POLLHUP)
    return not poll.poll(seconds * 1000)


def _end_with_the_reader() -> None:
    """While the hub has no news, nothing is written that could fail."""
    while is_read(3600.0):
        pass
    os._exit(0)


class StoreWatch:
    """Looks at the object stores now and then, for the foot of the page."""

    def __init__(self, connect: Connect | None) -> None:
        self.lines: tuple[str, ...] = ()
        if connect is not None:
            threading.Thread(target=self._run, args=(connect,), name="devkit-stores", daemon=True).start()

    def _run(self, connect: Connect) -> None:
        with suppress(DevkitError), connect() as hub:  # an older hub does not tell, one that is gone neither
            before = Stores.of(hub.call("stores"))
            while True:
                time.sleep(STORE_SECONDS)
                now = Stores.of(hub.call("stores"))
                self.lines, before = tuple(object_stores.lines(before, now)), now


def _watch_live(news: Iterator[Document], stores: StoreWatch) -> int:
    from rich.live import Live
    from rich.text import Text

    result = console.result()
    newest: list[Document] = []

    def draw() -> console.Plain:
        if not newest:
            return console.Plain(Text("waiting for the hub", style="dim"))
        return console.Plain(page(newest[0], time.time(), width=result.width, foot=stores.lines))

    with (
        suppress(KeyboardInterrupt),  # that is how one leaves it
        Live(console=result, get_renderable=draw, refresh_per_second=REDRAWS, redirect_stdout=False) as live,
    ):
        for document in news:
            newest[:] = [record(document)]
            live.refresh()
        return _ended()
    return 0


def _ended() -> int:
    raise DevkitError("the hub is gone", hint="check with devkit ps whether the cluster is still there")


def _width(columns: int, is_terminal: bool) -> int | None:
    """A file or a pipe has no width: nothing in it is cut."""
    return columns if is_terminal else None
