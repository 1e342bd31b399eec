"""Which cluster a command means, and where its dashboard is.

`--address`, else RAY_ADDRESS, else the cluster that devkit started or ran a program in last, else the one that Ray on
this machine names.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devkit.debug import gcs, launched, processes, runs, state
from devkit.debug.dashboard import Dashboard
from devkit.debug.gcs import GcsAddress
from devkit.debug.rest import ADDRESS_HINT, DEFAULT_HINT, Url
from devkit.debug.tokens import Token, find_token
from devkit.errors import DevkitError, UnreachableError, UsageError

START_HINT = "devkit debug-cluster starts one; --address names one that runs elsewhere"
ADDRESS_FILE = "ray_current_cluster"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ClusterAddress:
    """A cluster to talk to. `gcs_address` is None when only the dashboard is known; the token is never shown."""

    dashboard_url: str
    gcs_address: str | None
    token: Token | None
    source: str  # what named it: "--address", "RAY_ADDRESS", a file ...

    def dashboard(self, *, timeout: float = 10.0) -> Dashboard:
        return Dashboard(self.dashboard_url, self.token, timeout=timeout)


def resolve(
    address: str | None = None, *, timeout: float = 10.0, environ: Mapping[str, str] | None = None
) -> ClusterAddress:
    """The cluster that `address` names, a dashboard's URL, HOST:PORT of a GCS, or "auto"; None: the default one.

    A URL is believed; whether a dashboard answers there, the first call tells. Behind everything else a GCS has to
    answer within `timeout` seconds. Raises UnreachableError if there is none, UsageError for what is no address.
    """
    environ = os.environ if environ is None else environ
    token = find_token(environ)
    wanted, source = (address or "").strip(), "--address"
    if wanted in ("", "auto"):
        wanted, source = _named_by_environment(environ)
    if wanted:
        return _named(wanted, source, token, timeout)
    known = [(run.since, run.gcs_address, "devkit run") for run in runs.running()]
    known += [(cluster.created, cluster.gcs_address, "devkit debug-cluster") for cluster in state.clusters()]
    known += [
        (found.created, found.gcs_address, "devkit debug-cluster --hosts")
        for found in launched.all_launched()
        if gcs.is_up(GcsAddress.parse(found.gcs_address))  # it may have ended without a word to this machine
    ]
    if known:
        _, newest, who = max(known)
        return _of_gcs(GcsAddress.parse(newest), who, token, timeout)
    found, source = _local(environ)
    return _of_gcs(found, source, token, timeout)


def temporary_folder(environ: Mapping[str, str]) -> Path:
    """Where Ray keeps its sessions and the address of the latest one, unless it is told otherwise.

    >>> str(temporary_folder({"RAY_TMPDIR": "/r", "TMPDIR": "/t"}))
    '/r/ray'
    """
    folder = environ.get("RAY_TMPDIR") or environ.get("TMPDIR")
    return Path(folder or ("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir())) / "ray"


def noted_address(folder: Path) -> GcsAddress | None:
    """The cluster that `ray start` noted last in that folder; it may be dead."""
    try:
        return GcsAddress.parse((folder / ADDRESS_FILE).read_text())
    except (OSError, UnicodeDecodeError, UsageError):
        return None


def _named_by_environment(environ: Mapping[str, str]) -> tuple[str, str]:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        value = environ.get(name, "").strip()
        if value and value != "auto":
            return value, name
    return "", ""


def _named(wanted: str, source: str, token: Token | None, timeout: float) -> ClusterAddress:
    scheme = wanted.partition("://")[0].lower() if "://" in wanted else ""
    if scheme in ("http", "https"):
        return _of_url(Url.parse(wanted), source, token)
    if scheme == "ray":
        host = wanted.partition("://")[2].partition("/")[0].rpartition(":")[0] or "HOST"
        raise UsageError(
            f"{source} is {wanted}: a Ray Client address, which devkit does not use",
            hint=f"name the dashboard of that cluster: --address http://{host}:8265",
        )
    if scheme:
        raise UsageError(f"{source} is {wanted}, which devkit does not know", hint=ADDRESS_HINT)
    if wanted == "local":
        raise UsageError(f"{source} is 'local', which names no cluster that runs", hint=START_HINT)
    try:
        found = GcsAddress.parse(wanted)
    except UsageError:
        raise UsageError(f"{source} is {wanted!r}, which is no address", hint=ADDRESS_HINT) from None
    return _of_gcs(found, source, token, timeout)


def _of_url(url: Url, source: str, token: Token | None) -> ClusterAddress:
    known = [cluster.gcs_address for cluster in state.clusters() if cluster.dashboard_url == str(url)]
    known += [found.gcs_address for found in launched.all_launched() if found.dashboard_url == str(url)]
    return ClusterAddress(str(url), known[0] if known else None, token, source)


def _of_gcs(address: GcsAddress, source: str, token: Token | None, timeout: float) -> ClusterAddress:
    """From cheap to dear: what devkit started, what it has seen and is still so, what the GCS says."""
    for cluster in state.clusters():
        if cluster.dashboard_url and _same(address, GcsAddress.parse(cluster.gcs_address)):
            return ClusterAddress(cluster.dashboard_url, cluster.gcs_address, token, source)
    known = state.seen(str(address))
    if known and _is_still(known, token):
        return ClusterAddress(known.dashboard_url, str(address), token, source)
    if _is_dashboard(address):  # HOST:8265 without http:// in front
        return _of_url(Url.parse(f"http://{address}"), source, token)
    url, session = _ask(address, token, timeout)
    state.see(str(address), state.Seen(url, session))
    return ClusterAddress(url, str(address), token, source)


def _same(wanted: GcsAddress, started_here: GcsAddress) -> bool:
    return wanted == started_here or (wanted.port == started_here.port and wanted.host in LOOPBACK)


def _is_still(known: state.Seen, token: Token | None) -> bool:
    """Whether that dashboard still is the one of that session; by now another Ray may have its port."""
    try:
        with Dashboard(known.dashboard_url, token, timeout=2.0) as dashboard:
            return dashboard.version().session_name == known.session
    except DevkitError:
        return False


def _is_dashboard(address: GcsAddress) -> bool:
    """A GCS drops what isn't HTTP/2 at once."""
    gcs.check(address)
    try:
        with Dashboard(f"http://{address}", None, timeout=1.0) as dashboard:
            dashboard.authentication_mode()
        return True
    except DevkitError:
        return False


