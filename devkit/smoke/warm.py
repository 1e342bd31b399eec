"""A process that imports torch and transformers once, builds the tiny model, and then forks every worker from itself.

Each Ray worker would import them anew, four times 4 s on two cores; a fork takes milliseconds. What runs in the
worker after that is Ray's own worker program, unchanged. `python -m devkit.smoke.warm SOCKET`, ended by closing its
standard input; it answers one line of JSON for each line of JSON that it is given.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

RAY_FLAGS = ("--serialized-runtime-env-context", "--language")  # of Ray's set-up script, which a fork replaces


def main() -> None:
    """Serves until standard input closes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    _warm_up()
    children: dict[int, socket.socket] = {}
    wake, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    for source in (listener, sys.stdin, wake):
        selector.register(source, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                _fork_worker(listener, children)
            elif key.fileobj is wake:
                os.read(wake, 1024)
                _reap(children)
            elif not _answer():
                _end_all(children)
                os._exit(0)


def _warm_up() -> None:
    """Every import that a worker or the model builder needs, but Ray: it reads its environment when it is loaded.

    No thread may be running when a worker is forked.
    """
    import torch
    import torch._dynamo  # the first optimizer imports it
    from transformers import AutoModelForCausalLM, Qwen2ForCausalLM, Qwen2Model  # noqa: F401

    import trainer.roles  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()  # what is there now is shared with the forks, so long as no collection touches it


def _answer() -> bool:
    """Carries out one order from standard input; False when it is closed."""
    line = sys.stdin.readline()
    if not line:
        return False
    order: dict[str, Any] = json.loads(line)
    try:
        answer = _orders()[order.pop("do")](**order)
    except Exception as error:  # noqa: BLE001 - the process must go on; the smoke test raises what it is told here
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    return True


def _orders() -> dict[str, Any]:
    from devkit.smoke import tiny

    return {"build": tiny.build_from, "digests": tiny.digests_of}


def _fork_worker(listener: socket.socket, children: dict[int, socket.socket]) -> None:
    connection, _ = listener.accept()
    header, streams, _, _ = socket.recv_fds(connection, 8, 3)
    message = b""
    while len(message) < int.from_bytes(header, "big"):
        message += connection.recv(65536)
    arguments, environment, folder = message.decode().split("\1")
    child = os.fork()
    if child == 0:
        _become_worker(arguments.split("\0"), environment, folder, streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(child.to_bytes(8, "big"))
    children[child] = connection


def _end_all(children: Iterable[int]) -> None:
    """Ends what the smoke test left, if it was killed: forked workers, and Ray's agents, which would stay a minute.

    Whatever that Ray started inherited the way to this process. Where there is no /proc, Ray's reaper does the same.
    """
    mark = f"DEVKIT_WARM_SOCKET={sys.argv[1]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _become_worker(arguments: list[str], environment: str, folder: str, streams: list[int]) -> None:
    """Ray's own worker program, in this process. Never returns."""
    code = 1
    try:
        os.setsid()  # Ray ends a worker's whole process group
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.environ.clear()
        os.environ.update(dict(item.split("=", 1) for item in environment.split("\0")))
        os.chdir(folder)
        program = _ray_folder() / "_private" / "workers" / "default_worker.py"
        kept = [a for a in arguments[1:] if not a.startswith(RAY_FLAGS) and not a.endswith("warm_client.py")]
        sys.argv = [str(program), *kept]
        runpy.run_path(str(program), run_name="__main__")
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 0
    except BaseException:  # noqa: BLE001 - a fork must not run on in its parent's program
        traceback.print_exc()
    finally:
        os._exit(code)


def _ray_folder() -> Path:
    spec = importlib.util.find_spec("ray")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _reap(children: dict[int, socket.socket]) -> None:
    """Tells each ended worker's stand-in, which leaves with the same code."""
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        connection = children.pop(child, None)
        if connection is not None:
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):  # the stand-in may have gone first
                connection.sendall((code if code >= 0 else 128 - code).to_bytes(8, "big"))
            connection.close()


if __name__ == "__main__":
    main()
