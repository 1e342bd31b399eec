"""What runs where a user's environments live: a process that loads their file once, and forks one for each of them.

    python -c "from trainer.agent.inside import main; main()" FD LIFE

Messages are JSON behind their length. Over FD come first the source, then one descriptor per environment; over that
one its calls. When the other end of LIFE is closed, all of this is killed (`ending.py`). With a process each, one may
hang, crash or leave without the others. Where the file has begun threads, which no fork has, each of those processes
loads it by itself. Standard library only.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from trainer.agent import contract, ending, threads
from trainer.agent.source import CONSTRUCTOR, NoEnvironment, Source

CLOSE_S = 5  # that an environment may take to close
MOST_BYTES = 2**26  # of a message
_LENGTH = struct.Struct(">I")
_ALONE = "from trainer.agent.inside import alone; alone()"
Begin = Callable[[socket.socket, Iterable[socket.socket]], int]  # an environment on its line; others': its pid


def send(line: socket.socket, message: Any) -> None:
    data = json.dumps(message).encode()
    line.sendall(_LENGTH.pack(len(data)) + data)


def receive(line: socket.socket) -> Any:
    """The next message. Raises EOFError where the other side has gone, ValueError for what is none."""
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    if length > MOST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return json.loads(_exactly(line, length))


def _exactly(line: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = line.recv(min(count, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def main() -> None:
    """The process that makes them. It ends, with all that came of it, when its parent does."""
    os.dup2(2, 1)  # what an environment prints is talk
    faulthandler.enable()
    line, life = map(_line, map(int, sys.argv[1:]))
    ending.group_with(life)
    given = receive(line)
    source = Source(**given)
    try:
        kind = source.load()
    except NoEnvironment as error:
        send(line, {"error": str(error), "hint": error.hint})
        return
    missed = threads.missed()
    send(line, {"missed": missed})
    _serve(line, _spawning(given, life) if missed else _forking(kind, source))


def _serve(line: socket.socket, begin: Begin) -> None:
    """Begins an environment for each descriptor, and says on its line how its process has ended, where it has."""
    alive = dict[int, socket.socket]()
    died, tells = socket.socketpair()
    tells.setblocking(False)
    signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # not ignored: the kernel would bury them unasked
    while True:
        ready = wait([line, died])
        if died in ready:
            died.recv(2**12)
            _bury(alive)
        if line in ready:
            _, descriptors, _, _ = socket.recv_fds(line, 1, 1)
            if not descriptors:
                os.killpg(0, signal.SIGKILL)  # this session's: also those that hang
            theirs = _line(descriptors[0])
            pid = begin(theirs, (line, died, tells, *alive.values()))
            alive[pid] = theirs
            with suppress(OSError):  # its caller has gone
                send(theirs, {"pid": pid})


def _bury(alive: dict[int, socket.socket]) -> None:
    for pid in list(alive):
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # somebody of the file's has buried it
            alive.pop(pid).close()
            continue
        if found:
            data = json.dumps({"ended": os.waitstatus_to_exitcode(status)}).encode()
            with alive.pop(pid) as line, suppress(OSError):  # its caller has gone, or does not listen
                line.send(_LENGTH.pack(len(data)) + data, socket.MSG_DONTWAIT)


def _forking(kind: Any, source: Source) -> Begin:
    def begin(line: socket.socket, others: Iterable[socket.socket]) -> int:
        parent = os.getpid()
        if pid := os.fork():
            return pid
        ending.with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in others:  # while this one held another's line, nobody would see that the other has ended
            other.close()
        _live(line, kind, source)
        raise AssertionError("it does not return")

    return begin


def _spawning(given: dict[str, Any], life: socket.socket) -> Begin:
    text = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this process
    text.write(json.dumps(given).encode())
    text.flush()

    def begin(line: socket.socket, others: Iterable[socket.socket]) -> int:
        passed = (line.fileno(), text.fileno(), life.fileno())
        for descriptor in passed:
            os.set_inheritable(descriptor, True)
        try:
            command = [sys.executable, "-P", "-c", _ALONE, *map(str, passed), str(os.getpid())]
            return os.posix_spawn(sys.executable, command, os.environ)
        finally:
            for descriptor in passed:
                os.set_inheritable(descriptor, False)

    return begin


def alone() -> None:
    """A process that loads the file for one environment."""
    faulthandler.enable()
    descriptor, text, life, parent = map(int, sys.argv[1:])
    ending.with_parent(parent)
    line = _line(descriptor)
    os.set_inheritable(life, False)  # kept open: it ends the group, also where the one that makes them has ended
    source = Source(**json.loads(os.pread(text, os.fstat(text).st_size, 0)))
    os.close(text)
    try:
        kind = source.load()
    except NoEnvironment as error:
        kind = _raising(error)
    _live(line, kind, source)


def _raising(error: Exception) -> Any:
    def kind(**kwargs: Any) -> Any:
        raise error

    return kind


def _line(descriptor: int) -> socket.socket:
    """Not for what an environment starts: while that lived, nobody would see that the environment has ended."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def _live(line: socket.socket, kind: Any, source: Source) -> None:
    """One environment, from its first call until its caller hangs up. Does not return."""
    environment, pid = None, os.getpid()
    try:
        while True:
            what, *arguments = receive(line)
            doing = CONSTRUCTOR if environment is None else what
            try:
                environment = kind(**source.kwargs) if environment is None else environment
                doing = what
                answer: dict[str, Any] = {"observed": vars(getattr(contract, what)(environment, *arguments))}
            except contract.Unfit as error:
                answer = {"failure": ["wrong", str(error)]}
            except contract.Away as error:
                answer = {"failure": [error.kind, str(error)]}
            except NoEnvironment as error:
                answer = {"failure": ["raised", str(error)]}
            except BaseException as error:  # noqa: BLE001 - also `sys.exit`: it is reported as what it is
                answer = {"failure": ["raised", source.raised(doing, error)]}
            if os.getpid() != pid:  # a child that the call has forked has come back from it, too: one answer is enough
                return
            send(line, answer)
    except (EOFError, OSError):
        signal.alarm(CLOSE_S)
        close = getattr(environment, "close", None)
        if close is not None:
            close()
    finally:
        os._exit(0)  # nothing of the parent's is ours to clean up
