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

from devkit.debug.inworker import private

ORDER_S = 10.0  # for a stand-in to say what it wants: meanwhile no other one is heard
RUNTIME_ENV = "--serialized-runtime-env-context"
RAY_FLAGS = (RUNTIME_ENV, "--language")  # of Ray's set-up script, which a fork replaces


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
    from devkit.smoke import plain_draws, plain_update, tiny

    return {
        "build": tiny.build_from,
        "choose": plain_draws.choose,
        "digests": tiny.digests_of,
        "expect": plain_update.expect,
        "judge": plain_draws.judge,
    }


def _fork_worker(listener: socket.socket, children: dict[int, socket.socket]) -> None:
    connection, _ = listener.accept()
    streams: list[int] = []
    try:
        arguments, environment, folder = _order(connection, streams)
    except (OSError, ValueError) as error:  # a stand-in that was ended before it had said all
        sys.stderr.write(f"no worker was forked: {error}\n")
        for stream in streams:
            os.close(stream)
        connection.close()
        return
    child = os.fork()
    if child == 0:
        _become_worker(arguments.split("\0"), environment, folder, streams)
    for stream in streams:
        os.close(stream)
    with suppress(OSError):  # the stand-in was ended: its worker finds no raylet that waits for it
        connection.sendall(child.to_bytes(8, "big"))
    children[child] = connection


def _order(connection: socket.socket, streams: list[int]) -> list[str]:
    """What a stand-in hands over; its standard streams are put into `streams`."""
    if not private.is_same_user(connection):
        raise ValueError("another user's process asked for it")
    connection.settimeout(ORDER_S)
    header, received, _, _ = socket.recv_fds(connection, 8, 3)
    streams += received
    message = b""
    while len(message) < int.from_bytes(header, "big"):
        more = connection.recv(65536)
        if not more:
            raise ValueError("its order is cut off")
        message += more
    connection.settimeout(None)
    parts = message.decode().split("\1")
    if len(parts) != 3 or len(streams) != 3:
        raise ValueError("its order is not one")
    return parts


def _end_all(children: Iterable[int]) -> None:
    """Ends what the smoke test left, if it was killed: forked workers, and Ray's agents, which would stay a minute."""
    end_marked(sys.argv[1])
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def end_marked(path: str) -> None:
    """Ends whatever that Ray started: it inherited the way to this process. Without a /proc, Ray's reaper does it."""
    mark = f"DEVKIT_WARM_SOCKET={path}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


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
        os.environ.update(_runtime_variables(arguments))
        os.chdir(folder)
        _renew_torch_threads()
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


def _renew_torch_threads() -> None:
    """The fork has none of the threads of torch's pool: who first sets their number makes a new pool.

    In a CUDA build that would be autograd's threads, one for each device. Where two of them come at once, one finds
    no pool and aborts: "pool INTERNAL ASSERT FAILED" (torch 2.11; seen in every second run on an H100's host).
    """
    import torch

    torch.set_num_threads(1)


def _runtime_variables(arguments: list[str]) -> dict[str, str]:
    """Those of the job's runtime_env, which Ray's set-up script would set: one of them names the debugger's hook."""
    given = [word.partition("=")[2] for word in arguments if word.startswith(RUNTIME_ENV)]
    found: dict[str, str] = json.loads(given[0] or "{}").get("env_vars") or {} if given else {}
    return found


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
            if code < 0:  # Ray says no more than that it is gone
                sys.stderr.write(f"worker {child} was ended by {signal.Signals(-code).name}\n")
                sys.stderr.flush()
            with contextlib.suppress(OSError):  # the stand-in may have gone first
                connection.sendall((code if code >= 0 else 128 - code).to_bytes(8, "big"))
            connection.close()


if __name__ == "__main__":
    main()
