"""`devkit dap`: a debug adapter that any editor can start. It speaks on stdin and stdout, and is told what to show.

    --id ID      one stop: messages are passed to its worker (`dap_one.py`)
    --all        all ranks, as child sessions of the editor (`dap_parent.py`) or as threads of one (`dap_all.py`)
    --crash ID   a crash snapshot, read-only (`crash_adapter.py`)
    --launch     starts a program, and shows all ranks of the job that it becomes (`dap_launch.py`)

The editor sees nothing but answers, so an error before the session begins is the answer to its first request.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from devkit.debug.dap_all import AllSession
from devkit.debug.dap_choice import Choice
from devkit.debug.dap_cluster import RECONNECT_SECONDS, Cluster, Connect, find_stop, unpacked_code
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_one import OneSession
from devkit.debug.dap_paths import Paths
from devkit.debug.dap_stdio import Editor, own_stdio
from devkit.debug.dap_translate import Translation
from devkit.errors import DevkitError, UsageError

ERROR_SECONDS = 5.0  # for the editor to ask, so that it can be told


@dataclass(frozen=True)
class Options:
    """What is to be shown: exactly one of `id`, `everything`, `crash` and `launch`."""

    id: str | None = None
    everything: bool = False
    job: str | None = None
    ranks: str | None = None
    crash: str | None = None
    workspace: str = ""  # the editor's folder; the working folder by default
    seconds: float = RECONNECT_SECONDS  # how long a lost hub or worker is waited for
    launch: bool = False
    address: str | None = None  # of the cluster for what is launched

    def check(self) -> None:
        if sum((self.id is not None, self.everything, self.crash is not None, self.launch)) != 1:
            raise UsageError("nothing to debug was given", hint="pass one of --id ID, --all, --crash ID and --launch")
        if not self.everything and (self.job is not None or self.ranks is not None):
            raise UsageError("--job and --ranks only work with --all", hint="devkit dap --all --ranks 0,2:4")


class Session(Protocol):
    def start(self) -> None: ...


def main(
    *,
    id: str | None = None,  # noqa: A002 - the option's name
    everything: bool = False,
    job: str | None = None,
    ranks: str | None = None,
    crash: str | None = None,
    launch: bool = False,
    address: str | None = None,
) -> int:
    """A debug adapter until the editor leaves. Raises what the command line reports, after the editor was told."""
    from devkit.debug import client

    options = Options(id, everything, job, ranks, crash, launch=launch, address=address)
    with own_stdio() as (reader, writer):
        return serve(options, reader, writer, lambda: client.connect(address))


def serve(options: Options, reader: BinaryIO, writer: BinaryIO, connect: Connect) -> int:
    """One session over these streams, from the first request to the last."""
    loop = Loop()
    editor = Editor(loop, reader, writer)
    try:
        session = begin(options, loop, editor, connect)
    except DevkitError as error:
        tell_error(loop, editor, error)
        raise
    with _orderly_end(loop, editor):
        session.start()
        return loop.run()


@contextmanager
def _orderly_end(loop: Loop, editor: Editor) -> Iterator[None]:
    """Editors end an adapter by SIGTERM, often before its last answer: its breakpoints go with it all the same."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: loop.post(lambda: editor.on_end()))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def begin(options: Options, loop: Loop, editor: Editor, connect: Connect) -> Session:
    """Finds what is to be shown. Raises DevkitError when that can't be."""
    options.check()
    workspace = options.workspace or os.getcwd()
    if options.crash is not None:
        from devkit.debug.crash_adapter import CrashSession, fetch

        return CrashSession(loop, editor, fetch(connect, options.crash), workspace)
    if options.launch:
        from devkit.debug.dap_launch import LaunchSession

        return LaunchSession(loop, editor, workspace, options.address, options.seconds)
    choice = Choice.of(options.job, options.ranks)
    hub = connect()
    try:
        cluster = Cluster(loop, connect, hub, options.seconds)
        if options.everything:
            return AllSession(loop, editor, cluster, choice, workspace)
        return _one(options, loop, editor, cluster, workspace)
    except BaseException:
        hub.close()
        raise


def _one(options: Options, loop: Loop, editor: Editor, cluster: Cluster, workspace: str) -> OneSession:
    stop = find_stop(cluster.hub.call("ps"), options.id or "")
    paths = Paths(workspace)
    paths.learn(stop.file)
    paths.learn(unpacked_code(cluster.hub, [stop.id]).get(stop.id, ""))
    return OneSession(loop, editor, cluster, stop, Translation(paths))


def tell_error(loop: Loop, editor: Editor, error: DevkitError) -> None:
    """Answers what the editor asks by the error, until it leaves or its time is over."""

    def refuse(request: dict[str, object]) -> None:
        if request.get("command") == "disconnect":
            editor.answer(request)
            loop.stop(0)
        else:
            editor.refuse(request, f"error: {error.message}", f"hint: {error.hint}" if error.hint else "")

    editor.on_request = refuse
    editor.start()
    loop.after(ERROR_SECONDS, lambda: loop.stop(0))
    loop.run()
