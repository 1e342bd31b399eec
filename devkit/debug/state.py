"""What devkit remembers between two commands: the clusters that it started, and those that it has seen.

    $DEVKIT_HOME                      ~/.cache/devkit, or $XDG_CACHE_HOME/devkit
    ├── clusters/<name>.json          one Ray that devkit started on this machine
    ├── logs/<name>/                  what its `ray start` commands print
    ├── seen.json                     GCS address -> dashboard URL and session
    ├── ended/                        what runs that have ended left, of which `kept.py` tells
    └── runs/                         the `devkit run` commands that run, of which `runs.py` tells

Only this user can read it; what another user has put there is neither read nor written over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from devkit.debug.inworker import private
from devkit.debug.inworker.private import home
from devkit.debug.processes import machine, started
from devkit.debug.tokens import AuthMode
from devkit.errors import DevkitError
from devkit.reading import json_of, record_of

Mode = Literal["distributed", "legacy"]
SEEN_LIMIT = 20
OWN = 2  # of the folders above a file: `home`, and the one in it


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
    temp_dir: str = ""  # of --temp-dir, or in `own_folder`
    own_folder: str = ""  # made by devkit for this cluster, for Ray's sessions: it goes when the cluster is stopped
    node_ids: tuple[str, ...] = ()
    machine: str = ""

    @property
    def has_head(self) -> bool:
        return any(process.role == "head" for process in self.processes)

    @property
    def living(self) -> tuple[Started, ...]:
        return tuple(process for process in self.processes if process.alive) if self.machine == machine() else ()


def save(cluster: ClusterState) -> None:
    """Raises DevkitError if the folder cannot be written."""
    write(private_folder("clusters") / f"{cluster.name}.json", asdict(cluster))


def forget(name: str) -> None:
    remove("clusters", f"{name}.json")


def clusters() -> tuple[ClusterState, ...]:
    """Those of this machine that live, the newest first. What can't be read, or is another machine's, is left alone."""
    found = []
    for name, document in documents("clusters"):
        try:
            cluster = record_of(ClusterState, document)
        except ValueError:
            continue
        if cluster.machine != machine():
            continue
        if cluster.living:
            found.append(cluster)
        else:
            remove("clusters", name)
    return tuple(sorted(found, key=lambda cluster: cluster.created, reverse=True))


def free_name(wanted: str) -> str:
    """A name that no cluster has, of this machine or of another that shares this folder."""
    taken = {name.removesuffix(".json") for name, _ in documents("clusters")}
    names = (wanted if number == 1 else f"{wanted}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def private_folder(*names: str) -> Path:
    """A folder below `home` that only this user can look into. Raises `DevkitError` where it can't be had."""
    folder = home().joinpath(*names)
    try:
        return private.folder(folder, 1 + len(names))
    except OSError as error:
        raise DevkitError(
            f"cannot create the folder {folder}: {error.strerror}", hint="choose another one with DEVKIT_HOME"
        ) from None


def documents(folder: str) -> Iterator[tuple[str, Any]]:
    """The names and contents of the JSON files in a folder below `home` that can be read and are this user's."""
    path = home() / folder
    with suppress(OSError):
        for name in private.names(path, OWN):
            if name.endswith(".json"):
                with suppress(OSError, ValueError):
                    yield name, json_of(private.read(path / name, OWN))


def remove(folder: str, name: str) -> None:
    """A file below `home`, if it is there."""
    with suppress(OSError):  # the folder is not ours: then neither is the file
        private.remove(home() / folder / name, OWN)


@dataclass(frozen=True)
class Seen:
    """Which dashboard belonged to a GCS address when it was asked for."""

    dashboard_url: str
    session: str


def seen(gcs_address: str) -> Seen | None:
    try:
        return record_of(Seen, _seen_all().get(gcs_address))
    except ValueError:
        return None


def see(gcs_address: str, found: Seen) -> None:
    """Remembers it. Failing to is no failure: it saves half a second next time."""
    rest = {address: entry for address, entry in _seen_all().items() if address != gcs_address}
    newest = dict([(gcs_address, asdict(found)), *rest.items()][:SEEN_LIMIT])
    with suppress(DevkitError):
        write(private_folder() / "seen.json", newest)


def _seen_all() -> dict[str, Any]:
    try:
        entries = json_of(private.read(home() / "seen.json"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def write(path: Path, document: Mapping[str, Any]) -> None:
    """The whole file or none of it, for its owner alone, in a folder of `private_folder`. Raises DevkitError."""
    try:
        private.write(path, json.dumps(document, indent=1))
    except OSError as error:
        raise DevkitError(
            f"cannot write {path}: {error.strerror}", hint="choose another folder with DEVKIT_HOME"
        ) from None


__all__ = [
    "OWN", "ClusterState", "Mode", "Seen", "Started", "clusters", "documents", "forget", "free_name", "home",
    "private_folder", "remove", "save", "see", "seen", "write",
]  # fmt: skip
