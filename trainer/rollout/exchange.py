"""Requests and answers between a rank and the process of its engine, one by one, while the engine computes others.

Calls of Ray reach an engine's actor one at a time, so one call stands for all of a step's conversations
(`EngineServer.converse`). What is said in them goes over a socket of Unix in the engine's folder, for rank and engine
are on one node: a JSON message each, behind its length. Standard library only, beside the records of `server`.

    rank    {"session": NAME}   {"ask": [row, token ids, most, seed]}   {"drop": row}
    engine  {"row": row, "ids": [...], "logprobs": [...]}
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass

from trainer.agent.inside import receive, send
from trainer.errors import EngineError

MEET_S = 60.0  # until the rank is there, whose call this is: it connects as soon as it has called


@dataclass(frozen=True)
class Asked:
    """A turn that is asked for. A row has one at a time."""

    row: int
    ids: Sequence[int]  # all that is read
    most: int  # tokens that it may have
    seed: int  # of its draws, where an engine takes one


@dataclass(frozen=True)
class Dropped:
    """Nobody waits for this row any more."""

    row: int


Heard = Callable[[Asked | Dropped | None], None]  # None: the rank has hung up


@contextmanager
def _place(folder: str, number: int) -> Iterator[str]:
    """Where replica `number` of the engine with this folder listens: a name that is short however long the folder's is,
    for one of a socket has a hundred characters."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/talk-{number}"
    finally:
        os.close(handle)


class Door:
    """Where an engine's process is reached by its rank, as long as it lives."""

    def __init__(self, folder: str, number: int = 0) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        with _place(folder, number) as place:
            self._listener.bind(place)
        self._listener.listen()
        self._listener.settimeout(MEET_S)

    @contextmanager
    def opened(self, session: str) -> Iterator[Line]:
        """The line of the rank that has called for this session. Raises EngineError if it does not come."""
        try:
            line = self._met(session)
        except OSError as error:
            raise EngineError(
                f"the rank that called for a conversation did not come within {MEET_S:g} s: {error}",
                hint="rank and engine meet at a socket in the node's folder for temporary files",
            ) from error
        with line:
            try:
                yield Line(line)
            finally:
                with suppress(OSError):  # the rank has gone
                    line.shutdown(socket.SHUT_RDWR)  # `close` alone waits for the thread that listens

    def close(self) -> None:
        """Nobody is met any more."""
        self._listener.close()

    def _met(self, session: str) -> socket.socket:
        while True:
            line, _ = self._listener.accept()
            line.settimeout(MEET_S)
            with suppress(EOFError, ConnectionError):  # of a session that came to nothing
                if receive(line).get("session") == session:
                    line.settimeout(None)
                    return line
            line.close()


class Line:
    """The engine's end of it."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def listen(self, hear: Heard) -> None:
        """From now on, in a thread: so that a rank which asks never waits for an engine which answers."""
        threading.Thread(target=self._listen, args=(hear,), name="rank", daemon=True).start()

    def _listen(self, hear: Heard) -> None:
        with suppress(EOFError, OSError):
            while True:
                said = receive(self._line)
                hear(Asked(*said["ask"]) if "ask" in said else Dropped(said["drop"]))
        hear(None)

    def answer(self, row: int, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        with suppress(ConnectionError):  # the rank has hung up: `listen` hears it
            send(self._line, {"row": row, "ids": list(ids), "logprobs": list(logprobs)})


def meet(folder: str, number: int, session: str) -> socket.socket:
    """The rank's end of a line to replica `number`. Raises OSError where nobody listens any more."""
    line = socket.socket(socket.AF_UNIX)
    try:
        with _place(folder, number) as place:
            line.connect(place)
        send(line, {"session": session})
    except OSError:
        line.close()
        raise
    return line


def ask(line: socket.socket, asked: Asked) -> None:
    """Raises ConnectionError where the engine has gone."""
    send(line, {"ask": astuple(asked)})


def drop(line: socket.socket, row: int) -> None:
    """Raises ConnectionError where the engine has gone."""
    send(line, {"drop": row})


def answer_on(line: socket.socket) -> tuple[int, list[int], list[float]]:
    """The next one: row, token ids, log-probs. Raises EOFError, OSError where the engine has gone."""
    said = receive(line)
    return said["row"], said["ids"], said["logprobs"]
