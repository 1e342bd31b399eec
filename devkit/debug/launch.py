"""`devkit run`: a Ray driver on this machine with the debugger in it, and in all workers of its job.

Nothing of the program is edited. Its Python finds our `sitecustomize` on PYTHONPATH, and Ray our RAY_RUNTIME_ENV_HOOK.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devkit import console
from devkit.debug import aftermath, breaks, bundle, runs, state
from devkit.debug.dap_exchange import Exchange
from devkit.debug.inworker import boot
from devkit.debug.inworker.settings import Settings
from devkit.errors import INTERRUPTED, DevkitError, FailedError, UsageError

ENV_HOOK = "RAY_RUNTIME_ENV_HOOK"
OUR_HOOK = "devkit_inworker.boot.runtime_env_hook"
UV_SWITCH = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
# What would turn our hook, or Ray's table of stops, off without a word.
LEFTOVERS = ("RAY_DEBUG", "PYTHONBREAKPOINT")
POST_MORTEM = ("snapshot", "pause", "off")
RAY_EXTENSION = ("local", "open", "off")


@dataclass(frozen=True)
class DebugOptions:
    """What `run` and `submit` have in common."""

    command: tuple[str, ...]
    specs: tuple[str, ...] = ()
    hits: str = ""
    log: str = ""
    timeout: float = 0.0  # seconds that a stop may last
    post_mortem: str = "snapshot"
    keep_timeouts: bool = False
    ray_extension: str = "local"
    wait: bool = False  # a driver's breakpoint() waits although there is no terminal
    hang_timeout: float = 0.0  # seconds without progress until the watchdog says why; 0: there is none
    address: str | None = None
    json: bool = False


def settings_of(options: DebugOptions, folder: Path | None = None) -> Settings:
    """What the job's processes are told. Raises `UsageError` for what cannot be meant."""
    if not options.command:
        raise UsageError("no command to run", hint="devkit run -- python job.py")
    for name, value, known in (
        ("--post-mortem", options.post_mortem, POST_MORTEM),
        ("--ray-extension", options.ray_extension, RAY_EXTENSION),
    ):
        if value not in known:
            raise UsageError(f"{name} is {value!r}", hint=f"{name} takes {', '.join(known)}")
    points = tuple(breaks.make(text, hits=options.hits, log=options.log, folder=folder) for text in options.specs)
    return Settings(
        breakpoints=points,
        post_mortem=options.post_mortem,
        stop_timeout=options.timeout,
        keep_timeouts=options.keep_timeouts,
        ray_extension=options.ray_extension,
    )


