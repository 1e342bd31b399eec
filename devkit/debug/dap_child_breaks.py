"""Breakpoints in a child session, which arms none: the parent has armed them in the whole job, and a hit stops once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from devkit.debug import dap_wanted
from devkit.debug.dap_board import Board, words
from devkit.debug.dap_cluster import Connected
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_wanted import Wanted
from devkit.debug.protocols import Document

Done = Callable[[list[Document]], None]


class ChildBreaks(Protocol):
    """What a child knows of the parent's breakpoints."""

    def ask(self, command: str, arguments: Mapping[str, Any], done: Done) -> None: ...

    def numbers_of(self, name: str) -> list[int]: ...

    def on_ps(self, ps: Document) -> None: ...

    def close(self) -> None: ...


class SameProcess:
    """The parent's own board, in its own numbers. `tell` sends a `breakpoint` event."""

    def __init__(self, loop: Loop, home: Loop, board: Board, tell: Callable[[Document], None]) -> None:
        self._loop, self._home, self._board, self._tell = loop, home, board, tell
        self._told: dict[int, bool] = {}
        home.post(lambda: board.listeners.append(self._hear))

    def ask(self, command: str, arguments: Mapping[str, Any], done: Done) -> None:
        def answered(documents: list[Document]) -> None:
            self._told |= {each["id"]: each["verified"] for each in documents}
            done(documents)

        self._home.post(
            lambda: self._board.ask(command, arguments, lambda found: self._loop.post(lambda: answered(found)))
        )

    def numbers_of(self, name: str) -> list[int]:
        return self._board.numbers_of(name)

    def on_ps(self, ps: Document) -> None:
        """The board hears it."""

    def close(self) -> None:
        self._home.post(lambda: self._board.listeners.remove(self._hear))

    def _hear(self, document: Document) -> None:
        self._loop.post(lambda: self._changed(document))

    def _changed(self, document: Document) -> None:
        """In how many workers it is armed is told by the parent; each child says only whether it is."""
        if self._told.get(document["id"], document["verified"]) != document["verified"]:
            self._told[document["id"]] = document["verified"]
            self._tell(document)


class OtherProcess:
    """The parent is another process: the hub is asked for breakpoints that read alike."""

    def __init__(self, loop: Loop, cluster: Connected, tell: Callable[[Document], None]) -> None:
        self._loop, self._cluster, self._tell = loop, cluster, tell
        self._numbers: dict[Wanted, int] = {}
        self._told: dict[Wanted, bool] = {}
        self._ids: dict[str, int] = {}  # the hub's -> ours

    def ask(self, command: str, arguments: Mapping[str, Any], done: Done) -> None:
        wanted = dap_wanted.read(command, arguments)
        hub = self._cluster.hub

        def answer(ps: Document) -> None:
            documents = [self._document(each, ps) for each in wanted]
            self._told |= {each: document["verified"] for each, document in zip(wanted, documents, strict=True)}
            done(documents)

        self._loop.background(lambda: hub.call("ps"), answer, lambda error: answer({}))

    def numbers_of(self, name: str) -> list[int]:
        return [self._ids[name]] if name in self._ids else []

    def on_ps(self, ps: Document) -> None:
        for wanted, before in list(self._told.items()):
            document = self._document(wanted, ps)
            if document["verified"] != before:
                self._told[wanted] = document["verified"]
                self._tell(document)

    def close(self) -> None:
        pass

    def _document(self, wanted: Wanted, ps: Document) -> Document:
        number = self._numbers.setdefault(wanted, len(self._numbers) + 1)
        state = next((each for each in ps.get("breakpoints", ()) if each["spec"] == wanted.spec), None)
        if state is not None:
            self._ids[state["id"]] = number
        message = words(state) if state else "the session of the job does not have it"
        document: Document = {"id": number, "verified": bool(state and state.get("armed")), "message": message}
        return document | ({"line": wanted.line} if wanted.line else {})
