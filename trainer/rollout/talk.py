"""Conversations with an engine in processes of its own, as the rank that leads it has them: `interfaces.Talk`."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from trainer.interfaces import Request
from trainer.rollout import exchange
from trainer.rollout.exchange import Asked
from trainer.rollout.handle import LOOK_S, EngineDied, EngineHandle
from trainer.rollout.sampling import seed_of
from trainer.rollout.server import Answer, Draw

MESSAGE_S = 60.0  # for an answer that has begun to come to its end


class Talk:
    """Begins with the first request. All of a row's turns go to the same replica, which remembers what it has read."""

    gathers = False  # each request is computed beside those that are under way

    def __init__(
        self, handle: EngineHandle | None, draw: Draw, rows: int, *, died: Callable[[], None] = lambda: None
    ) -> None:
        """`handle` None: the engine is dead already. `rows`: of all prompts. `died` is called when it dies."""
        self.gone = handle is None
        self._handle, self._draw, self._rows, self._died = handle, draw, rows, died
        self._lines: list[socket.socket] = []  # by replica
        self._call: Any = None
        self._open: set[int] = set()
        self._done = 0
        self._heard = 0.0  # monotonic seconds, when it last had nothing to do or said something

    @property
    def lines(self) -> Sequence[socket.socket]:
        """What can be read when there is an answer."""
        return self._lines if self._open else ()

    def ask(self, requests: Sequence[Request]) -> None:
        """Each will have an answer, unless the engine dies and `gone` becomes True. A row is asked once at a time."""
        if self.gone:
            return
        if not self._open:
            self._heard = time.monotonic()
        self._open |= {request.row for request in requests}
        try:
            if not self._lines:
                self._begin()
            for request in requests:
                seed = seed_of(self._draw.seed, *request.sample, request.turn)
                asked = Asked(request.row, request.ids, min(request.most, self._draw.max_new_tokens), seed)
                exchange.ask(self._line_of(request.row), asked)
        except (OSError, EngineDied):
            self._end()

    def drop(self, row: int) -> None:
        """Nobody waits for it any more."""
        self._open.discard(row)
        if self.gone:
            return
        try:
            exchange.drop(self._line_of(row), row)
        except OSError:
            self._end()

    def patience(self) -> float | None:
        """Seconds until `take` must look at the engine, though it has said nothing; None: it need not."""
        if not self._open or self._handle is None:
            return None
        left = max(0.0, self._heard + self._handle.timeout_s - time.monotonic())
        return min(LOOK_S, left) if self._handle.others else left

    def take(self) -> list[Answer]:
        """What is there. Raises DeadlineError, or the TrainerError that the engine raised."""
        found: list[Answer] = []
        try:
            while self._open and (ready := wait(self._lines, 0)):
                for line in ready:
                    row, ids, logprobs = exchange.answer_on(line)  # type: ignore[arg-type]
                    if row in self._open:  # else it was dropped
                        self._open.discard(row)
                        found.append(Answer(row, ids, logprobs))
            if not found and self._open:
                self._look()
        except (EOFError, OSError, EngineDied):
            self._end()
        if found:
            self._heard, self._done = time.monotonic(), self._done + len(found)
        return found

    def close(self) -> None:
        """The engine forgets what is still under way. Raises what it raised."""
        for line in self._lines:
            line.close()
        self._lines, call, self._call = [], self._call, None
        if call is not None and self._handle is not None:
            try:
                self._handle.wait(call, self._doing)
            except EngineDied:
                self._lost()

    # -- the engine's life

    def _begin(self) -> None:
        assert self._handle is not None and self._handle.info is not None
        session = uuid.uuid4().hex
        self._call = self._handle.ask("converse", self._draw, session)
        for number in range(self._handle.spec.replicas):
            self._lines.append(exchange.meet(self._handle.info.reports, number, session))
            self._lines[-1].settimeout(MESSAGE_S)

    def _line_of(self, row: int) -> socket.socket:
        """Neighbours stay together: the samples of a prompt share what is remembered of it."""
        return self._lines[row * len(self._lines) // self._rows]

    def _look(self) -> None:
        """Raises EngineDied, DeadlineError."""
        assert self._handle is not None
        self._handle.require_others(self._doing)
        if time.monotonic() - self._heard >= self._handle.timeout_s:
            self._call = None  # `close` would wait for it as long again
            raise self._handle.late(self._doing)

    @property
    def _doing(self) -> str:
        return f"converse, {self._done} turns done, {len(self._open)} open"

    def _end(self) -> None:
        """It has hung up: raises why, unless it died."""
        self.close()
        self._lost()

    def _lost(self) -> None:
        if not self.gone:
            self.gone = True
            self._open.clear()
            self._died()
