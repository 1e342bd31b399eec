"""The nodes of a cluster, looked at by a driver of it: here if this machine is one of them, else as a Ray job."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from functools import partial
from typing import Any

from devkit.debug import processes
from devkit.debug.address import ClusterAddress
from devkit.debug.dashboard import Dashboard
from devkit.debug.gcs import GcsAddress
from devkit.debug.jobs import COMMAND, DOCTOR, DOCTORS_VARIABLE
from devkit.debug.rest import Url
from devkit.debug.tokens import MODE, TOKEN, TOKEN_PATH
from devkit.doctor import travel
from devkit.doctor.decode import decode
from devkit.doctor.onnode.driver import MARK
from devkit.doctor.onnode.facts import Collective, NodeFacts, Pair
from devkit.doctor.onnode.network import reach
from devkit.doctor.onnode.probe import at_once
from devkit.doctor.scene import Node
from devkit.errors import DeadlineError, DevkitError, UnreachableError

JOIN_S = 15.0  # beyond the time for the nodes: importing Ray and joining
SUBMIT_S = 30.0  # beyond that: until Ray starts a job's driver
FROM_HERE_S = 2.5
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# The driver is not to be debugged, nor to go to another cluster.
NOT_ITS = (TOKEN, TOKEN_PATH, "RAY_ADDRESS", "RAY_RUNTIME_ENV_HOOK", "RAY_JOB_CONFIG_JSON_ENV_VAR", "DEVKIT_SETTINGS")
PROGRAM = DOCTORS_VARIABLE
BOOT = f"import base64, os, zlib; exec(zlib.decompress(base64.b64decode(os.environ.pop({PROGRAM!r}))))"
_HINT = "check only this machine with devkit doctor --here; --verbose and Ray's logs have the details"
Document = dict[str, Any]


def packed(program: str) -> str:
    """As `BOOT` takes it."""
    return base64.b64encode(zlib.compress(program.encode(), 9)).decode()


class Seen:
    """What the driver brought home."""

    def __init__(self, document: Document) -> None:
        self.pairs = tuple(decode(Pair, pair) for pair in document["pairs"])
        self.collectives = tuple(decode(Collective, each) for each in document["collectives"])
        rows = document["nodes"]
        from_here = _from_here([row for row in rows if row["alive"]])
        head = next((row["clock"] for row in rows if row["head"] and row["clock"]), None)
        self.nodes = tuple(_node(row, from_here.get(row["node_id"]), head) for row in rows)


def look(
    cluster: ClusterAddress, seconds: float, *, collective: bool, retrievers: tuple[tuple[str, int], ...] = ()
) -> Seen:
    """All nodes of it, within about that many seconds. Raises UnreachableError if no driver can join."""
    order: Document = {
        "address": "auto",
        "seconds": seconds,
        "program": travel.collective() if collective else "",
        "services": _services(cluster),
        "retrievers": retrievers,
    }
    local = _local(cluster)
    if local is None:
        with cluster.dashboard() as dashboard:
            return Seen(_checked(_as_job(dashboard, order, seconds)))
    with cluster.dashboard_if_any() as found:
        asks = found.authentication_mode() == "token" if found else cluster.token is not None
    return Seen(_checked(_as_process(cluster, {**order, "address": str(local)}, seconds, asks)))


def _services(cluster: ClusterAddress) -> dict[str, tuple[str, int]]:
    """What every node has to reach; a dashboard on the loopback is for its own machine alone, and meant so."""
    found = {}
    if cluster.gcs_address:
        gcs = GcsAddress.parse(cluster.gcs_address)
        found["the GCS"] = (gcs.host, gcs.port)
    if cluster.dashboard_url:
        url = Url.parse(cluster.dashboard_url)
        found["the dashboard"] = (url.host, url.port)
    return {name: place for name, place in found.items() if place[0] not in LOOPBACK}


def _local(cluster: ClusterAddress) -> GcsAddress | None:
    """The GCS as a raylet of this machine knows it; None: no node of the cluster is here."""
    if not cluster.gcs_address:
        return None
    wanted = GcsAddress.parse(cluster.gcs_address)
    for known in map(GcsAddress.parse, sorted(processes.gcs_addresses())):
        if known == wanted or (known.port == wanted.port and wanted.is_local and known.is_local):
            return known
    return None


def _as_process(cluster: ClusterAddress, order: Document, seconds: float, asks_for_token: bool) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in NOT_ITS}
    environ[MODE] = "token" if asks_for_token else "disabled"
    environ[PROGRAM] = packed(travel.driver())
    if cluster.token and asks_for_token:
        environ[TOKEN] = cluster.token.value
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", BOOT],  # short: Ray keeps the command among its jobs
            input=json.dumps(order),
            env=environ,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + JOIN_S,
        )
    except subprocess.TimeoutExpired:
        message = f"no driver could join the cluster at {order['address']} within {seconds + JOIN_S:.0f} s"
        raise UnreachableError(message, hint="is this machine's raylet alive? " + _HINT) from None
    if MARK not in done.stdout:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1][:200]
        raise UnreachableError(f"the survey's driver exited with code {done.returncode}: {said}", hint=_HINT)
    return done.stdout


def _as_job(dashboard: Dashboard, order: Document, seconds: float) -> str:
    """Where only the dashboard can be reached, the driver runs on the cluster."""
    program = travel.program(
        f"from {travel.PACKAGE}.driver import Order, run; run(Order(**json.loads({json.dumps(order)!r})))"
    )
    job = dashboard.submit_job(
        f'python3 -c "{BOOT}"',
        runtime_env={"env_vars": {PROGRAM: packed(program)}},
        metadata={COMMAND: DOCTOR},
    )
    longest = seconds + JOIN_S + SUBMIT_S
    end = time.monotonic() + longest
    said = b""
    try:
        with suppress(DeadlineError), dashboard.job_logs_stream(job, silence=longest) as pieces:
            for piece in pieces:
                said += piece
                if (MARK.encode() in said and said.endswith(b"\n")) or time.monotonic() > end:
                    break
    finally:
        with suppress(DevkitError):
            dashboard.stop_job(job)
    text = said.decode("utf-8", "replace")
    if MARK not in text:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")[:200]
        raise UnreachableError(f"the survey's job {job} did not report: {last}", hint=f"devkit logs {job}; {_HINT}")
    return text


def _checked(said: str) -> Document:
    line = next(line for line in said.splitlines() if line.startswith(MARK))
    document: Document = json.loads(line[len(MARK) :])
    if "failure" in document:
        raise UnreachableError(f"the survey failed: {document['failure']}", hint=_HINT)
    return document


def _from_here(rows: list[Document]) -> dict[str, str]:
    """Whether this machine can connect to each node, by the port of its raylet."""
    probes = {row["node_id"]: partial(reach, row["ip"], row["port"], FROM_HERE_S) for row in rows}
    found, failed = at_once(probes, time.monotonic() + FROM_HERE_S + 1.0)
    return {**found, **failed}


def _node(row: Document, from_here: str | None, head_clock: Document | None) -> Node:
    clock = row["clock"]
    base = head_clock["offset"] if head_clock else 0.0
    return Node(
        node_id=row["node_id"],
        ip=row["ip"],
        hostname=row["hostname"],
        facts=decode(NodeFacts, row["facts"]) if row["facts"] else None,
        head=row["head"],
        alive=row["alive"],
        cpus=row["resources"].get("CPU", 0.0),
        gpus=row["resources"].get("GPU", 0.0),
        free_cpus=row["free"].get("CPU", 0.0),
        free_gpus=row["free"].get("GPU", 0.0),
        store_used=row.get("store", {}).get("used", 0),
        store_total=row.get("store", {}).get("total", 0),
        spilled=row.get("store", {}).get("spilled", 0),
        problem=row["problem"],
        unacknowledged=row["unacknowledged"],
        death=row["death"],
        clock_offset=round(clock["offset"] - base, 6) if clock else None,
        clock_within=clock["within"] + (head_clock["within"] if head_clock else 0.0) if clock else 0.0,
        from_here=from_here,
    )
