"""Which cluster a command means, and where its dashboard is.

`--address`, else RAY_ADDRESS, else the cluster that devkit started or ran a program in last, else the one that Ray on
this machine names.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from devkit import patience
from devkit.debug import gcs, hub_file, kept, launched, processes, runs, state
from devkit.debug.dashboard import Dashboard
from devkit.debug.gcs import GcsAddress
from devkit.debug.gcs_tables import GcsTables
from devkit.debug.hub_file import HubPlace
from devkit.debug.inworker import private
from devkit.debug.inworker.redaction import scrub
from devkit.debug.rest import ADDRESS_HINT, Url
from devkit.debug.row_tables import RowTables
from devkit.debug.tokens import Token, find_token
from devkit.errors import DevkitError, UnreachableError, UsageError
from devkit.reading import read_regular

START_HINT = "start one with devkit debug-cluster, or pass --address for one that runs elsewhere"
PLAIN_HINT = "devkit can look into a program once it has called ray.init"
NO_DASHBOARD_HINT = (
    "devkit ps, attach, eval, break, continue, stacks, hang and crashes work without; "
    "for the others start Ray with include_dashboard=True and 'ray[default]'"
)
ANSWER_SECONDS = 10.0  # of a dashboard or a GCS
STILL_SECONDS = 2.0  # of a dashboard that answered once
GUESS_SECONDS = 1.0  # of a port of which it is not known what listens there
ADDRESS_FILE = "ray_current_cluster"
LARGEST_NOTE = 4096  # bytes of that file
ROOT = 0  # its user id
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ClusterAddress:
    """A cluster to talk to. `gcs_address` is None when only the dashboard is known; the token is never shown.

    Without a dashboard that can be reached from here, `dashboard_url` is empty and `why_none` says why; the hub may be
    reached all the same.
    """

    dashboard_url: str
    gcs_address: str | None
    token: Token | None
    source: str  # what named it: "--address", "RAY_ADDRESS", a file ...
    hub: HubPlace | None = None  # where no dashboard tells of it
    why_none: UnreachableError | None = field(default=None, compare=False)

    def dashboard(self, *, timeout: float | None = None) -> Dashboard:
        """Raises UnreachableError where there is none."""
        if self.why_none is not None:
            raise self.why_none
        patient = patience.seconds(ANSWER_SECONDS) if timeout is None else timeout
        return Dashboard(self.dashboard_url, self.token, timeout=patient)

    @contextmanager
    def dashboard_if_any(self, *, timeout: float | None = None) -> Iterator[Dashboard | None]:
        """None where there is none that answers, for who can do without."""
        with ExitStack() as stack:
            try:
                found = stack.enter_context(self.dashboard(timeout=timeout))
                found.version()
            except UnreachableError:
                yield None
            else:
                yield found

    @contextmanager
    def tables_if_any(self) -> Iterator[RowTables | None]:
        """Ray's tables, from its dashboard or else from the GCS; None where neither tells."""
        with ExitStack() as stack:
            if (found := stack.enter_context(self.dashboard_if_any())) is not None:
                yield found
                return
            yield self._of_gcs(stack)

    def _of_gcs(self, stack: ExitStack) -> RowTables | None:
        if self.gcs_address is None:
            return None
        tables = stack.enter_context(closing(GcsTables(self.gcs_address, self.token)))
        try:
            tables.nodes()
        except (UnreachableError, UsageError):
            return None
        return tables


def resolve(
    address: str | None = None, *, timeout: float | None = None, environ: Mapping[str, str] | None = None
) -> ClusterAddress:
    """The cluster that `address` names, a dashboard's URL, HOST:PORT of a GCS, or "auto"; None: the default one.

    A URL is believed; whether a dashboard answers there, the first call tells. Behind everything else a GCS has to
    answer within `timeout` seconds. Raises UnreachableError if there is none, UsageError for what is no address.
    """
    environ = os.environ if environ is None else environ
    timeout = patience.seconds(ANSWER_SECONDS) if timeout is None else timeout
    token = find_token(environ)
    wanted, source = (address or "").strip(), "--address"
    if wanted in ("", "auto"):
        wanted, source = _named_by_environment(environ)
    if wanted:
        return _named(wanted, source, token, timeout)
    running = runs.running()
    known = [(run.since, run.gcs_address, "devkit run") for run in running]
    known += [(cluster.created, cluster.gcs_address, "devkit debug-cluster") for cluster in state.clusters()]
    known += [
        (found.created, found.gcs_address, "devkit debug-cluster --hosts")
        for found in launched.all_launched()
        if gcs.is_up(GcsAddress.parse(found.gcs_address))  # it may have ended without a word to this machine
    ]
    if known:
        _, newest, who = max(known)
        if newest in [run.gcs_address for run in running[:1]]:
            return of_run(running[0])
        return _of_gcs(GcsAddress.parse(newest), who, token, timeout)
    found, source = _local(environ)
    return _of_gcs(found, source, token, timeout)


