"""The clusters that devkit launched on other machines, as this one remembers them: $DEVKIT_HOME/launched/<name>.json.

No token is in it. A cluster that has ended otherwise than by devkit stays here until `debug-cluster stop`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from devkit.debug import state
from devkit.debug.state import Mode
from devkit.debug.tokens import AuthMode
from devkit.reading import record_of

FOLDER = "launched"


@dataclass(frozen=True)
class LaunchedHost:
    """One of its machines."""

    name: str  # what ssh is given
    role: str  # "head" | "worker"
    ip: str
    cluster: str  # the name that devkit there knows its part by
    logs: str  # a folder there
    node_id: str = ""


@dataclass(frozen=True)
class Launched:
    """A cluster on other machines."""

    name: str
    launcher: str
    gcs_address: str
    dashboard_url: str
    mode: Mode
    auth: AuthMode
    python: str  # the interpreter there
    hosts: tuple[LaunchedHost, ...]  # the head first
    created: float  # seconds since the epoch


def save(launched: Launched) -> None:
    """Raises DevkitError if the folder cannot be written."""
    state.write(state.private_folder(FOLDER) / f"{launched.name}.json", asdict(launched))


def forget(name: str) -> None:
    state.remove(FOLDER, f"{name}.json")


def all_launched() -> tuple[Launched, ...]:
    """The newest first. What cannot be read is left alone."""
    found = []
    for _, document in state.documents(FOLDER):
        try:
            found.append(record_of(Launched, document))
        except ValueError:
            continue
    return tuple(sorted(found, key=lambda launched: launched.created, reverse=True))


def free_name(wanted: str) -> str:
    """A name that none of them has, nor a cluster of this machine."""
    taken = {launched.name for launched in all_launched()}
    names = (wanted if number == 1 else f"{wanted}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)
