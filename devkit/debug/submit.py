"""`devkit submit`: the same through Ray Jobs, so the driver runs on the cluster, where devkit need not be installed.

The bundle and the job's settings travel as a package; the entry point is a few lines of Python that unpack it there
and then run the user's command as it stands.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import stat
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from devkit import console
from devkit.debug import bundle, state
from devkit.debug.address import resolve
from devkit.debug.aftermath import Witness, tell_caught, tell_missed
from devkit.debug.client import connect
from devkit.debug.dashboard import Dashboard
from devkit.debug.inworker import boot
from devkit.debug.inworker.settings import MOST_IN_ENVIRONMENT
from devkit.debug.launch import ENV_HOOK, NEVER_MERGED, OUR_HOOK, UV_SWITCH, DebugOptions, never_merged, settings_of
from devkit.errors import INTERRUPTED, DevkitError, FailedError, UsageError
from devkit.reading import json_of

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
POLL_SECONDS = 0.2
_SPECIAL = re.compile(r"([*?\[\]!#\\ ])")  # in a pattern of .gitignore

# Ray prints a job's entry point at the head of its log: ours is short, and comes by the environment.
BOOT_NAME, PACKAGE_NAME, DIGEST_NAME = "DEVKIT_BOOT", "DEVKIT_PACKAGE", "DEVKIT_DIGEST"
RUN_BOOT = f'import os; exec(os.environ["{BOOT_NAME}"])'

# Runs on the cluster, by the Python that the command would be run by.
BOOT = """\
import io, os, sys, types, zipfile
from ray._raylet import GcsClient
os.environ.pop("DEVKIT_BOOT")
name, digest = os.environ.pop("DEVKIT_PACKAGE"), os.environ.pop("DEVKIT_DIGEST")
data = GcsClient(address=os.environ["RAY_ADDRESS"]).internal_kv_get(f"gcs://{name}".encode(), None, timeout=30)
if data is None: sys.exit(f"devkit: the package {name} is not on the cluster")
parcel = zipfile.ZipFile(io.BytesIO(data))
bundle = parcel.read("bundle.zip")
private = types.ModuleType("devkit_private")
exec(zipfile.ZipFile(io.BytesIO(bundle)).read("devkit_inworker/private.py"), vars(private))
top = str(private.unpack(bundle, digest))
path = os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = os.path.join(top, "site") + (os.pathsep + path if path else "")
os.environ["DEVKIT_SETTINGS"] = parcel.read("settings.json").decode()
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class SubmitOptions:
    """What `devkit submit` was asked for, beside what it shares with `run`."""

    debug: DebugOptions
    working_dir: str | None = None
    runtime_env: str = ""  # JSON
    submission_id: str | None = None
    wait: bool = True  # follow the job's log to its end


@dataclass(frozen=True)
class Package:
    """What is uploaded for one job."""

    name: str
    digest: str
    data: bytes = field(repr=False)


def package(settings: dict[str, Any]) -> Package:
    """Raises `UsageError` for more breakpoints than the environment of a program can hold."""
    content, text = bundle.files(), json.dumps(settings)
    if len(text) > MOST_IN_ENVIRONMENT:
        raise UsageError(
            "too many breakpoints to send with the job", hint="set some of them later with devkit break FILE:LINE"
        )
    packed = {"bundle.zip": bundle.pack(content), "settings.json": text.encode()}
    return Package(f"devkit-job-{secrets.token_hex(6)}.zip", bundle.digest(content), bundle.pack(packed))


def entrypoint(command: tuple[str, ...]) -> str:
    """The shell command of the job."""
    python = command[0] if os.path.basename(command[0]).startswith("python") else "python3"
    return shlex.join([python, "-c", RUN_BOOT, *command])


def environment(options: DebugOptions, parcel: Package) -> dict[str, str]:
    """Variables of the job; the cluster's token is not among them."""
    variables = {ENV_HOOK: OUR_HOOK, UV_SWITCH: "0", boot.UV: "1"}
    variables |= {BOOT_NAME: BOOT, PACKAGE_NAME: parcel.name, DIGEST_NAME: parcel.digest}
    return {**variables, boot.WAIT: "1"} if options.wait else variables


