"""What devkit remembers between two commands: the clusters that it started, and those that it has seen.

    $DEVKIT_HOME                      ~/.cache/devkit, or $XDG_CACHE_HOME/devkit
    ├── clusters/<name>.json          one Ray that devkit started on this machine
    ├── logs/<name>/                  what its `ray start` commands print
    └── seen.json                     GCS address -> dashboard URL and session

No token is ever in it. Only this user can read it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from devkit.debug.processes import machine, started
from devkit.debug.tokens import AuthMode
from devkit.errors import DevkitError

Mode = Literal["distributed", "legacy"]
SEEN_LIMIT = 20


@dataclass(frozen=True)
class Started:
    """One `ray start --block`; it leads a session of its own."""

    role: Literal["head", "worker"]
    pid: int
    start: str  # of `processes.started`
    log: str

    @property
    def alive(self) -> bool:
        return started(self.pid) == self.start


@dataclass(frozen=True)
class ClusterState:
    """A Ray that devkit started here: a head with its simulated nodes, or nodes that joined a head elsewhere."""

    name: str
    gcs_address: str
    dashboard_url: str  # empty: not known on this machine
    mode: Mode
    auth: AuthMode
    processes: tuple[Started, ...]
    created: float  # seconds since the epoch
    temp_dir: str = ""  # given with --temp-dir
    node_ids: tuple[str, ...] = ()
    machine: str = ""

    @property
    def has_head(self) -> bool:
        return any(process.role == "head" for process in self.processes)

    @property
    def living(self) -> tuple[Started, ...]:
        return tuple(process for process in self.processes if process.alive) if self.machine == machine() else ()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ClusterState:
        known = {entry.name for entry in fields(cls)}
        values = {name: value for name, value in document.items() if name in known}
        values["processes"] = tuple(Started(**process) for process in values["processes"])
        values["node_ids"] = tuple(values.get("node_ids", ()))
        return cls(**values)


def home(environ: Mapping[str, str] | None = None) -> Path:
    """
    >>> str(home({"DEVKIT_HOME": "/d"})), str(home({"XDG_CACHE_HOME": "/c"}))
    ('/d', '/c/devkit')
    """
    environ = os.environ if environ is None else environ
    if own := environ.get("DEVKIT_HOME"):
        return Path(own).expanduser()
    cache = environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "devkit"


def save(cluster: ClusterState) -> None:
    """Raises DevkitError if the folder cannot be written."""
    write(private_folder("clusters") / f"{cluster.name}.json", asdict(cluster))


def forget(name: str) -> None:
    (home() / "clusters" / f"{name}.json").unlink(missing_ok=True)


def clusters() -> tuple[ClusterState, ...]:
    """Those of this machine that live, the newest first. What can't be read, or is another machine's, is left alone."""
    found = []
    for path in (home() / "clusters").glob("*.json"):
        cluster = _load(path)
        if cluster is None or cluster.machine != machine():
            continue
        if cluster.living:
            found.append(cluster)
        else:
            path.unlink(missing_ok=True)
    return tuple(sorted(found, key=lambda cluster: cluster.created, reverse=True))


def free_name(wanted: str) -> str:
    """A name that no cluster has, of this machine or of another that shares this folder."""
    taken = {path.stem for path in (home() / "clusters").glob("*.json")}
    names = (wanted if number == 1 else f"{wanted}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def private_folder(*names: str) -> Path:
    """A folder below `home` that only this user can look into."""
    folder = home()
    try:
        for name in ("", *names):
            folder = folder / name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DevkitError(
            f"cannot make the folder {folder}: {error.strerror}", hint="DEVKIT_HOME names another one"
        ) from None
    return folder


@dataclass(frozen=True)
class Seen:
    """Which dashboard belonged to a GCS address when it was asked for."""

    dashboard_url: str
    session: str


def seen(gcs_address: str) -> Seen | None:
    entry = _seen_all().get(gcs_address)
    try:
        return Seen(entry["dashboard_url"], entry["session"]) if entry else None
    except (KeyError, TypeError):
        return None


def see(gcs_address: str, found: Seen) -> None:
    """Remembers it. Failing to is no failure: it saves half a second next time."""
    rest = {address: entry for address, entry in _seen_all().items() if address != gcs_address}
    newest = dict([(gcs_address, asdict(found)), *rest.items()][:SEEN_LIMIT])
    with suppress(DevkitError):
        write(private_folder() / "seen.json", newest)


def _seen_all() -> dict[str, Any]:
    try:
        entries = json.loads((home() / "seen.json").read_text())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _load(path: Path) -> ClusterState | None:
    try:
        return ClusterState.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write(path: Path, document: Mapping[str, Any]) -> None:
    """The whole file or none of it. A file of `mkstemp` is its owner's alone."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file, indent=1)
        os.replace(temporary, path)
    except OSError as error:
        raise DevkitError(f"cannot write {path}: {error.strerror}", hint="DEVKIT_HOME names another folder") from None
