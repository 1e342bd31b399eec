"""`devkit run`: a Ray driver on this machine with the debugger in it, and in all workers of its job.

Nothing of the program is edited. Its Python finds our `sitecustomize` on PYTHONPATH, and Ray our RAY_RUNTIME_ENV_HOOK.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from devkit import console
from devkit.debug import aftermath, before_ray, breaks, bundle, kept, runs, state, tokens
from devkit.debug.address import knock, of_run, resolve
from devkit.debug.client import connect_to
from devkit.debug.dap_exchange import Exchange
from devkit.debug.forwarding import Forwarding
from devkit.debug.gcs import NobodyError
from devkit.debug.inworker import alone, auth, boot, private
from devkit.debug.inworker.records import Breakpoint
from devkit.debug.inworker.settings import AUTO, OFF, ON, Settings
from devkit.errors import INTERRUPTED, DevkitError, ExitedError, FailedError, TerminatedError, UsageError
from devkit.menu import meant
from devkit.signals import as_shell, how_ended

ENV_HOOK = "RAY_RUNTIME_ENV_HOOK"
OUR_HOOK = "devkit_inworker.boot.runtime_env_hook"
UV_SWITCH = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
# What would turn our hook, or Ray's table of stops, off without a word.
LEFTOVERS = ("RAY_DEBUG", "PYTHONBREAKPOINT")
CRASHED = "devkit crashes shows the snapshots that it left"
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
    break_on: tuple[str, ...] = ()  # types of exceptions
    count_caught: bool | None = None  # None: where it costs next to nothing
    wait: bool = False  # a driver's breakpoint() waits although there is no terminal
    hang_timeout: float = 0.0  # seconds without progress until the watchdog says why; 0: there is none
    address: str | None = None
    json: bool = False


def settings_of(options: DebugOptions, folder: Path | None = None, *, verb: str = "run") -> Settings:
    """What the job's processes are told. Raises `UsageError` for what cannot be meant."""
    if not options.command:
        raise UsageError("no command to run", hint=f"for example: devkit {verb} -- python job.py")
    for name, value, known in (
        ("--post-mortem", options.post_mortem, POST_MORTEM),
        ("--ray-extension", options.ray_extension, RAY_EXTENSION),
    ):
        if value not in known:
            raise UsageError(f"{name} is {value!r}", hint=f"{name} takes {', '.join(known)}")
    texts = (*options.specs, *(f"raise {each}" for each in options.break_on))
    points = tuple(breaks.make(text, hits=options.hits, log=options.log, folder=folder) for text in texts)
    return Settings(
        breakpoints=points,
        post_mortem=options.post_mortem,
        stop_timeout=options.timeout,
        keep_timeouts=options.keep_timeouts,
        ray_extension=options.ray_extension,
        caught=AUTO if options.count_caught is None else ON if options.count_caught else OFF,
    )


# Of lines of workers that differ in numbers alone Ray's driver shows the first, unless they match this.
NEVER_MERGED = "RAY_DEDUP_LOGS_ALLOW_REGEX"
OURS = r"^devkit: .+:\d+ \["  # what a log point prints


def never_merged(before: Mapping[str, str]) -> str:
    """What a log point says of each rank is no repetition.

    >>> never_merged({}) == OURS, never_merged({NEVER_MERGED: "loss"}) == f"loss|{OURS}"
    (True, True)
    """
    return "|".join(filter(None, (before.get(NEVER_MERGED), OURS)))