def main(options: SubmitOptions) -> int:
    """Submits the job and follows it. Exit code 0 if it succeeded, 1 if it failed."""
    folder = Path(options.working_dir).absolute() if options.working_dir else Path.cwd()
    settings = settings_of(options.debug, folder, verb="submit")
    if options.debug.hang_timeout and not options.wait:
        raise UsageError(
            "--hang-timeout needs a devkit that stays and watches", hint="remove --no-follow, or use devkit hang"
        )
    cluster = resolve(options.debug.address)
    dashboard = cluster.dashboard()
    parcel = package(boot.settings_to_json(settings))
    dashboard.put_package(parcel.name, parcel.data)
    from devkit.hang.after_crash import watching_crashes
    from devkit.hang.watchdog import watching

    runtime_env = _runtime_env(options, dashboard, folder, parcel)
    job = dashboard.submit_job(
        entrypoint(options.debug.command),
        runtime_env=runtime_env,
        metadata={"devkit": shlex.join(options.debug.command)},
        submission_id=options.submission_id,
    )
    console.talk().print(
        f"devkit: submitted {job} to {cluster.dashboard_url}; see paused ranks with devkit ps", soft_wrap=True
    )
    if not options.wait:
        return _tell(job, dashboard, options.debug.json)
    witness = Witness(settings.breakpoints, lambda: connect(cluster), counts=bool(options.debug.count_caught))
    ids, lifted = partial(_job_id, dashboard, job), not options.debug.keep_timeouts
    try:
        with watching(cluster, ids, options.debug.hang_timeout), watching_crashes(cluster, ids, lifted=lifted):
            _follow(dashboard, job, sys.stderr if options.debug.json else sys.stdout)
    except KeyboardInterrupt:
        hint = f"devkit logs {job} shows what it prints, and devkit stop {job} ends it"
        facts = {"submission_id": job, "status": dashboard.job(job).status}
        raise FailedError(
            f"interrupted, but the job {job} goes on", hint=hint, facts=facts, exit_code=INTERRUPTED
        ) from None
    tell_missed(witness.never_hit())
    if options.debug.count_caught:
        tell_caught(witness.caught(_job_id(dashboard, job)))
    return _end(dashboard, job, options.debug.json)


def _runtime_env(options: SubmitOptions, dashboard: Dashboard, folder: Path, parcel: Package) -> dict[str, Any]:
    try:
        given = json_of(options.runtime_env or "{}")
        variables = dict(given.get("env_vars", {}))
    except (ValueError, AttributeError, TypeError):
        raise UsageError("--runtime-env is not a JSON object", hint="""--runtime-env '{"pip": ["x"]}'""") from None
    if ENV_HOOK in variables:
        variables[boot.USER_ENV_HOOK] = variables.pop(ENV_HOOK)
    variables[NEVER_MERGED] = never_merged(variables)
    merged = {**given, "env_vars": {**variables, **environment(options.debug, parcel)}}
    if options.working_dir:
        merged["working_dir"] = _upload(dashboard, folder)
    return merged


def _upload(dashboard: Dashboard, folder: Path) -> str:
    """The working folder as a package, by Ray's own rules for what belongs into it."""
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}", hint="--working-dir is the folder the job starts in")
    from ray._private.runtime_env.packaging import create_package, get_uri_for_directory

    excludes = [*_own_files(folder), *odd_files(folder)]
    uri = get_uri_for_directory(str(folder), include_gitignore=True, excludes=excludes)
    name = uri.removeprefix("gcs://")
    if not dashboard.has_package(name):
        archive = state.private_folder() / name
        try:
            create_package(str(folder), archive, include_gitignore=True, excludes=excludes)
            _check_size(folder, archive)
            dashboard.put_package(name, archive.read_bytes())
        finally:
            archive.unlink(missing_ok=True)
    return uri


def odd_files(folder: Path) -> list[str]:
    """Pipes, sockets and devices in a folder, as patterns of what to leave out: Ray would wait for them for ever."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with suppress(OSError):  # gone meanwhile, or a link to nowhere
                if not stat.S_ISREG(os.stat(path).st_mode):
                    found.append("/" + _SPECIAL.sub(r"\\\1", os.path.relpath(path, folder)))
    return sorted(found)


def _own_files(folder: Path) -> list[str]:
    """Our own files do not belong to the user's: the package itself is being written among them."""
    home = state.home().absolute()
    return [f"/{home.relative_to(folder)}"] if home.is_relative_to(folder) else []


def _check_size(folder: Path, archive: Path) -> None:
    from ray._private.runtime_env.packaging import GCS_STORAGE_MAX_SIZE

    size = archive.stat().st_size
    if size >= GCS_STORAGE_MAX_SIZE:
        raise UsageError(
            f"{folder} is too large to upload: {size >> 20} MiB packed, and Ray accepts {GCS_STORAGE_MAX_SIZE >> 20}",
            hint="exclude files with its .gitignore, or choose a smaller folder with --working-dir DIR",
        )


def _follow(dashboard: Dashboard, job: str, out: Any) -> None:
    with dashboard.job_logs_stream(job) as pieces:
        for piece in pieces:
            out.write(piece.decode("utf-8", "replace"))
            out.flush()


def _job_id(dashboard: Dashboard, job: str) -> str:
    """Empty until its driver has called `ray.init`."""
    try:
        return dashboard.job(job).job_id
    except DevkitError:  # it is asked again
        return ""


def _end(dashboard: Dashboard, job: str, as_json: bool) -> int:
    """The log ends a moment before the job's status says so."""
    deadline = time.monotonic() + 30.0
    while (row := dashboard.job(job)).status not in ENDED and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    record = {"submission_id": job, "status": row.status}
    if row.status != "SUCCEEDED":
        hint = f"devkit logs {job} --first-error shows what went wrong first"
        raise FailedError(f"job {job}: {row.status}", hint=hint, facts=record)
    if as_json:
        console.emit(record)
    return 0


def _tell(job: str, dashboard: Dashboard, as_json: bool) -> int:
    if as_json:
        console.emit({"submission_id": job, "status": dashboard.job(job).status})
    return 0


__all__ = ["BOOT", "Package", "SubmitOptions", "entrypoint", "environment", "main", "package"]
