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
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, Protocol

from trainer.agent import contract, threads
from trainer.agent.contract import Away, Observed, Unfit
from trainer.agent.inside import receive, send
from trainer.agent.source import CONSTRUCTOR, WAITING, NoEnvironment, Source
from trainer.errors import ConfigError, EpisodeError, RetrieverError

START_S = 60.0  # for a user's file to load, at least
END_S = 10.0  # for a process that has hung up to end
MESSAGE_S = 30.0  # for an answer that has begun to come to its end
_PROGRAM = "from trainer.agent.inside import main; main()"


def load_limit(turn_s: float | None) -> float | None:
    """Seconds for a user's file to load, where one answer of an environment may take `turn_s`. None: no limit.

    >>> load_limit(3.0), load_limit(300.0), load_limit(None)
    (60.0, 300.0, None)
    """
    return None if turn_s is None else max(START_S, turn_s)


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
        doing = CONSTRUCTOR if self._environment is None else what
        try:
            if self._environment is None:
                self._environment = self._kind(**self._source.kwargs)
            doing = what
            self._answer = getattr(contract, what)(self._environment, *arguments)
        except Unfit as error:
            self._answer = Broken("wrong", str(error))
        except Away as error:
            self._answer = Broken(error.kind, str(error))
        except RetrieverError as error:
            self._answer = Broken("retriever", f"{error.message}; asked from {node()}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code; it is reported as what it is
            self._answer = Broken("raised", self._source.raised(doing, error))

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
            raise Broken("died", "its process ended, nobody knows how") from None
        except (OSError, ValueError) as error:
            raise Broken("wrong", f"its process gave no answer that can be read: {error}") from error
        if "ended" in answer:
            self._pid = 0
            raise Broken("died", f"its process {how(answer['ended'])}")
        if "failure" in answer:
            raise Broken(*answer["failure"])
        return Observed(**answer["observed"])

    def end(self, *, kill: bool = False) -> None:
        if kill and self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._line.close()


def how(code: int) -> str:
    """In words, how a process ended whose exit code, or negative signal, is `code`.

    >>> how(3), how(-9), how(-50)
    ('left by itself, with exit code 3', 'was ended by SIGKILL', 'was ended by signal 50')
    """
    if code >= 0:
        return f"left by itself, with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


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
    """Makes homes for the environments of `source`. Raises ConfigError where its class cannot be loaded.

    `missed` says what the user's file has begun that no fork of its process has: then each environment's process loads
    the file by itself, in about `load_s` seconds. Empty: one process has loaded it, and is forked.
    """

    def __init__(self, source: Source, *, isolate: bool, limit_s: float | None = START_S) -> None:
        """`limit_s`: for a user's file to load; None: no limit."""
        self.source, self.isolate, self.missed, self.load_s = source, isolate, "", 0.0
        self._limit_s = limit_s
        self._in_threads = isolate and source.env in WAITING
        self._kind: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._life: socket.socket | None = None  # while it is open, its processes live
        if source.built_in or not isolate:
            try:
                self._kind = source.load()
            except NoEnvironment as error:
                raise ConfigError(str(error), hint=error.hint) from error
        else:
            self._start()

    @property
    def waits_s(self) -> float:
        """Seconds that a first answer may take beyond any other."""
        return START_S if self.missed else 0.0

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
        self._life, ends = socket.socketpair()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # Ray and pytest add to it while running
        began = time.monotonic()
        with theirs, ends:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), str(ends.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), ends.fileno()],
                env={**os.environ, **threads.ONE, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the parent; this one ends with it: `ending.py`
            )
        self._line.settimeout(self._limit_s)
        try:
            send(self._line, vars(self.source))
            said = receive(self._line)
        except (EOFError, OSError) as error:
            raise self._not_loaded(isinstance(error, TimeoutError)) from error
        if "error" in said:
            self.close()
            raise ConfigError(said["error"], hint=said["hint"])
        self._line.settimeout(START_S)
        self.missed, self.load_s = said["missed"], time.monotonic() - began

    def _not_loaded(self, is_late: bool) -> ConfigError:
        """What came of the process that was to load the file; it is ended."""
        assert self._process is not None
        shown, limit_s = self.source.shown, self._limit_s
        if is_late:
            said = f"loading {shown} took over {limit_s:g} s"
            hint = f"raise agent.turn_timeout above that, or see where it stands: python {shown}"
        else:
            with suppress(subprocess.TimeoutExpired):  # it has closed its line, and lives
                self._process.wait(END_S)
            code, hint = self._process.returncode, f"it must load on its own: python {shown}"
            said = f"the process that loads {shown} {'hung up' if code is None else how(code)}"
        self.close()
        return ConfigError(said, hint=hint)

    def close(self) -> None:
        """Ends the processes of all its environments."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for line in (self._line, self._life):
            if line is not None:
                line.close()
        self._line = self._life = self._process = None


def again_and_again(houses: Houses) -> str:
    """What `houses.missed` costs, in a line."""
    return (
        f"each environment loads {houses.source.shown} by itself ({houses.load_s:.1f} s), since loading it leaves "
        f"{houses.missed} running, which a fork would not have; begun in the constructor, it would cost less"
    )