def environment(
    before: Mapping[str, str], folder: Path, settings: Path, announce: Path, options: DebugOptions
) -> dict[str, str]:
    """The driver's environment."""
    after = {name: value for name, value in before.items() if name not in LEFTOVERS}
    after["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder / "site"), before.get("PYTHONPATH"))))
    after[boot.SETTINGS] = str(settings)
    after[boot.ANNOUNCE] = str(announce)
    if found := tokens.find_token(before):
        after[auth.KNOWN] = auth.digest(found.value)
    if before.get(ENV_HOOK, OUR_HOOK) != OUR_HOOK:
        after[boot.USER_ENV_HOOK] = before[ENV_HOOK]
    after[ENV_HOOK] = OUR_HOOK
    # Ray would pass over our hook under `uv run`; ours calls Ray's.
    after[boot.UV] = before.get(UV_SWITCH, "1")
    after[UV_SWITCH] = "0"
    # What a log point prints, and what workers do, is seen when it is printed, through a pipe and in a file, too.
    after.setdefault("PYTHONUNBUFFERED", "1")
    after[NEVER_MERGED] = never_merged(before)
    if options.wait:
        after[boot.WAIT] = "1"
    if options.address:
        after["RAY_ADDRESS"] = _gcs_address(options.address)
    return after


def _gcs_address(address: str) -> str:
    """What `ray.init` takes; it does not take a dashboard's URL."""
    found = resolve(address).gcs_address
    if found is None:
        raise UsageError(
            f"a driver on this machine needs the cluster's GCS address, but {address} is its dashboard",
            hint="pass --address HOST:6379, or run the driver on the cluster with devkit submit",
        )
    return found


def main(options: DebugOptions) -> int:
    """Runs the command and waits for it. The exit code is the command's own; after a signal 128 and its number."""
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
    before_ray.refuse(settings.breakpoints, options.command, Path.cwd())  # an editor's stay what they are
    if editor is not None:
        settings = replace(settings, breakpoints=settings.breakpoints + editor.breakpoints)
    program = shutil.which(options.command[0])
    if program is None:
        raise UsageError(f"no such command: {options.command[0]}", hint=_meant(options.command))
    _knock(options)
    run = state.private_folder("runs") / secrets.token_hex(4)
    settings_file, announce = run.with_suffix(".settings"), run.with_suffix(".json")
    begun, alone_folder = announce.with_suffix(boot.BEGUN), announce.with_suffix(alone.SUFFIX)
    state.write(settings_file, boot.settings_to_json(settings))
    runs.begin(options.command)
    since = time.time()
    try:
        environ = environment(os.environ, bundle.folder(), settings_file, announce, options)
        told = _Told(
            announce,
            settings.breakpoints,
            editor,
            options.hang_timeout,
            lifted=not options.keep_timeouts,
            counts=bool(options.count_caught),
        )
        code = _run([program, *options.command[1:]], environ, told)
        crashed, left = _told_end(told, code), None
        if last := told.run or _unannounced(begun, code, since):
            left = kept.keep(last, options.command, code, alone_folder)  # its Ray may have gone with it
            crashed = crashed or (code != 0 and left is not None and bool(left.crashes))
        missed = told.witness.never_hit() if told.witness else []
        if told.run is None and not begun.exists():
            aftermath.tell_no_ray(code, asked_of_ray(options))
    finally:
        for path in (settings_file, announce, begun):
            path.unlink(missing_ok=True)
        shutil.rmtree(alone_folder, ignore_errors=True)
        runs.forget()
    if editor is not None:
        editor.ended(code)
    aftermath.tell_missed(missed)
    _tell_caught(options, told, left, crashed=crashed or code != 0)
    return _end(code, options, told.run, crashed=crashed)


def _knock(options: DebugOptions) -> None:
    """Raises NobodyError where the program would wait for a cluster that is gone. Others, as scripts, may start one."""
    if options.address:
        return  # it has been resolved
    try:
        knock(os.environ)
    except NobodyError as error:
        if before_ray.leaves_cluster_to_environment(before_ray.text_of(options.command, Path.cwd())):
            raise
        console.talk().print(f"devkit: {error.message}; {error.hint}", soft_wrap=True, markup=False, highlight=False)


def _told_end(told: _Told, code: int) -> bool:
    """Whether the hub, which is told of the end, has crashes."""
    if told.run is None:
        return False
    connect = partial(connect_to, told.run, deadline=aftermath.ASK_SECONDS)
    return aftermath.tell_end(connect, told.run.job_id, code, told.pid)


def _tell_caught(options: DebugOptions, told: _Told, left: kept.EndedRun | None, *, crashed: bool) -> None:
    """All of it to who has asked for that; else what was swallowed in a run that has left nothing else to look at."""
    if told.run is None or told.witness is None:
        return
    if options.count_caught:
        aftermath.tell_caught(told.witness.caught(told.run.job_id))
    elif left is not None and not crashed and not left.crashes and options.count_caught is None:
        known = left.caught  # of a hub that has ended with its Ray
        connect = partial(connect_to, told.run, deadline=aftermath.ASK_SECONDS)
        aftermath.tell_swallowed(
            known["workers"] if "workers" in known else aftermath.caught_by(connect, told.run.job_id)
        )


def _unannounced(begun: Path, code: int, since: float) -> runs.Run | None:
    """Of a program that told at most which Ray it joined. One that did well without any has left nothing."""
    joined = {}
    with suppress(OSError, ValueError):
        joined = json.loads(private.read(begun))
    return replace(runs.unannounced(joined), since=since) if code or joined else None


def _meant(command: tuple[str, ...]) -> str:
    if command[0].endswith((".py", ".sh")):
        return meant("run", command)
    return f"is {command[0]} installed and on PATH? For example: devkit run -- python job.py"


def asked_of_ray(options: DebugOptions) -> list[str]:
    """Options that only a Ray program gives a meaning to."""
    given = {
        "--break": options.specs,
        "--break-on": options.break_on,
        "--count-caught": options.count_caught,
        "--hang-timeout": options.hang_timeout,
    }
    return [name for name, value in given.items() if value]


@dataclass
class _Told:
    """What the program's driver tells of its job, and who is told in turn."""

    announce: Path  # where it writes it
    breakpoints: tuple[Breakpoint, ...]
    editor: Exchange | None
    hang_timeout: float
    pid: int = 0  # the program's
    lifted: bool = True  # limits of time are a day
    run: runs.Run | None = None
    witness: aftermath.Witness | None = None
    counts: bool = False  # what is caught is told at the end


def _run(command: Sequence[str], environ: Mapping[str, str], told: _Told) -> int:
    """The command's exit code; `told` has its run if it came to be one of Ray."""
    ended = threading.Event()
    watcher = threading.Thread(target=_tell_where, args=(told, ended), name="devkit-announce", daemon=True)
    signals = Forwarding()
    try:
        with signals.installed():  # before there is a child that a signal could leave behind
            told.pid = signals.start(command, environ)
            if told.editor is not None:
                told.editor.started(told.pid)
            watcher.start()
            return signals.wait()
    finally:
        ended.set()
        if watcher.ident is not None:
            watcher.join()


def _tell_where(told: _Told, ended: threading.Event) -> None:
    """Once the program has called `ray.init`: how to look at it from another terminal. Then the watchdog."""
    since, silent = time.monotonic(), told.hang_timeout > 0
    while not ended.wait(0.1):
        if silent and time.monotonic() - since >= told.hang_timeout:
            silent = False
            console.interject(aftermath.NOT_WATCHED)
        if told.announce.exists():
            announced = json.loads(private.read(told.announce))
            url = announced["dashboard_url"]
            told.run = run = runs.remember(announced, f"http://{url.removeprefix('http://')}" if url else "")
            told.witness = aftermath.Witness(told.breakpoints, partial(connect_to, run), counts=told.counts)
            tokens.keep_private()
            if told.editor is not None:
                told.editor.joined(run)
            console.interject(f"devkit: debugging job {run.job_id}{_how_to_look(run)}")
            if not ended.is_set():
                connect = partial(connect_to, run, deadline=aftermath.ASK_SECONDS)
                aftermath.tell_armed_before(connect, told.breakpoints, run.job_id)
            _watch(run, told, ended)
            return


def _watch(run: runs.Run, told: _Told, ended: threading.Event) -> None:
    from devkit.hang.after_crash import watching_crashes

    cluster, job = of_run(run), lambda: run.job_id
    with watching_crashes(cluster, job, lifted=told.lifted):
        if told.hang_timeout:
            from devkit.hang.watchdog import watching

            with watching(cluster, job, told.hang_timeout):
                ended.wait()
        ended.wait()


def _how_to_look(run: runs.Run) -> str:
    """From another terminal. The last run of this machine is found without an address."""
    others = [other for other in runs.running() if other.pid != run.pid]
    if not run.dashboard_url:
        return "; look at it with: devkit ps (from this machine: its Ray has no dashboard)"
    return f"; look at it with: devkit ps --address {run.dashboard_url}" if others else "; look at it with: devkit ps"


def _end(code: int, options: DebugOptions, run: runs.Run | None, *, crashed: bool) -> int:
    record = {"command": list(options.command), "returncode": code}
    if code == 0:
        if options.json:
            console.emit(record)
        return 0
    if code in (-signal.SIGINT, INTERRUPTED):
        raise KeyboardInterrupt
    if code == -signal.SIGTERM:
        raise TerminatedError(facts=record)
    if run is None and (reason := aftermath.why_no_ray(options.address)):
        reason.exit_code = as_shell(code)
        raise reason
    message, hint = f"the command {how_ended(code)}", CRASHED if crashed else "its own output says why"
    if code > 0:  # no signal: it has printed its own error
        news = CRASHED if crashed else ""
        raise ExitedError(message, hint=hint, news=news, facts=record, exit_code=as_shell(code))
    raise FailedError(message, hint=hint, facts=record, exit_code=as_shell(code))
