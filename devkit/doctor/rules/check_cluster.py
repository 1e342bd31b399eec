"""Rules about the cluster itself: who is there, clocks, tokens, and debugging that is left over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from devkit.debug.naming import size
from devkit.doctor.records import Finding
from devkit.doctor.scene import Node, Scene, names

LOST_TRIES = 3
FULL_STORE = 0.95
SKEW_S, LARGE_SKEW_S = 2.0, 300.0  # from 5 minutes on, Kerberos and object stores refuse
_RESTART = "stop Ray there, unset {name}, and start it again; devkit debug-cluster does that automatically"


def check(scene: Scene) -> Iterator[Finding]:
    yield from _cluster(scene)
    yield from _nodes(scene)
    yield from _stores(scene)
    yield from _clocks(scene)
    yield from _tokens(scene)
    yield from _leftovers(scene)


def _cluster(scene: Scene) -> Iterator[Finding]:
    if scene.unreachable:
        yield Finding(
            "cluster-unreachable",
            (),
            scene.unreachable,
            "could not inspect the cluster; showing this machine only",
            scene.unreachable_hint,
            (scene.unreachable,),
        )


def _nodes(scene: Scene) -> Iterator[Finding]:
    for node in scene.nodes:
        name = scene.name(node.node_id)
        if not node.alive:
            evidence = node.death or f"Ray lists node {node.node_id[:8]} at {node.ip} as DEAD"
            why = "its GPUs are not counted"
            yield Finding("node-dead", (name,), f"node {_named(name, node)} is dead", why, _join(scene), (evidence,))
        elif node.facts is None:
            yield _silent(name, node)
        elif node.facts.unseen:
            said = tuple(f"{probe}: {why}" for probe, why in sorted(node.facts.unseen.items()))
            what = f"{names(sorted(node.facts.unseen))} of {name} could not be checked"
            yield Finding(
                "not-looked-at", (name,), what, "a problem there would be missed", "devkit doctor --timeout 60", said
            )
    yield from _from_here(scene)


def _stores(scene: Scene) -> Iterator[Finding]:
    for node in scene.nodes:
        full = node.store_total > 0 and node.store_used >= FULL_STORE * node.store_total
        if not node.alive or not (full or node.spilled):
            continue
        name = scene.name(node.node_id)
        held = f"{size(node.store_used)} of {size(node.store_total)}"
        spilled = f"{size(node.spilled)} spilled to disk since Ray was started there"
        what = f"the object store of {name} is full: {held}" if full else f"the object store of {name} has spilled"
        why = "what does not fit goes to the disk and back, and a run is as slow as that"
        fix = "devkit hang says who holds most; free references, or start Ray with a larger --object-store-memory"
        evidence = (held, spilled) if node.spilled else (held,)
        yield Finding("object-store", (name,), what, why, fix, evidence, None if full else "note")


def _silent(name: str, node: Node) -> Finding:
    """What is lost although a connection opens is large: its first packets are small ones."""
    what, why = f"node {_named(name, node)} did not answer", "Ray considers it alive and places ranks there: "
    fix = f"ssh {node.ip} 'uptime; free -g; tail /tmp/ray/session_latest/logs/raylet.err'"
    evidence = [node.problem or "it returned nothing"]
    if node.unacknowledged >= LOST_TRIES and node.from_here == "":
        what = f"data sent to node {_named(name, node)} does not arrive, although connections to it open"
        why = "large packets are lost on the way, as with mismatched MTUs: "
        fix = f"compare the MTU on all nodes and between them: ip link; ping -M do -s 1472 {node.ip}"
        evidence.append(
            f"over an open connection to {node.ip} data was sent {node.unacknowledged} times without an acknowledgement"
        )
    return Finding("node-silent", (name,), what, why + "the run would wait for its ranks", fix, tuple(evidence))


def _named(name: str, node: Node) -> str:
    return name if node.ip in name else f"{name} ({node.ip})"


def _join(scene: Scene) -> str:
    return f"on that node: ray start --address={scene.gcs_address}"


def _from_here(scene: Scene) -> Iterator[Finding]:
    cut = [(scene.name(node.node_id), node) for node in scene.nodes if node.alive and node.from_here]
    if cut:
        yield Finding(
            "debugger-unreachable",
            tuple(name for name, _ in cut),
            f"this machine can't connect to {names(name for name, _ in cut)}",
            "Ray's own VS Code extension connects to the workers; devkit's commands go through the dashboard and work",
            "use devkit attach or the devkit extension; or open the nodes' ports to this machine",
            tuple(f"{node.ip}: {node.from_here}" for _, node in cut),
        )


def _clocks(scene: Scene) -> Iterator[Finding]:
    read = [(scene.name(n.node_id), n.clock_offset, n.clock_within) for n in scene.nodes if n.clock_offset is not None]
    if len(read) < 2:
        return
    middle = median(offset for _, offset, _ in read)
    away = [abs(offset - middle) - within for _, offset, within in read]
    if 2 * min(away) >= SKEW_S:  # two nodes, or two halves: no clock stands with the median
        offsets = [offset for _, offset, _ in read]
        told = f"the clocks of {names(name for name, _, _ in read)} differ by {max(offsets) - min(offsets):.1f} s"
        yield _skew(told, read, 2 * min(away))
        return
    for (name, offset, within), off in zip(read, away, strict=True):
        if off >= SKEW_S:
            ahead = "ahead" if offset > middle else "behind"
            told = f"the clock of {name} is {abs(offset - middle):.1f} s {ahead}"
            yield _skew(told, [(name, offset, within)], off)


def _skew(told: str, read: Sequence[tuple[str, float, float]], seconds: float) -> Finding:
    """A finding on clocks that are at least so many seconds off; `read`: names, offsets and how exact they are."""
    return Finding(
        "clock-skew",
        tuple(name for name, _, _ in read),
        told,
        "logs are merged in the wrong order, and tokens, certificates and object stores may reject the node",
        "on that node: chronyc makestep, or timedatectl set-ntp true",
        tuple(
            f"{name}: offset {offset:+.3f} s from the head's clock, read within {within * 1000:.0f} ms"
            for name, offset, within in read
        ),
        "error" if seconds >= LARGE_SKEW_S else None,
    )


def _tokens(scene: Scene) -> Iterator[Finding]:
    with_token = scene.by_value(lambda facts: facts.token.digest)
    without = with_token.pop("", ())
    if len(with_token) > 1:
        yield Finding(
            "token-differs",
            tuple(name for where in with_token.values() for name in where),
            f"the nodes have {len(with_token)} different tokens for Ray",
            "joining or submitting with the wrong token fails: InvalidAuthToken",
            "copy the head's ~/.ray/auth_token to each node, and unset RAY_AUTH_TOKEN there",
            tuple(f"token {number}: {names(where)}" for number, where in enumerate(with_token.values(), 1)),
        )
    filed = [(name, f.token.file) for name, f in scene.seen if f.token.file and f.token.mode.lower() != "disabled"]
    if filed and without:
        yield Finding(
            "token-file",
            tuple(name for name, _ in filed),
            f"{names(name for name, _ in filed)} has a token file, and {names(without)} has no token",
            "Ray requires tokens where that file exists: a head started there rejects nodes without one",
            f"scp {filed[0][1]} to the same place on {names(without)}; or set RAY_AUTH_MODE=disabled everywhere",
            tuple(f"{name}: {file}" for name, file in filed),
        )
    for name, facts in scene.seen:
        if facts.token.open_to:
            yield Finding(
                "token-open",
                (name,),
                f"other users on {name} can read the token in {facts.token.file}",
                "anyone with the token can run anything on the cluster",
                f"chmod 600 {facts.token.file}",
                (f"its permissions are {facts.token.open_to}",),
            )


def _leftovers(scene: Scene) -> Iterator[Finding]:
    def legacy(facts_environment: dict[str, str]) -> bool:
        return facts_environment.get("RAY_DEBUG", "") not in ("", "0", "1")

    found = [
        (name, said)
        for name, facts in scene.seen
        if (
            said := [
                *([f"RAY_DEBUG={facts.environment['RAY_DEBUG']}"] if legacy(facts.environment) else []),
                *(argument.removesuffix("=1") for argument in facts.ray_arguments if argument.endswith("=1")),
            ]
        )
    ]
    if found:
        where = tuple(name for name, _ in found)
        yield Finding(
            "ray-debug-leftover",
            where,
            f"Ray's old debugger is enabled on {names(where)}",
            "it replaces the distributed debugger: breakpoints wait for `ray debug` and open ports",
            _RESTART.format(name="RAY_DEBUG"),
            tuple(f"{name}: {', '.join(said)}" for name, said in found),
        )
    elsewhere = [
        (name, value) for name, facts in scene.seen if (value := facts.environment.get("PYTHONBREAKPOINT", ""))
    ]
    if elsewhere:
        where = tuple(name for name, _ in elsewhere)
        yield Finding(
            "breakpoint-leftover",
            where,
            f"PYTHONBREAKPOINT is set on {names(where)}",
            "breakpoint() calls that, or does nothing, instead of the debugger",
            _RESTART.format(name="PYTHONBREAKPOINT"),
            tuple(f"{name}: PYTHONBREAKPOINT={value}" for name, value in elsewhere),
        )