def of_run(run: runs.Run) -> ClusterAddress:
    """The cluster that the program of a `devkit run` of this machine is in."""
    token = runs.token_of(run.gcs_address) or (find_token() if run.auth == "token" else None)
    if run.dashboard_url:
        return ClusterAddress(run.dashboard_url, run.gcs_address, token, "devkit run")
    why_none = _no_dashboard(GcsAddress.parse(run.gcs_address))
    return ClusterAddress("", run.gcs_address, token, "devkit run", run.hub, why_none)


def temporary_folder(environ: Mapping[str, str]) -> Path:
    """Where Ray keeps its sessions and the address of the latest one, unless it is told otherwise.

    >>> str(temporary_folder({"RAY_TMPDIR": "/r", "TMPDIR": "/t"}))
    '/r/ray'
    """
    folder = environ.get("RAY_TMPDIR") or environ.get("TMPDIR")
    return Path(folder or ("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir())) / "ray"


def noted_address(folder: Path) -> GcsAddress | None:
    """The cluster that `ray start` noted last in that folder, whoever's; it may be dead."""
    try:
        return GcsAddress.parse(read_regular(folder / ADDRESS_FILE, LARGEST_NOTE).decode())
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
            f"{source} is {wanted}: a Ray Client address, which devkit does not support",
            hint=f"use that cluster's dashboard: --address http://{host}:8265",
        )
    if scheme:
        raise UsageError(f"{source} is {wanted}, which devkit does not support", hint=ADDRESS_HINT)
    if wanted == "local":
        raise UsageError(f"{source} is 'local', which is not a running cluster", hint=START_HINT)
    try:
        found = GcsAddress.parse(wanted)
    except UsageError:
        raise UsageError(f"{source} is {wanted!r}, which is not an address", hint=ADDRESS_HINT) from None
    try:
        return _of_gcs(found, source, token, timeout)
    except gcs.NobodyError as error:
        raise _named_in_vain(error, source) from None


def _named_in_vain(error: gcs.NobodyError, source: str) -> gcs.NobodyError:
    """Whoever gave no address on the command line may have forgotten the one in the environment."""
    if source == "--address":
        return error
    return gcs.NobodyError(error.message, hint=f"{source} names it: start its head, or unset {source}")


def knock(environ: Mapping[str, str]) -> None:
    """Raises NobodyError where nothing listens at the HOST:PORT of RAY_ADDRESS: `ray.init` would try for minutes."""
    source = "RAY_ADDRESS"
    try:
        found = GcsAddress.parse(environ.get(source, ""))
    except UsageError:  # another kind of address, or none: Ray's own affair
        return
    try:
        gcs.check(found)
    except gcs.NobodyError as error:
        raise _named_in_vain(error, source) from None


def _of_url(url: Url, source: str, token: Token | None) -> ClusterAddress:
    known = [cluster.gcs_address for cluster in state.clusters() if cluster.dashboard_url == str(url)]
    known += [found.gcs_address for found in launched.all_launched() if found.dashboard_url == str(url)]
    known += [run.gcs_address for run in runs.running() if run.dashboard_url == str(url)]
    return ClusterAddress(str(url), known[0] if known else None, runs.token_of(str(url)) or token, source)


def _of_gcs(address: GcsAddress, source: str, token: Token | None, timeout: float) -> ClusterAddress:
    """From cheap to dear: what devkit started, what it has seen and is still so, what the GCS says."""
    token = runs.token_of(str(address)) or token
    for cluster in state.clusters():
        if cluster.dashboard_url and _same(address, GcsAddress.parse(cluster.gcs_address)):
            return ClusterAddress(cluster.dashboard_url, cluster.gcs_address, token, source)
    known = state.seen(str(address))
    if known and _is_still(known, token):
        return ClusterAddress(known.dashboard_url, str(address), token, source)
    if _is_dashboard(address):  # HOST:8265 without http:// in front
        return _of_url(Url.parse(f"http://{address}"), source, token)
    facts = gcs.ask(address, token, timeout)
    if why_none := _why_none(address, facts.dashboard):
        hub = hub_file.parse(facts.hub) if facts.hub else None
        return ClusterAddress("", str(address), token, source, hub, why_none)
    url = f"http://{facts.dashboard}"
    state.see(str(address), state.Seen(url, facts.session))
    return ClusterAddress(url, str(address), token, source)


def _same(wanted: GcsAddress, started_here: GcsAddress) -> bool:
    return wanted == started_here or (wanted.port == started_here.port and wanted.host in LOOPBACK)


def _is_still(known: state.Seen, token: Token | None) -> bool:
    """Whether that dashboard still is the one of that session; by now another Ray may have its port."""
    try:
        with Dashboard(known.dashboard_url, token, timeout=patience.seconds(STILL_SECONDS)) as dashboard:
            return dashboard.version().session_name == known.session
    except DevkitError:
        return False


def _is_dashboard(address: GcsAddress) -> bool:
    """A GCS drops what isn't HTTP/2 at once."""
    gcs.check(address)
    try:
        with Dashboard(f"http://{address}", None, timeout=patience.seconds(GUESS_SECONDS)) as dashboard:
            dashboard.authentication_mode()
        return True
    except DevkitError:
        return False


def _why_none(address: GcsAddress, named: str) -> UnreachableError | None:
    """Why the dashboard that a GCS names cannot be reached from here."""
    if not named:
        return _no_dashboard(address)
    dashboard = GcsAddress.parse(named)
    if dashboard.host not in LOOPBACK or address.is_local:
        return None
    return UnreachableError(
        f"the dashboard of {address} listens on its own machine only, at {dashboard}",
        hint=f"ssh -L 8265:{dashboard} {address.host}, then --address http://127.0.0.1:8265; "
        "or start the head with --dashboard-host 0.0.0.0",
    )


def _no_dashboard(address: GcsAddress) -> UnreachableError:
    return UnreachableError(
        f"the Ray cluster at {address} runs without a dashboard, which this command needs", hint=NO_DASHBOARD_HINT
    )


def _local(environ: Mapping[str, str]) -> tuple[GcsAddress, str]:
    """The cluster that `ray start` named last, else the only one of which a node runs here.

    Only this user's, or root's: the token goes to where it leads, and anybody may write to Ray's folder.
    """
    file = temporary_folder(environ) / ADDRESS_FILE
    named = _own_address(file)
    if named and gcs.is_up(named):
        return named, str(file)
    below = environ.get("RAY_TMPDIR", "")  # such a Ray wants to be left alone, and leaves others
    known = processes.gcs_addresses(below, owners=(os.geteuid(), ROOT))
    running = [found for found in map(GcsAddress.parse, sorted(known)) if gcs.is_up(found)]
    if len(running) > 1:
        raise UsageError(
            f"{len(running)} Ray clusters run here: {', '.join(map(str, running))}",
            hint=f"choose one, for example with --address {running[0]}",
        )
    if running:
        return running[0], "a Ray cluster on this machine"
    stale = f": {file} points to {named}, where nothing answers" if named else ""
    others = "" if named or noted_address(file.parent) is None else f": {file} is another user's"
    if plain := runs.without_ray():
        command = scrub(shlex.join(plain[0].command))
        raise UnreachableError(f"{kept.NO_CLUSTER}: `{command}` under devkit run has started none", hint=PLAIN_HINT)
    raise UnreachableError(f"{kept.NO_CLUSTER}{stale or others}", hint=kept.over() or START_HINT)


def _own_address(file: Path) -> GcsAddress | None:
    try:
        with private.reading(file, 0, owners=(ROOT,)) as found:
            return GcsAddress.parse(found.read(LARGEST_NOTE).decode())
    except (OSError, UnicodeDecodeError, UsageError):
        return None