def environment(
    before: Mapping[str, str], folder: Path, settings: Path, announce: Path, options: DebugOptions
) -> dict[str, str]:
    """The driver's environment."""
    after = {name: value for name, value in before.items() if name not in LEFTOVERS}
    after["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder / "site"), before.get("PYTHONPATH"))))
    after[boot.SETTINGS] = str(settings)
    after[boot.ANNOUNCE] = str(announce)
    if before.get(ENV_HOOK, OUR_HOOK) != OUR_HOOK:
        after[boot.USER_ENV_HOOK] = before[ENV_HOOK]
    after[ENV_HOOK] = OUR_HOOK
    # Ray would pass over our hook under `uv run`; ours calls Ray's.
    after[boot.UV] = before.get(UV_SWITCH, "1")
    after[UV_SWITCH] = "0"
    if options.wait:
        after[boot.WAIT] = "1"
    if options.address:
        after["RAY_ADDRESS"] = _gcs_address(options.address)
    return after


def _gcs_address(address: str) -> str:
    """What `ray.init` takes; it does not take a dashboard's URL."""
    from devkit.debug.address import resolve

    found = resolve(address).gcs_address
    if found is None:
        raise UsageError(
            f"a driver on this machine needs the cluster's GCS address, and {address} is its dashboard",
            hint="give --address HOST:6379, or start the driver on the cluster: devkit submit",
        )
    return found


def main(options: DebugOptions) -> int:
    """Runs the command and waits for it. Exit code 0 if it succeeded, 1 if it failed."""
    editor = Exchange.given(os.environ)
    if editor is None:
        return _main(options, None)
    try:
        return _main(options, editor)
    except DevkitError as error:
        editor.ended(error.exit_code, error.message)
        raise


def _main(options: DebugOptions, editor: Exchange | None) -> int:
    settings = settings_of(options)
    if editor is not None:
        settings = replace(settings, breakpoints=settings.breakpoints + editor.breakpoints)
    program = shutil.which(options.command[0])
    if program is None:
        raise UsageError(f"no such command: {options.command[0]}", hint="devkit run -- python job.py")
    run = state.private_folder("runs") / secrets.token_hex(4)
    settings_file, announce = run.with_suffix(".settings"), run.with_suffix(".json")
    settings_file.write_text(json.dumps(boot.settings_to_json(settings)))
    try:
        environ = environment(os.environ, bundle.folder(), settings_file, announce, options)
        code, known = _run([program, *options.command[1:]], environ, announce, editor, options.hang_timeout)
    finally:
        for path in (settings_file, announce):
            path.unlink(missing_ok=True)
        runs.forget()
    if editor is not None:
        editor.ended(code)
    for spec in aftermath.clear(known, settings.breakpoints) if known else ():
        console.talk().print(f"devkit: never hit: {spec}", soft_wrap=True, markup=False)
    return _end(code, options, known)


def _run(
    command: Sequence[str],
    environ: Mapping[str, str],
    announce: Path,
    editor: Exchange | None,
    hang_timeout: float = 0.0,
) -> tuple[int, runs.Run | None]:
    """The command's exit code, and its run if it came to be one of Ray."""
    interrupted = threading.Event()
    child = subprocess.Popen(command, env=dict(environ))
    if editor is not None:
        editor.started(child.pid)
    ended = threading.Event()
    found: list[runs.Run] = []
    told = (announce, ended, found, editor, hang_timeout)
    watcher = threading.Thread(target=_tell_where, args=told, name="devkit-announce", daemon=True)
    watcher.start()
    # Ctrl-C reaches the child by itself, through the terminal; both are needed to end together.
    before = {
        number: signal.signal(number, _forward(child, number, interrupted))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        code = child.wait()
        return INTERRUPTED if interrupted.is_set() and code else code, next(iter(found), None)
    finally:
        ended.set()
        watcher.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _forward(child: subprocess.Popen[bytes], number: signal.Signals, interrupted: threading.Event) -> Any:
    def handler(*_: object) -> None:
        if number == signal.SIGINT:
            interrupted.set()  # a Ray driver may end with any code then
        if number != signal.SIGINT or not sys.stdin.isatty():
            child.send_signal(number)

    return handler


def _tell_where(
    announce: Path, ended: threading.Event, found: list[runs.Run], editor: Exchange | None, hang_timeout: float
) -> None:
    """Once the program has called `ray.init`: how to look at it from another terminal. Then the watchdog."""
    while not ended.wait(0.1):
        if announce.exists():
            announced = json.loads(announce.read_text())
            url = announced["dashboard_url"]
            url = f"http://{url.removeprefix('http://')}" if url else ""
            found.append(run := runs.remember(announced, url))
            if editor is not None:
                editor.joined(run)
            console.talk().print(f"devkit: debugging job {run.job_id}{_how_to_look(run)}", soft_wrap=True)
            _watch(run, hang_timeout, ended)
            return


def _watch(run: runs.Run, hang_timeout: float, ended: threading.Event) -> None:
    if hang_timeout and not run.dashboard_url:
        console.talk().print("devkit: --hang-timeout needs a Ray with a dashboard: nobody watches", soft_wrap=True)
    elif hang_timeout:
        from devkit.hang.watchdog import watching

        with watching(run.dashboard_url, lambda: run.job_id, hang_timeout):
            ended.wait()


def _how_to_look(run: runs.Run) -> str:
    """From another terminal. The last run of this machine is found without an address."""
    others = [other for other in runs.running() if other.pid != run.pid]
    if not run.dashboard_url:
        return "; look at it with: devkit ps (from this machine: its Ray has no dashboard)"
    return f"; look at it with: devkit ps --address {run.dashboard_url}" if others else "; look at it with: devkit ps"


def _end(code: int, options: DebugOptions, run: runs.Run | None) -> int:
    record = {"command": list(options.command), "returncode": code}
    if code == 0:
        if options.json:
            console.emit(record)
        return 0
    if code in (-signal.SIGINT, INTERRUPTED):
        raise KeyboardInterrupt
    if run is None and (reason := aftermath.why_no_ray(options.address)):
        raise reason
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
    raise FailedError(f"the command {how}", hint="devkit crashes shows what its workers left behind", facts=record)