def _ask(address: GcsAddress, token: Token | None, timeout: float) -> tuple[str, str]:
    facts = gcs.ask(address, token, timeout)
    if not facts.dashboard:
        raise UnreachableError(f"the Ray at {address} runs without a dashboard", hint=DEFAULT_HINT)
    dashboard = GcsAddress.parse(facts.dashboard)
    if dashboard.host in LOOPBACK and not address.is_local:
        raise UnreachableError(
            f"the dashboard of {address} listens on its own machine only, at {dashboard}",
            hint=f"ssh -L 8265:{dashboard} {address.host}, then --address http://127.0.0.1:8265; "
            "or start the head with --dashboard-host 0.0.0.0",
        )
    return f"http://{dashboard}", facts.session


def _local(environ: Mapping[str, str]) -> tuple[GcsAddress, str]:
    """The cluster that `ray start` named last, else the only one of which a node runs here."""
    folder = temporary_folder(environ)
    file = folder / ADDRESS_FILE
    named = noted_address(folder)
    if named and gcs.is_up(named):
        return named, str(file)
    below = environ.get("RAY_TMPDIR", "")  # such a Ray wants to be left alone, and leaves others
    running = [found for found in map(GcsAddress.parse, sorted(processes.gcs_addresses(below))) if gcs.is_up(found)]
    if len(running) > 1:
        raise UsageError(
            f"{len(running)} Ray clusters run here: {', '.join(map(str, running))}", hint="--address names one of them"
        )
    if running:
        return running[0], "a Ray on this machine"
    stale = f": {file} names {named}, where nothing answers" if named else ""
    raise UnreachableError(f"no Ray cluster found{stale}", hint=START_HINT)
