"""Commands of Python as a shell starts them, each a fork of one process that has imported what they import.

What a command writes, how it ends, and what Python's own end does to both is a process's as ever; only the second in
which Python loads the same modules is spent once. Not for what depends on how Python starts: the locale, its options.
"""

from __future__ import annotations

import gc
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tests.pace import stretched

ROOT = Path(__file__).parents[1]
CLOSED = -1  # in place of a descriptor


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it wrote where no place was given."""

    code: int
    out: str
    err: str


class Forks:
    """The process that forks."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def run(
        self,
        module: str,
        words: Sequence[str] = (),
        *,
        stdout: int | None = None,
        stderr: int | None = None,
        unbuffered: bool = False,
        folder: Path = ROOT,
        env: Mapping[str, str] | None = None,
    ) -> Ended:
        """`python -m MODULE WORDS` in `folder`; what has a space is a program instead. `stdout`, `stderr`: descriptors,
        or CLOSED."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            wanted = {"module": module, "words": list(words), "folder": str(folder), "unbuffered": unbuffered}
            wanted["env"] = None if env is None else dict(env)
            places = [stdout if stdout is not None else out.fileno(), stderr if stderr is not None else err.fileno()]
            wanted["open"] = [place != CLOSED for place in places]
            socket.send_fds(self._line, [json.dumps(wanted).encode()], [place for place in places if place != CLOSED])
            code = int(self._line.recv(16) or b"-1")
            out.seek(0), err.seek(0)
            return Ended(code, out.read().decode(), err.read().decode())


@contextmanager
def forks(*modules: str) -> Iterator[Forks]:
    """With these modules imported."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(stretched(120))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with here, there:
        command = [sys.executable, "-m", "tests.forks", str(there.fileno()), *modules]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL
        )
        there.close()
        try:
            yield Forks(here)
        finally:
            here.close()
            process.wait(stretched(60))


# ------------------------------------------------------------------------------------------------ in the other process


def serve(line: socket.socket) -> None:
    while True:
        said, descriptors, _, _ = socket.recv_fds(line, 2**16, 2)
        if not said:
            return
        child = os.fork()
        if not child:
            line.close()
            become(json.loads(said), descriptors)
        for each in descriptors:
            os.close(each)
        line.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def become(wanted: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """The command, up to its end."""
    left = list(descriptors)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if wanted["open"][number - 1]:
            os.dup2(place := left.pop(0), number)
            os.close(place)
            setattr(sys, name, as_python_opens(number, getattr(sys, name), unbuffered=wanted["unbuffered"]))
        else:
            os.close(number)
            setattr(sys, name, None)
        setattr(sys, f"__{name}__", getattr(sys, name))
    if wanted["env"] is not None:
        os.environ.clear()
        os.environ.update(wanted["env"])
    os.chdir(wanted["folder"])
    if wanted["unbuffered"]:
        os.environ["PYTHONUNBUFFERED"] = "1"
    module = wanted["module"]
    sys.argv = [module, *wanted["words"]]
    if " " in module:
        exec(compile(module, "<string>", "exec"), {"__name__": "__main__"})
    else:
        if not hasattr(sys.modules.get(module), "__path__"):
            sys.modules.pop(module, None)  # a module that is run is made anew
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def as_python_opens(number: int, like: Any, *, unbuffered: bool) -> io.TextIOWrapper:
    """A standard stream, by what Python's start makes of a descriptor that is no terminal."""
    raw: Any = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115 - as long as the process
    return io.TextIOWrapper(
        *(raw, like.encoding, like.errors, "\n"), line_buffering=number == 2, write_through=unbuffered
    )


if __name__ == "__main__":
    for each in sys.argv[2:]:
        import_module(each)
    gc.collect()
    gc.freeze()  # or each fork's end would go through all of it
    serve(socket.socket(fileno=int(sys.argv[1])))
