"""What runs where a user's environments live: a process that loads their file once, and forks one for each of them.

    python -c "from trainer.agent.inside import main; main()" FD

Messages are JSON behind their length. Over FD come first the source, then one descriptor per environment; over that
one its calls. With a process each, one may hang, crash or leave without the others. Standard library only.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

from trainer.agent import contract
from trainer.agent.source import NoEnvironment, Source

CLOSE_S = 5  # that an environment may take to close
MOST_BYTES = 2**26  # of a message
_LENGTH = struct.Struct(">I")


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
    """The process that forks. It ends, with all that came of it, when its parent does."""
    os.dup2(2, 1)  # what an environment prints is talk
    faulthandler.enable()
    line = _line(int(sys.argv[1]))
    source = Source(**receive(line))
    try:
        kind = source.load()
    except NoEnvironment as error:
        send(line, {"error": str(error), "hint": error.hint})
        return
    send(line, {})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    while True:
        _, descriptors, _, _ = socket.recv_fds(line, 1, 1)
        if not descriptors:
            os.killpg(0, signal.SIGKILL)  # this session's: also those that hang
        if os.fork() == 0:
            line.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _live(_line(descriptors[0]), kind, source)
        os.close(descriptors[0])


def _line(descriptor: int) -> socket.socket:
    """Not for what an environment starts: while that lived, nobody would see that the environment has ended."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def _live(line: socket.socket, kind: Any, source: Source) -> None:
    """One environment, from its first call until its caller hangs up. Does not return."""
    environment = None
    try:
        send(line, {"pid": os.getpid()})
        while True:
            what, *arguments = receive(line)
            try:
                environment = kind(**source.kwargs) if environment is None else environment
                observed = getattr(contract, what)(environment, *arguments)
                send(line, {"observed": vars(observed)})
            except contract.Unfit as error:
                send(line, {"failure": ["wrong", str(error)]})
            except BaseException as error:  # noqa: BLE001 - also `sys.exit`: it is reported as what it is
                send(line, {"failure": ["raised", f"{what} raised {contract.told(error, source.files)}"]})
    except (EOFError, OSError):
        signal.alarm(CLOSE_S)
        close = getattr(environment, "close", None)
        if close is not None:
            close()
    finally:
        os._exit(0)  # nothing of the parent's is ours to clean up
