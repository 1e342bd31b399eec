"""Where environments live, as the loop sees them: in this process, in threads of it, or each in a process of its own.

`ask` does not wait; `answered` says who has answered; `take` gives the answer, or raises Broken.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, Protocol

from trainer.agent import contract
from trainer.agent.contract import Observed, Unfit
from trainer.agent.inside import receive, send
from trainer.agent.source import WAITING, NoEnvironment, Source
from trainer.errors import ConfigError, EpisodeError, RetrieverError

START_S = 60.0  # for a user's file to load
MESSAGE_S = 30.0  # for an answer that has begun to come to its end
_PROGRAM = "from trainer.agent.inside import main; main()"


class Broken(Exception):
    """An environment that gave no answer of use; `kind` as in `episode.Failure`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Home(Protocol):
    """One environment."""

    def ask(self, what: str, *arguments: Any) -> None:
        """`what` is "reset", with a seed and perhaps options, or "step", with an action: a function of `contract`."""
        ...

    def take(self) -> Observed:
        """The answer, once `answered` has named this one. Raises Broken."""
        ...

    def end(self, *, kill: bool = False) -> None:
        """Closes it; with `kill` whatever it does."""
        ...


class Inline:
    """In this process: at once, without a deadline, and in reach of a debugger."""

    def __init__(self, source: Source, kind: Any) -> None:
        self._source, self._kind = source, kind
        self._environment: Any = None
        self._answer: Observed | Broken | None = None

    def ask(self, what: str, *arguments: Any) -> None:
        """Computes the answer, too."""
        try:
            if self._environment is None:
                self._environment = self._kind(**self._source.kwargs)
            self._answer = getattr(contract, what)(self._environment, *arguments)
        except Unfit as error:
            self._answer = Broken("wrong", str(error))
        except RetrieverError as error:
            self._answer = Broken("retriever", f"{error.message}; asked from {node()}")
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; it is reported as what it is
            self._answer = Broken("raised", f"{what} raised {contract.told(error, self._source.files)}")

    def take(self) -> Observed:
        answer, self._answer = self._answer, None
        assert answer is not None, "ask comes first"
        if isinstance(answer, Broken):
            raise answer
        return answer

    def end(self, *, kill: bool = False) -> None:
        if self._environment is not None:
            with suppress(Exception):  # it has done its work; what its end raises is nobody's loss
                self._environment.close()


class Beside:
    """In this process, each call in a thread: of an environment that waits for others and computes nothing.

    A call that takes too long is left to itself: its answer is lost.
    """

    def __init__(self, source: Source, kind: Any) -> None:
        self._inline = Inline(source, kind)
        self._hears, self._tells = socket.socketpair()

    def fileno(self) -> int:
        return self._hears.fileno()

    def ask(self, what: str, *arguments: Any) -> None:
        threading.Thread(target=self._answer, args=(what, *arguments), name="environment", daemon=True).start()

    def _answer(self, what: str, *arguments: Any) -> None:
        self._inline.ask(what, *arguments)
        with suppress(OSError):  # nobody waits any more
            self._tells.send(b".")

    def take(self) -> Observed:
        self._hears.recv(1)
        return self._inline.take()

    def end(self, *, kill: bool = False) -> None:
        self._hears.close()
        self._tells.close()
        if not kill:
            self._inline.end()


class Apart:
    """In a process of its own."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        line.settimeout(MESSAGE_S)
        self._pid = int(receive(line)["pid"])

    def fileno(self) -> int:
        return self._line.fileno()

    def ask(self, what: str, *arguments: Any) -> None:
        with suppress(OSError):  # it has ended: `take` says so
            send(self._line, [what, *arguments])

    def take(self) -> Observed:
        try:
            answer = receive(self._line)
        except (EOFError, ConnectionError):
            self._pid = 0
            raise Broken("died", "its process ended: it was killed, crashed, or left by itself") from None
        except (OSError, ValueError) as error:
            raise Broken("wrong", f"its process gave no answer that can be read: {error}") from error
        if "failure" in answer:
            raise Broken(*answer["failure"])
        return Observed(**answer["observed"])

    def end(self, *, kill: bool = False) -> None:
        if kill and self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._line.close()


def answered(homes: Sequence[Home], timeout_s: float | None, lines: Sequence[Any] = ()) -> set[int]:
    """Positions of those that have answered; waits until one has, or one of `lines` can be read, or for `timeout_s`."""
    here = {i for i, home in enumerate(homes) if isinstance(home, Inline)}
    apart = {home: i for i, home in enumerate(homes) if not isinstance(home, Inline)}
    others: list[Any] = [*apart, *lines]
    found = set(wait(others, 0 if here else timeout_s)) if others else set[Any]()
    return here | {i for home, i in apart.items() if home in found}


def node() -> str:
    """What this node is called where many take part: its name, and its address in a Ray cluster."""
    name, ray = socket.gethostname(), sys.modules.get("ray")
    return f"{name} ({ray.util.get_node_ip_address()})" if ray is not None and ray.is_initialized() else name


class Houses:
    """Makes homes for the environments of `source`. Raises ConfigError where its class cannot be loaded."""

    def __init__(self, source: Source, *, isolate: bool) -> None:
        self.source = source
        self._in_threads = isolate and source.env in WAITING
        self._kind: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        if source.built_in or not isolate:
            try:
                self._kind = source.load()
            except NoEnvironment as error:
                raise ConfigError(str(error), hint=error.hint) from error
        else:
            self._start()

    def home(self) -> Home:
        """For one environment, which is made at its first call. Raises EpisodeError."""
        if self._kind is not None:
            return (Beside if self._in_threads else Inline)(self.source, self._kind)
        try:
            return self._forked()
        except (OSError, EOFError):  # somebody has ended the process that forks
            self.close()
            self._start()
        try:
            return self._forked()
        except (OSError, EOFError) as error:
            raise EpisodeError(
                f"no process for an environment of {self.source.env}: {error or 'the one that forks has ended'}",
                hint="see what it wrote to the worker's log; memory and the limit of processes are the usual causes",
            ) from error

    def _forked(self) -> Apart:
        assert self._line is not None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._line, [b"."], [theirs.fileno()])
            return Apart(ours)
        except BaseException:
            ours.close()
            raise

    def _start(self) -> None:
        self._line, theirs = socket.socketpair()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # Ray and pytest add to it while running
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the parent; this one ends with its line
            )
        self._line.settimeout(START_S)
        try:
            send(self._line, vars(self.source))
            said = receive(self._line)
        except (EOFError, OSError) as error:
            self.close()
            raise ConfigError(
                f"the process that loads {self.source.shown} ended, or took over {START_S:g} s",
                hint=f"it must load on its own: python {self.source.shown}",
            ) from error
        if "error" in said:
            self.close()
            raise ConfigError(said["error"], hint=said["hint"])

    def close(self) -> None:
        """Ends the processes of all its environments."""
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._line = self._process = None
