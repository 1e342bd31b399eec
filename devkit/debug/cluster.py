"""`devkit debug-cluster`: a Ray with post-mortem debugging on, its state, and its end.

Each node is a `ray start --block` in a session of its own, so that it outlives the command that started it, and so
that everything that belongs to it can be found and ended, and nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from devkit import patience
from devkit.debug import bundle, cluster_look, gcs, processes, ray_start, session, state
from devkit.debug.address import LARGEST_NOTE, noted_address, temporary_folder
from devkit.debug.cluster_launch import Launch
from devkit.debug.cluster_records import AuthRecord, DebugCluster, DebugMode, NodeRecord, Stopped
from devkit.debug.dashboard import Dashboard
from devkit.debug.gcs import GcsAddress
from devkit.debug.ray_start import ClusterOptions, Plan
from devkit.debug.rows import NodeRow
from devkit.debug.state import ClusterState
from devkit.debug.tokens import AuthMode, Token, auth_mode, ensure_token, find_token
from devkit.debug.waiting import Waiting
from devkit.errors import DeadlineError, DevkitError, UnreachableError, UsageError
from devkit.reading import read_regular
from devkit.signals import undisturbed

STOP_S = 5.0  # between SIGTERM and SIGKILL; Ray needs three, and longer for a worker that stands at a stop
LOOK_S = 5.0  # for the nodes of a cluster, by `status`
AWAIT_S = 0.1  # between two looks for a head that comes up
Say = Callable[[str], None]


def start(
    options: ClusterOptions, say: Say, *, on_failure: Callable[[BaseException], None] = lambda error: None
) -> DebugCluster:
    """Starts the nodes and waits until all of them are alive; what it says meanwhile is not its result.

    `on_failure` is told at once of an error that it will raise when it has ended what was started, seconds later.
    Raises UsageError for options that cannot be right, UnreachableError if there is no head to join, DeadlineError
    when it is not up within `options.timeout`. Whatever it raises, it leaves nothing running.
    """
    environ = dict(os.environ)
    deadline = time.monotonic() + options.timeout
    ray_start.check(options)
    options, own_folder, note = _apart(options, environ)
    still = Waiting(say)
    launch = _join(options, environ, deadline, still) if options.join else _head(options, environ)
    launch.still = still
    launch.notes = (*launch.notes, *note)
    launch.cluster = replace(launch.cluster, own_folder=own_folder)
    for line in launch.notes:
        say(line)
    with ExitStack() as clean_up:
        clean_up.callback(launch.let_go)
        unfinished = clean_up.enter_context(ExitStack())
        unfinished.push(lambda kind, *_rest: _end_unfinished(launch, say, kind))
        try:
            session.make(own_folder)
            launch.start_all(deadline)
            nodes = launch.wait_until_up(deadline)
        except BaseException as error:
            on_failure(error)
            raise
        own = launch.own(nodes)
        launch.cluster = replace(launch.cluster, node_ids=tuple(node.node_id for node in own))
        state.save(launch.cluster)
        unfinished.pop_all()
    shown = nodes if options.wait_for else own
    return replace(_record(launch.cluster, shown), removed=launch.removed, notes=launch.notes)


def status() -> tuple[DebugCluster, ...]:
    """The clusters that devkit started on this machine and that still have a process, the newest first."""
    return tuple(_look(cluster) for cluster in state.clusters())


def stop(target: str | None = None, *, keep_logs: bool = False) -> tuple[Stopped, ...]:
    """Ends what devkit started on this machine: all of it, or the cluster with that name or address.

    A folder that devkit made for a cluster's sessions goes with it, unless `keep_logs`.
    """
    clusters = state.clusters()
    chosen = [cluster for cluster in clusters if target in (None, cluster.name, *_addresses(cluster))]
    if target is not None and not chosen:
        names = ", ".join(cluster.name for cluster in clusters) or "nothing"
        raise UsageError(f"devkit has not started a cluster {target!r} here", hint=f"it has started {names}")
    with ThreadPoolExecutor(len(chosen) or 1) as pool:  # a Ray takes three seconds to end
        return tuple(pool.map(partial(_end, keep_logs=keep_logs), chosen))


def _apart(options: ClusterOptions, environ: Mapping[str, str]) -> tuple[ClusterOptions, str, tuple[str, ...]]:
    """Gives a cluster a folder of its own, its second result, where another one is at home in Ray's usual one.

    There Ray notes the address of the latest cluster, and a job that is submitted to any cluster of this machine goes
    to that one (ray.dashboard.modules.job.job_supervisor, `_get_driver_env_vars`).
    """
    usual = temporary_folder(environ)
    named = noted_address(usual)
    joins = GcsAddress.parse(options.join) if options.join else None
    same = joins and named and joins.port == named.port and (joins == named or joins.is_local)
    if options.temp_dir or named is None or same or not gcs.is_up(named):
        return options, "", ()
    own = session.name_beside(usual)
    note = f"{usual} belongs to the cluster at {named}: this one has {own}, until it is stopped"
    return replace(options, temp_dir=own / session.INNER), str(own), (note,)


def _head(options: ClusterOptions, environ: Mapping[str, str]) -> Launch:
    auth = auth_mode(options.auth, environ)
    token, made = ensure_token(environ) if auth == "token" else (None, False)
    plan = ray_start.plan(options, environ)
    host = options.dashboard_host if options.dashboard_host not in ("0.0.0.0", "::") else "127.0.0.1"
    gcs_address = GcsAddress(options.node_ip or "127.0.0.1", plan.port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{plan.dashboard_port}" if options.dashboard else ""
    folder = options.temp_dir or temporary_folder(environ)
    head = (
        cluster_look.through_dashboard(url, token, folder, lambda: launch.head_pid)
        if options.dashboard
        else cluster_look.through_gcs(gcs_address, token)
    )

    def look() -> tuple[NodeRow, ...]:
        nodes = head.nodes(launch.head_pid, url or str(gcs_address))
        own = next((node for node in nodes if node.is_head_node), None)
        if own is None:
            return ()
        if url and options.dashboard_host != host:
            launch.cluster = replace(launch.cluster, dashboard_url=f"http://{own.node_ip}:{plan.dashboard_port}")
        launch.cluster = replace(launch.cluster, gcs_address=f"{own.node_ip}:{plan.port}")
        return nodes

    new = _new(options, state.free_name(f"head-{plan.port}"), f"127.0.0.1:{plan.port}", url, auth)
    launch = _launch(options, environ, auth, plan, new, look, is_own=lambda node: True, close=head.close)
    if made and token:
        launch.notes = (f"created a token for your Ray clusters in {token.source}", *launch.notes)
    return launch


def _join(options: ClusterOptions, environ: Mapping[str, str], deadline: float, still: Waiting) -> Launch:
    assert options.join is not None
    address = GcsAddress.parse(options.join)
    if options.await_head and not options.head_is_ours:
        _await(address, options.timeout, deadline, still)
    auth, token = _auth_of_head(address, options, environ)
    with ExitStack() as unfinished:
        watch = gcs.Watch(address, token)  # it imports Ray while the head comes up
        unfinished.callback(watch.close)
        if options.await_head:
            _await(address, options.timeout, deadline, still)
        facts = watch.facts(min(10.0, options.timeout))
        before = {node.node_id for node in facts.nodes}

        def is_own(node: NodeRow) -> bool:
            """New, and of this machine. The dashboard may not be reachable from here."""
            return node.node_id not in before and GcsAddress(node.node_ip, 1).is_local

        def look() -> tuple[NodeRow, ...]:
            """The dashboard comes up after the GCS: a node that has waited for its head may not know it before."""
            facts = watch.facts(10.0)
            if not launch.cluster.dashboard_url:
                launch.cluster = replace(launch.cluster, dashboard_url=_dashboard_seen_from_here(address, facts))
            return facts.nodes

        url = _dashboard_seen_from_here(address, facts)
        plan = ray_start.plan(options, environ)
        name = state.free_name(f"joined-{address.host}-{address.port}".replace(":", "_"))
        new = _new(options, name, str(address), url, auth)
        launch = _launch(options, environ, auth, plan, new, look, is_own=is_own, close=watch.close)
        unfinished.pop_all()
    return launch


def _dashboard_seen_from_here(address: GcsAddress, facts: gcs.GcsFacts) -> str:
    """Its URL; empty where it cannot be reached."""
    shown = GcsAddress.parse(facts.dashboard) if facts.dashboard else None
    if shown is None or not (address.is_local or shown.host != "127.0.0.1") or not gcs.is_up(shown, 1.0):
        return ""
    return f"http://{shown}"


def _await(address: GcsAddress, timeout: float, deadline: float, still: Waiting) -> None:
    """Until something listens there. Raises DeadlineError that says what the last try met."""
    while True:
        try:
            return gcs.check(address)
        except UnreachableError as error:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"the head is not up after {timeout:g} s; missing: {error.message}",
                    hint="is it running, and can this machine reach that address and port?",
                ) from None
            still(f"the head: {error.message}")
        time.sleep(AWAIT_S)


def _auth_of_head(
    address: GcsAddress, options: ClusterOptions, environ: Mapping[str, str]
) -> tuple[AuthMode, Token | None]:
    """A node has to do as its head does: one that asks for no token answers also without."""
    token = find_token(environ)
    wanted = auth_mode(options.auth, environ) if options.auth else None
    if wanted and options.head_is_ours:
        return wanted, token if wanted == "token" else None
    try:
        gcs.ask(address, None, min(10.0, options.timeout))
        auth: AuthMode = "disabled"
    except gcs.RefusedError:
        auth = "token"
    if wanted and wanted != auth:
        raise UsageError(f"--auth is {wanted!r}, but the head at {address} has {auth!r}", hint=f"--auth {auth}")
    if auth == "token" and token is None:
        raise UnreachableError(f"the Ray at {address} asks for a token", hint=gcs.TOKEN_HINT)
    return auth, token if auth == "token" else None


def _new(options: ClusterOptions, name: str, gcs_address: str, url: str, auth: AuthMode) -> ClusterState:
    return ClusterState(
        name=name,
        gcs_address=gcs_address,
        dashboard_url=url,
        mode=options.mode,
        auth=auth,
        processes=(),
        created=time.time(),
        temp_dir=str(options.temp_dir.absolute()) if options.temp_dir else "",
        machine=processes.machine(),
    )


def _launch(
    options: ClusterOptions,
    environ: Mapping[str, str],
    auth: AuthMode,
    plan: Plan,
    cluster: ClusterState,
    look: Callable[[], tuple[NodeRow, ...]],
    *,
    is_own: Callable[[NodeRow], bool],
    close: Callable[[], None],
) -> Launch:
    ours = bundle.environment(leave_to_ray=options.legacy)
    environment, removed = ray_start.environment(options, auth, environ, ours)
    launch = Launch(options, plan, environment, cluster, look, is_own, close)
    launch.removed = removed
    notes = [f"unset {leftover}: it would disable the debugger" for leftover in removed]
    if not options.legacy and (problem := ray_start.debugpy_problem()):
        notes.append(problem)
    launch.notes = (*notes, *plan.notes)
    return launch


def _look(cluster: ClusterState) -> DebugCluster:
    """What there is to say of a cluster now."""
    gone = len(cluster.processes) - len(cluster.living)
    problem = f"{gone} of its {len(cluster.processes)} nodes here have exited" if gone else ""
    token = find_token() if cluster.auth == "token" else None
    nodes: tuple[NodeRow, ...] = ()
    try:
        if cluster.dashboard_url:
            with Dashboard(cluster.dashboard_url, token, timeout=patience.seconds(LOOK_S)) as dashboard:
                nodes = dashboard.nodes()
        else:
            nodes = gcs.ask(GcsAddress.parse(cluster.gcs_address), token, patience.seconds(LOOK_S)).nodes
    except DevkitError as error:
        problem = problem or error.message
    if not cluster.has_head:
        nodes = tuple(node for node in nodes if node.node_id in cluster.node_ids)
    return replace(_record(cluster, nodes), problem=problem)


def _record(cluster: ClusterState, nodes: tuple[NodeRow, ...]) -> DebugCluster:
    legacy = " --legacy" if cluster.mode == "legacy" else ""
    token = find_token() if cluster.auth == "token" else None
    return DebugCluster(
        gcs_address=cluster.gcs_address,
        dashboard_url=cluster.dashboard_url,
        nodes=tuple(
            NodeRecord(node.node_id, node.node_ip, node.alive, node.cpus, node.gpus, node.is_head_node)
            for node in sorted(nodes, key=lambda node: (not node.is_head_node, node.node_id))
        ),
        debug=DebugMode(cluster.mode, post_mortem=cluster.mode != "legacy"),
        join_command=f"devkit debug-cluster --join {cluster.gcs_address} --auth {cluster.auth}{legacy}",
        name=cluster.name,
        auth=AuthRecord(cluster.auth, token.source if token else ""),
        logs=str(state.home() / "logs" / cluster.name),
    )


def _end(cluster: ClusterState, *, keep_logs: bool = False) -> Stopped:
    leaders = [process.pid for process in cluster.living]
    count, killed = processes.end(leaders, deadline=time.monotonic() + patience.seconds(STOP_S)) if leaders else (0, 0)
    state.forget(cluster.name)
    _forget_address(cluster)
    folder = Path(cluster.temp_dir) if cluster.temp_dir else temporary_folder(os.environ)
    gone = not keep_logs and session.remove(cluster.own_folder)
    return Stopped(cluster.name, cluster.gcs_address, count, killed, logs="" if gone else str(folder))


def _end_unfinished(launch: Launch, say: Callable[[str], None], kind: type[BaseException] | None) -> None:
    """Of a start that has failed, as against one that was interrupted, the logs are wanted."""
    with undisturbed():
        say("stopping what was started")
        _end(launch.cluster, keep_logs=kind is not KeyboardInterrupt)


def _forget_address(cluster: ClusterState) -> None:
    """Ray's note of the latest cluster, if it is this one: `ray.init()` would wait for it."""
    folder = Path(cluster.temp_dir) if cluster.temp_dir else temporary_folder(os.environ)
    file = folder / "ray_current_cluster"
    with suppress(OSError):
        if (
            cluster.has_head
            and read_regular(file, LARGEST_NOTE).decode(errors="replace").strip() == cluster.gcs_address
        ):
            file.unlink()


def _addresses(cluster: ClusterState) -> tuple[str, ...]:
    return tuple(filter(None, (cluster.gcs_address, cluster.dashboard_url)))
